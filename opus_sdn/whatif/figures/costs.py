"""Cost and power over the size of a cluster: half of figure 15, in the paper's first version 14."""

from __future__ import annotations

from opus_sdn.whatif.cost.bill import Bill, bill
from opus_sdn.whatif.cost.fabrics import Kind
from opus_sdn.whatif.cost.prices import SYSTEMS
from opus_sdn.whatif.figures.model import Compared, Panel, Series

DATA_PARALLEL = (2, 4, 8, 16)
STAGES = 4
# System, GPUs at which the published ratios hold exactly, ratio of cost, ratio of power.
RATIOS = (("h200", 128, 4.27, 23.86), ("gb200", 512, 3.17, 15.44))
TOTALS = (
    (Kind.RAIL, "cost", 1.048, "M$"),
    (Kind.RAIL, "power", 32.92, "kW"),
    (Kind.PHOTONIC, "cost", 0.246, "M$"),
    (Kind.PHOTONIC, "power", 1.38, "kW"),
)
WITHIN = 2e-3  # what was published has three or four digits
KINDS = ((Kind.RAIL, "packet rail"), (Kind.PHOTONIC, "photonic rail"))


def sizes(system: str) -> list[int]:
    """GPUs of the figure's points: dp x 4 stages x one scale-up domain of tensor parallelism."""
    return [dp * STAGES * SYSTEMS[system].gpus_per_host for dp in DATA_PARALLEL]


def cost_panels() -> tuple[tuple[Panel, ...], tuple[Compared, ...]]:
    """Cost and power of both systems over their size, and the published totals and ratios."""
    panels = []
    for system in SYSTEMS:
        for what, unit in (("cost", "M$"), ("power", "kW")):
            series = tuple(
                Series(name, tuple(map(float, sizes(system))), tuple(_values(system, kind, what)))
                for kind, name in KINDS
            )
            title = f"{system.upper()}: {what} of the network"
            panels.append(Panel(title, "GPUs", f"{what} ({unit})", series, log_x=True, log_y=True))
    return tuple(panels), tuple(_compared())


def _values(system: str, kind: Kind, what: str) -> list[float]:
    return [_of(bill(kind, gpus, SYSTEMS[system]), what) for gpus in sizes(system)]


def _of(found: Bill, what: str) -> float:
    """Cost in millions of dollars, or power in kW."""
    return found.usd / 1e6 if what == "cost" else found.w / 1e3


def _compared() -> list[Compared]:
    found = [
        Compared(
            f"128 H200, {kind}: {what}", published, _of(bill(kind, 128, SYSTEMS["h200"]), what), unit, WITHIN
        )
        for kind, what, published, unit in TOTALS
    ]
    for system, gpus, cost, power in RATIOS:
        packet, optical = (bill(kind, gpus, SYSTEMS[system]) for kind, _ in KINDS)
        for what, published in (("cost", cost), ("power", power)):
            ours = _of(packet, what) / _of(optical, what)
            found.append(Compared(f"{gpus} {system.upper()}: ratio of {what}", published, ours, "", WITHIN))
    return found
