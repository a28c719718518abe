"""The published figures, computed anew: data, what is to be drawn, and a comparison with what was published.

Numbers are those of the published artifact. The paper's first version numbers some of them otherwise: its
cost figure is 14.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.figures.model import Compared, Figure, Panel, Series

Done = Callable[[int, int], None]

# Each module has `run(*, quick: bool, jobs: int | None, done: Done | None) -> Figure`.
FIGURES: dict[str, str] = {
    "minimal": "opus_sdn.whatif.figures.minimal",
    "4": "opus_sdn.whatif.figures.f04",
    "5": "opus_sdn.whatif.figures.f05",
    "9": "opus_sdn.whatif.figures.f09",
    "12": "opus_sdn.whatif.figures.f12",
    "13": "opus_sdn.whatif.figures.f13",
    "14": "opus_sdn.whatif.figures.f14",
    "15": "opus_sdn.whatif.figures.f15",
}

__all__ = ["FIGURES", "Compared", "Done", "Figure", "Panel", "Series", "run_figure"]


def run_figure(
    number: str,
    *,
    quick: bool = False,
    jobs: int | None = None,
    done: Done | None = None,
    parameters: Path | None = None,
) -> Figure:
    """Compute a figure; `quick` with fewer points. `done(finished, all)` is called on the way.

    `parameters` is a file for the figures that have one. Raises InputError, also for a number that is none
    of FIGURES.
    """
    if number not in FIGURES:
        raise InputError(f"figures are {', '.join(FIGURES)}", file="figure", field="number", value=number)
    module = importlib.import_module(FIGURES[number])
    more: dict[str, Path] = {}
    if parameters is not None:
        if not hasattr(module, "Parameters"):
            raise InputError(f"figure {number} has no parameter file", file=parameters)
        more["parameters"] = parameters
    figure: Figure = module.run(quick=quick, jobs=jobs, done=done, **more)
    return figure
