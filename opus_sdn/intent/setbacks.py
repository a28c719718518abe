"""Needs whose step failed: whose fault it was, and when they are tried again.

One bad port must not fail the bulk step of everybody again and again. So those whose circuits are missing
after a refusal are planned apart: halves of halves, until the one that cannot be made is alone. Alone it gets
pauses that double; the others are made meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from opus_sdn.intent.causes import Cause, circuits_of
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.intent.job import JobCore
from opus_sdn.intent.model import CoreSettings
from opus_sdn.intent.planner import Want
from opus_sdn.intent.switches import FailureKind, Setback, Step, SwitchState

Waiting = Iterable[tuple[JobCore | None, str, Cause]]


def keep_to(switch: SwitchState, keys: Collection[str]) -> None:
    """Forget the setbacks of needs that are no more: a new need starts without a pause."""
    for key in [key for key in switch.setbacks if key not in keys]:
        del switch.setbacks[key]


def parked(now: float, switch: SwitchState, key: str) -> bool:
    """Whether a need still pauses."""
    setback = switch.setbacks.get(key)
    return setback is not None and now < setback.until


def groups(switch: SwitchState, wants: Iterable[Want]) -> list[frozenset[str]]:
    """Which needs go into one step together: all that never failed, and each group of suspects."""
    found: dict[tuple[int, int] | None, set[str]] = {}
    for want in wants:
        setback = switch.setbacks.get(want.key)
        found.setdefault(setback.group if setback is not None else None, set()).add(want.key)
    return [frozenset(keys) for keys in found.values()]


def forgive(switch: SwitchState, keys: Iterable[str]) -> None:
    """These were made: the next failure counts as the first."""
    for key in keys:
        switch.setbacks.pop(key, None)


def blame(
    settings: CoreSettings,
    now: float,
    switch: SwitchState,
    step: Step,
    waiting: Waiting,
    kind: FailureKind,
    failed: Mapping[CrossConnect, str],
) -> None:
    """A step failed and the switch was read. `failed`: pairs that the device named as failed, and why."""
    missing = {
        key: {pair for c in circuits_of(cause) if c.switch == step.switch for pair in c.cross_connects}
        - switch.matching
        for _, key, cause in waiting
    }
    forgive(switch, [key for key, pairs in missing.items() if not pairs])
    suspects = [key for key, pairs in missing.items() if pairs]
    if kind is FailureKind.TRANSIENT or (kind is FailureKind.AMBIGUOUS and _untouched(switch, step)):
        return  # the switch's own matter: it is left alone for a while, and nobody is to blame
    named = [key for key in suspects if not missing[key].isdisjoint(failed)]
    if named:
        forgive(switch, [key for key in suspects if key not in named])
    alone = named if named else suspects if len(suspects) == 1 else []
    if alone:
        for index, key in enumerate(alone):
            times = switch.setbacks[key].times if key in switch.setbacks else 0
            pause_s = min(settings.retry_max_s, settings.retry_min_s * 2.0 ** min(times, 30))
            switch.setbacks[key] = Setback(times + 1, now + pause_s, (step.id, index))
        return
    half = len(suspects) // 2
    for index, key in enumerate(suspects):
        times = switch.setbacks[key].times if key in switch.setbacks else 0
        switch.setbacks[key] = Setback(times, now, (step.id, int(index >= half)))


def _untouched(switch: SwitchState, step: Step) -> bool:
    """Whether nothing of the step was done."""
    return switch.matching.isdisjoint(step.add) and switch.matching.issuperset(step.remove)
