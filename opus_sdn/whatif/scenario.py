"""What is to be replayed: a step, on a machine, over a fabric, under one control."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS

if TYPE_CHECKING:
    from opus_sdn.whatif.inputs.hints import Hints
    from opus_sdn.whatif.inputs.schedules import Schedules
    from opus_sdn.whatif.inputs.system import System
    from opus_sdn.whatif.trace.model import Trace


class Mode(StrEnum):
    """Who asks for circuits, and when; `static` and `ideal` are references in which nobody has to.

    `static`: every link of every topology is up all the time. `ideal`: one topology with the same total
    bandwidth, spread over the pairs that talk.
    """

    ON_DEMAND = "on-demand"
    PROVISION = "provision"
    STATIC = "static"
    IDEAL = "ideal"


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """One replay. `delay_ns` is what re-pointing a changed link takes, `latency_ns` a link's propagation.

    With `static` and `ideal`, `schedules` holds exactly one topology. `hints` go with `provision` and are
    None where the semantics know the order by themselves.
    """

    trace: Trace
    system: System
    schedules: Schedules
    mode: Mode = Mode.ON_DEMAND
    delay_ns: float = 0.0
    latency_ns: float = DEFAULT_LATENCY_NS
    hints: Hints | None = None
    options: dict[str, object] = field(default_factory=dict)
