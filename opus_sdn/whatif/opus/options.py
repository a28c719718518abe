"""What a replay on our own controller can be told, beyond the scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from opus_sdn.drivers.emulated_options import DELAY_MS_MAX, INFLIGHT_MAX
from opus_sdn.intent.fabric import CircuitKind
from opus_sdn.intent.model import CoreSettings, PortChoice
from opus_sdn.whatif.errors import InputError

LARGEST = 1e12  # of any number that no device is told
_LARGEST_OF = {"control_ms": DELAY_MS_MAX, "inflight": INFLIGHT_MAX}
FOREVER_S = 1e12  # of leases and other watches over processes: virtual ranks do not die


@dataclass(frozen=True, slots=True)
class Options:
    """`control_ms` is added to every change of a switch before its optics move; `inflight` changes at once.

    `fabric` and `job`: files, given together, instead of the cluster that the trace implies.

    `hold`: an operation that waits for its grant keeps the rank's communication slot. `start_topology`: what
    is up before the step, in digits; None is every stage's data-parallel rings. `overtake_max`, `overtake_ms`
    and `ring_patience_ms` are the controller's settings. `port_choice`, `circuit` and `ports_per_gpu` are the
    fabric's, where it is derived from the trace. `defer_reductions`: collectives that nothing in the step
    needs come after the rank's last message. `lower_bound`: replay the static step too, for the bound.
    """

    control_ms: float | None = None
    inflight: int = 65_536
    hold: bool = False
    start_topology: str | None = None
    fabric: str | None = None
    job: str | None = None
    overtake_max: int = CoreSettings().overtake_max
    overtake_ms: float = CoreSettings().overtake_s * 1e3
    ring_patience_ms: float = CoreSettings().ring_patience_s * 1e3
    port_choice: str = PortChoice.STANDARD.value
    circuit: str = CircuitKind.DUPLEX.value
    ports_per_gpu: int = 2
    defer_reductions: bool = False
    lower_bound: bool = True

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Check names, types and ranges. Raises InputError."""
        for name, value in given.items():
            if name not in _KINDS:
                raise _refused(name, value, f"no such option; known: {', '.join(_KINDS)}")
            wanted = _KINDS[name]
            if value is None and getattr(cls(), name) is None:
                continue
            fits = isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
            if not fits or (isinstance(value, bool) and wanted is not bool):
                raise _refused(name, value, f"it must be of type {wanted.__name__}")
            largest = _LARGEST_OF.get(name, LARGEST)
            if wanted in (int, float) and not 0 <= value <= largest:
                raise _refused(name, value, f"it must lie between 0 and {largest:g}")
        options = cls(**given)
        for name, known in (("port_choice", PortChoice), ("circuit", CircuitKind)):
            choices = [str(member.value) for member in known]
            if getattr(options, name) not in choices:
                raise _refused(name, getattr(options, name), f"it must be one of {', '.join(choices)}")
        if options.ports_per_gpu not in (1, 2, 4):
            raise _refused("ports_per_gpu", options.ports_per_gpu, "a GPU has 1, 2 or 4 ports")
        if (options.fabric is None) != (options.job is None):
            missing = "job" if options.job is None else "fabric"
            raise _refused(missing, None, "fabric and job go together: a placement is on some fabric")
        if options.inflight < 1:
            raise _refused("inflight", options.inflight, "a switch takes at least 1 change")
        return options

    def settings(self) -> CoreSettings:
        """The core's settings: those that decide an order, and nobody is ever too late or too silent."""
        return CoreSettings(
            overtake_max=self.overtake_max,
            overtake_s=self.overtake_ms / 1e3,
            ring_patience_s=self.ring_patience_ms / 1e3,
            lease_s=FOREVER_S,
            fence_s=1.0,
            abort_s=1.0,
            install_s=FOREVER_S,
            light_s=FOREVER_S,
            carrier_s=FOREVER_S,
        )


def _refused(name: str, value: object, why: str) -> InputError:
    return InputError(why, file="options", field=name, value=value)


_KINDS: dict[str, type] = {
    field.name: float if field.name == "control_ms" else str if field.default is None else type(field.default)
    for field in fields(Options)
}
