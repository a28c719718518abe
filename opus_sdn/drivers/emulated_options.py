"""The options of an emulated switch in the fabric file, checked before the first light."""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, fields

from opus_sdn.drivers.base import SwitchConfigError
from opus_sdn.drivers.pairs import clash, misfit, normal
from opus_sdn.intent.fabric import CrossConnect, Switch

DELAY_MS_MAX = 600_000.0
INFLIGHT_MAX = 65_536


@dataclass(frozen=True, slots=True)
class EmulatedOptions:
    """How the device behaves. Times in milliseconds, spent only by requests that change something.

    `control_ms` = from the request to the first mirror that moves; `delay_ms` = from there to the light.
    `initial` = the cross-connects that are there when the device is switched on. `address` = of the process
    in which the device lives, as 127.0.0.1:7001; without it the device lives and dies with its driver.
    """

    delay_ms: float = 0.0
    control_ms: float = 0.0
    max_inflight: int = 64
    initial: tuple[CrossConnect, ...] = ()
    address: str | None = None

    @property
    def change_s(self) -> float:
        """How long one change takes, in seconds."""
        return (self.control_ms + self.delay_ms) / 1000

    @classmethod
    def of(cls, switch: Switch) -> EmulatedOptions:
        """Read the options of one switch; SwitchConfigError names the option, the value and what is right."""
        known = [f.name for f in fields(cls)]
        given = dict(switch.options)
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise SwitchConfigError(
                    f"switch {switch.name}: option {name!r} is unknown to the emulated driver{hint}; "
                    f"known: {', '.join(known)}"
                )
        defaults = cls()
        return cls(
            delay_ms=_milliseconds(switch, "delay_ms", given.get("delay_ms", defaults.delay_ms)),
            control_ms=_milliseconds(switch, "control_ms", given.get("control_ms", defaults.control_ms)),
            max_inflight=_inflight(switch, given.get("max_inflight", defaults.max_inflight)),
            initial=_initial(switch, given.get("initial", defaults.initial)),
            address=None if given.get("address") is None else str(given["address"]),
        )


def _milliseconds(switch: Switch, name: str, value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and 0 <= number <= DELAY_MS_MAX:
            return number
    raise SwitchConfigError(
        f"switch {switch.name}: option {name} is {value!r}; "
        f"it must be a number of milliseconds from 0 to {DELAY_MS_MAX:.0f}"
    )


def _inflight(switch: Switch, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INFLIGHT_MAX:
        return value
    raise SwitchConfigError(
        f"switch {switch.name}: option max_inflight is {value!r}; "
        f"it must be a whole number of changes at once from 1 to {INFLIGHT_MAX}"
    )


def _initial(switch: Switch, value: object) -> tuple[CrossConnect, ...]:
    if not isinstance(value, (list, tuple)):
        raise SwitchConfigError(
            f"switch {switch.name}: option initial is {value!r}; it must be a list of pairs [ingress, egress]"
        )
    pairs: list[CrossConnect] = []
    for number, item in enumerate(value):
        field = f"switch {switch.name}: option initial[{number}]"
        if not (isinstance(item, (list, tuple)) and len(item) == 2 and all(type(end) is int for end in item)):
            raise SwitchConfigError(f"{field} is {item!r}; it must be a pair of positions [ingress, egress]")
        pair = normal(switch, CrossConnect(*item))
        wrong = misfit(switch, pair)
        if wrong is not None:
            raise SwitchConfigError(f"{field} is {item!r}: {wrong}")
        pairs.append(pair)
    wrong = clash(switch, pairs)
    if wrong is not None:
        raise SwitchConfigError(f"switch {switch.name}: option initial: {wrong}; each may be used once")
    return tuple(pairs)
