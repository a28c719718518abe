"""Replays a scenario with the published semantics: fast where that is exact, else event by event."""

from __future__ import annotations

from dataclasses import replace

from opus_sdn.whatif.inputs.hints import derive_hints
from opus_sdn.whatif.peer.exact import ExactEngine
from opus_sdn.whatif.peer.fast import FastEngine
from opus_sdn.whatif.peer.order import UnknownOrderError
from opus_sdn.whatif.peer.solve import Solver
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.scenario import Mode, Scenario


def new_memo() -> Solver:
    """What replays share: the rings that one has solved."""
    return Solver()


def replay(
    scenario: Scenario, *, exact: bool = False, spans: bool = False, memo: object | None = None
) -> Result:
    """The step's times. Raises CannotFinishError.

    Provisioned without hints, they are derived from an on-demand replay first, as the published tool does.
    `details["engine"]` says which engine it was, and `details["why"]` why the exact one had to do.
    """
    solver = memo if isinstance(memo, Solver) else Solver()
    if scenario.mode is Mode.PROVISION and scenario.hints is None:
        baseline = replay(replace(scenario, mode=Mode.ON_DEMAND), exact=exact, memo=solver)
        assert baseline.finished_communications is not None
        scenario = replace(scenario, hints=derive_hints(baseline.finished_communications))
    why = "it was asked for"
    if not exact:
        try:
            result = FastEngine(scenario, solver, spans=spans).run()
        except UnknownOrderError as error:
            why = str(error)
        else:
            result.details["engine"] = "fast"
            return result
    result = ExactEngine(scenario, spans=spans).run()
    result.details |= {"engine": "exact", "why": why}
    return result
