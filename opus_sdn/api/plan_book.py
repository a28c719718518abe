"""Changes that were looked at: kept for a while, and applied only while what they were made on is current."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from opus_sdn.api import problems
from opus_sdn.api.documents import CrossConnectDocument, ReasonDocument
from opus_sdn.api.fabric_keeper import FabricKeeper
from opus_sdn.api.plan_documents import (
    BlockedDocument,
    ChangePlanDocument,
    ParentDocument,
    PlannedStepDocument,
    RefusalDocument,
)
from opus_sdn.api.plan_schemas import (
    AnyChange,
    CircuitChange,
    DrainChange,
    DropChange,
    FabricChange,
    JobChange,
    PlanRequest,
    UndrainChange,
)
from opus_sdn.intent import dry_run
from opus_sdn.intent.changes import DirectiveGiven, DirectiveKind, DirectiveWithdrawn
from opus_sdn.intent.directives import Operator
from opus_sdn.intent.dry_run import Outcome
from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import CrossConnect
from opus_sdn.reconciler.runs import rfc3339
from opus_sdn.reconciler.runtime import Runtime

logger = logging.getLogger(__name__)

PLANS_MAX = 64
LASTS_S = 3600.0


class PlanBook:
    """The plans of one term; those of earlier ones are shown, and are stale once their switches were read."""

    def __init__(self, runtime: Runtime, keeper: FabricKeeper, kept: Iterable[DirectiveGiven]) -> None:
        self._runtime = runtime
        self._keeper = keeper
        self._number = 0
        self._plans: dict[str, tuple[float, ChangePlanDocument]] = {}  # by id, oldest first
        for given in kept:
            if given.kind is DirectiveKind.PLAN:
                try:
                    document = ChangePlanDocument.model_validate(given.data["plan"])
                except ValidationError:
                    logger.warning("a stored plan cannot be read", extra={"plan": given.name})
                    continue
                self._plans[given.name] = (given.at, document)

    def kept(self) -> list[ChangePlanDocument]:
        """All that can still be asked for."""
        now = self._runtime.now()
        return [document for at, document in self._plans.values() if now < at + LASTS_S]

    def get(self, name: str) -> ChangePlanDocument:
        """One plan. CoreError `not-found`."""
        found = self._plans.get(name)
        if found is None or self._runtime.now() >= found[0] + LASTS_S:
            raise CoreError(
                Problem.NOT_FOUND,
                f"there is no plan {name!r}; plans are kept for {LASTS_S / 3600:g} h, the newest "
                f"{PLANS_MAX} of them",
                plan=name,
            )
        return found[1]

    async def make(self, request: PlanRequest) -> ChangePlanDocument:
        """Look at a change and keep what was seen. Raises CoreError for one that makes no sense at all."""
        runtime = self._runtime
        runtime.take_on()
        now = runtime.now()
        outcome = self._look(request.change, request.operator())
        self._number += 1
        name = f"{runtime.engine.state.start}-{self._number}"
        document = ChangePlanDocument(
            id=name,
            by=request.by,
            detail=request.detail,
            force=request.force,
            change=request.change,
            made_at=rfc3339(now),
            expires_at=rfc3339(now + LASTS_S),
            applied_at=None,
            parent=ParentDocument(fabric=self._keeper.generation, switches=outcome.generations),
            **_shown(outcome),
        )
        self._plans[name] = (now, document)
        over = [n for n, (at, _) in self._plans.items() if now >= at + LASTS_S]
        over += list(self._plans)[: max(0, len(self._plans) - len(over) - PLANS_MAX)]
        for old in dict.fromkeys(over):
            del self._plans[old]
        gone = [DirectiveWithdrawn(DirectiveKind.PLAN, old) for old in dict.fromkeys(over)]
        await runtime.record(_given(name, self._number, now, document), *gone)
        return document

    async def apply(self, name: str) -> ChangePlanDocument:
        """Do what was looked at. CoreError `stale-plan` unless it would do exactly the same now."""
        runtime = self._runtime
        runtime.take_on()
        document = self.get(name)
        who = Operator(document.by, document.detail, document.force)
        self._require_current(document, self._look(document.change, who))
        await self._do(document.change, who)
        now = runtime.now()
        made_at = self._plans[name][0]
        applied = document.model_copy(update={"applied_at": rfc3339(now)})
        self._plans[name] = (made_at, applied)
        await runtime.record(_given(name, self._number, made_at, applied))
        return applied

    def _require_current(self, document: ChangePlanDocument, outcome: Outcome) -> None:
        if document.applied_at is not None:
            raise _stale(document, f"was applied at {document.applied_at}")
        if document.parent.fabric != self._keeper.generation:
            raise _stale(
                document,
                f"was made when the fabric was at generation {document.parent.fabric}; it is at "
                f"{self._keeper.generation} now: plan again",
                fabric=self._keeper.generation,
            )
        for switch, generation in document.parent.switches.items():
            current = outcome.generations.get(switch)
            if current != generation:
                raise _stale(
                    document,
                    f"was made when switch {switch} was at generation {generation}; it is at {current} now: "
                    "plan again",
                    switch=switch,
                    generation=current,
                )
        seen = document.model_copy(update=_shown(outcome))
        if seen != document:
            different = [field for field in _SHOWN if getattr(seen, field) != getattr(document, field)]
            raise _stale(
                document,
                f"would do something else now ({', '.join(different)}): plan again",
                differs=different,
            )

    def _look(self, change: AnyChange, who: Operator) -> Outcome:
        runtime = self._runtime
        return runtime.engine.look(runtime.now(), _core_change(change), who)

    async def _do(self, change: AnyChange, who: Operator) -> None:
        """As the request for it would. CoreError when it is refused, as the plan has said."""
        engine, now = self._runtime.engine, self._runtime.now()
        match change:
            case DrainChange():
                engine.drain_port(now, change.port, who)
            case UndrainChange():
                engine.undrain_port(now, change.port, who)
            case CircuitChange():
                engine.want_circuit(now, change.a, change.b, who)
            case DropChange():
                engine.drop_circuit(now, change.circuit, who)
            case JobChange():
                engine.put_job(now, change.spec.spec(change.job), queue=change.spec.admission == "queue")
            case FabricChange():
                first = self._keeper.spec is None
                tag = None if first else self._keeper.etag
                await self._keeper.put(change.fabric, if_match=tag, dry_run=False)
                return
        await self._runtime.stored()


_SHOWN = ("steps", "disturbed", "blocked", "refusal")


def _shown(outcome: Outcome) -> dict[str, Any]:
    refusal = outcome.refusal
    return {
        "steps": [
            PlannedStepDocument(switch=step.switch, remove=_pairs(step.remove), add=_pairs(step.add))
            for step in outcome.steps
        ],
        "disturbed": list(outcome.disturbed),
        "blocked": [
            BlockedDocument(what=item.circuit, reason=ReasonDocument.of(item.because))
            for item in outcome.blocked
        ],
        "refusal": None
        if refusal is None
        else RefusalDocument(
            type=problems.type_of(refusal.problem), detail=refusal.detail, data=refusal.data
        ),
    }


def _pairs(pairs: Iterable[CrossConnect]) -> list[CrossConnectDocument]:
    return [CrossConnectDocument(ingress=pair.ingress, egress=pair.egress) for pair in pairs]


def _core_change(change: AnyChange) -> dry_run.Change:
    match change:
        case DrainChange():
            return dry_run.DrainPort(change.port)
        case UndrainChange():
            return dry_run.UndrainPort(change.port)
        case CircuitChange():
            return dry_run.KeepCircuit(change.a, change.b)
        case DropChange():
            return dry_run.DropCircuit(change.circuit)
        case JobChange():
            return dry_run.AdmitJob(change.spec.spec(change.job), queue=change.spec.admission == "queue")
        case FabricChange():
            return dry_run.ChangeFabric(change.fabric.build())


def _given(name: str, number: int, at: float, document: ChangePlanDocument) -> DirectiveGiven:
    data: dict[str, object] = {"by": document.by, "plan": document.model_dump(mode="json")}
    return DirectiveGiven(DirectiveKind.PLAN, name, number, at, data)


def _stale(document: ChangePlanDocument, why: str, **data: object) -> CoreError:
    return CoreError(Problem.STALE_PLAN, f"plan {document.id} {why}", plan=document.id, **data)
