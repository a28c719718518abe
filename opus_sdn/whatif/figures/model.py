"""What a figure is before it is drawn: plain values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a panel. A `y` of None is a gap. A name that begins with "published" is drawn as marks."""

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes; labels carry units. With `bars`, x are positions, which `ticks` name.
    Logarithmic axes are linear near 0, so that 0 and what is below it have a place."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["line", "bars", "cdf"] = "line"
    log_x: bool = False
    log_y: bool = False
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Compared:
    """A published value and ours; `within` is the relative deviation that we promise, None: no claim."""

    what: str
    published: float | None
    ours: float | None
    unit: str
    within: float | None = None
    note: str = ""

    @property
    def deviation(self) -> float | None:
        """Ours over the published value, less 1."""
        if self.published is None or self.ours is None or self.published == 0:
            return None
        return self.ours / self.published - 1

    @property
    def holds(self) -> bool | None:
        """Whether the promise is kept; None where there is none."""
        if self.within is None:
            return None
        deviation = self.deviation
        return deviation is not None and abs(deviation) <= self.within

    def document(self) -> dict[str, Any]:
        """JSON-ready, with the verdict."""
        return asdict(self) | {"deviation": self.deviation, "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Figure:
    """Everything about one figure."""

    number: str
    title: str
    panels: tuple[Panel, ...]
    comparison: tuple[Compared, ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """JSON-ready: panels with their data, the comparison, notes."""
        return {
            "number": self.number,
            "title": self.title,
            "panels": [asdict(panel) for panel in self.panels],
            "comparison": [compared.document() for compared in self.comparison],
            "notes": list(self.notes),
        }
