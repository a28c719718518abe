"""Replays a scenario with the published semantics: fast where that is exact, else event by event."""

from __future__ import annotations

from dataclasses import replace

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.hints import Hints, derive_hints
from opus_sdn.whatif.peer.causes import Causes
from opus_sdn.whatif.peer.exact import ExactEngine
from opus_sdn.whatif.peer.fast import FastEngine
from opus_sdn.whatif.peer.order import UnknownOrderError
from opus_sdn.whatif.peer.ranks import Ranks
from opus_sdn.whatif.peer.solve import Solver
from opus_sdn.whatif.result import Result
from opus_sdn.whatif.scenario import Mode, Scenario


class Memo:
    """What replays share: the rings that were solved, and the hints of the newest on-demand replay."""

    def __init__(self) -> None:
        self.solver = Solver()
        self._hints: tuple[tuple[object, ...], Hints] | None = None

    def keep(self, scenario: Scenario, result: Result) -> None:
        """Keep the hints that a finished on-demand replay yields."""
        if scenario.mode is Mode.ON_DEMAND and result.finished_communications is not None:
            self._hints = (self._key(scenario), derive_hints(result.finished_communications))

    def hints(self, scenario: Scenario) -> Hints | None:
        """The hints of the on-demand replay of this scenario, if it was the newest."""
        if self._hints is None or self._hints[0] != self._key(scenario):
            return None
        return self._hints[1]

    @staticmethod
    def _key(scenario: Scenario) -> tuple[object, ...]:
        return (
            scenario.trace,
            scenario.system,
            scenario.schedules,
            scenario.delay_ns,
            scenario.latency_ns,
        )


def new_memo() -> Memo:
    """A memo with nothing in it."""
    return Memo()


def replay(scenario: Scenario, *, exact: bool = False, memo: object | None = None) -> Result:
    """The step's times. Raises CannotFinishError.

    Provisioned without hints, they are derived from an on-demand replay first, as the published tool does.
    `details["engine"]` says which engine it was, and `details["why"]` why the exact one had to do.
    """
    if scenario.options:
        raise InputError("the published semantics have none", file="options", value=sorted(scenario.options))
    if any(group.folded > 1 for group in scenario.trace.groups):
        why = "the published semantics replay every rank: order among equal ranks decides there"
        raise InputError(why, file="trace", field="folded")
    shared = memo if isinstance(memo, Memo) else Memo()
    if scenario.mode is Mode.PROVISION and scenario.hints is None:
        hints = shared.hints(scenario)
        if hints is None:
            replay(replace(scenario, mode=Mode.ON_DEMAND), exact=exact, memo=shared)
            hints = shared.hints(scenario)
        scenario = replace(scenario, hints=hints)
    result = _replay(scenario, shared.solver, exact=exact)
    shared.keep(scenario, result)
    return result


def _replay(scenario: Scenario, solver: Solver, *, exact: bool) -> Result:
    why = "it was asked for"
    if not exact:
        try:
            engine: Ranks = FastEngine(scenario, solver)
            result = engine.run()
        except UnknownOrderError as error:
            why = str(error)
        else:
            return _finished(result, engine, solver, {"engine": "fast"})
    engine = ExactEngine(scenario)
    return _finished(engine.run(), engine, solver, {"engine": "exact", "why": why})


def _finished(result: Result, engine: Ranks, solver: Solver, details: dict[str, str]) -> Result:
    result.exposures = Causes(engine, solver).exposures()
    result.details = details | result.details
    return result
