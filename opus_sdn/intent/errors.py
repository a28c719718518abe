"""Everything the controller can refuse, by stable name. The API turns each into problem+json of that type."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Problem(StrEnum):
    """Stable error types; `STATUS` gives the HTTP status of each. Fatal ones fail the job's incarnation."""

    INVALID_REQUEST = "invalid-request"
    MALFORMED_JSON = "malformed-json"
    BODY_TOO_LARGE = "body-too-large"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    UNKNOWN_JOB = "unknown-job"
    UNKNOWN_RANK = "unknown-rank"
    UNKNOWN_PLACE = "unknown-place"
    UNKNOWN_GROUP = "unknown-group"
    UNKNOWN_CONNECTION = "unknown-connection"
    NOT_A_MEMBER = "not-a-member"
    PORTS_OVERLAP = "ports-overlap"
    JOB_CONFLICT = "job-conflict"
    GROUP_CONFLICT = "group-conflict"
    STALE_INCARNATION = "stale-incarnation"
    STALE_START = "stale-start"
    UNROUTABLE = "unroutable"
    RECEIVE_FROM_ANY = "receive-from-any"
    RELEASE_NOT_HELD = "release-not-held"
    LIMIT_EXCEEDED = "limit-exceeded"
    PRECONDITION_FAILED = "precondition-failed"
    PRECONDITION_REQUIRED = "precondition-required"
    PORT_IN_USE = "port-in-use"
    RETRY_BUDGET = "retry-budget"
    PORT_DRAINED = "port-drained"
    LOCKED = "locked"
    STALE_PLAN = "stale-plan"
    EVENTS_COMPACTED = "events-compacted"
    SWITCH_AWAY = "switch-away"
    NOT_READY = "not-ready"
    OVERLOADED = "overloaded"
    NOT_LEADER = "not-leader"
    INTERNAL = "internal-error"
    # Fatal: one of these ends the incarnation for every rank, with one cause.
    DIVERGED = "diverged"
    RUN_DEVIATION = "run-deviation"
    TAG_ORDER = "tag-order"
    DEADLINE = "deadline-exceeded"
    RANK_LOST = "rank-lost"
    OPERATION_FAILED = "operation-failed"
    ABORTED = "aborted"
    SUPERSEDED = "superseded"
    CONTROLLER_RESTARTED = "controller-restarted"


STATUS: dict[Problem, int] = {
    Problem.INVALID_REQUEST: 422,
    Problem.MALFORMED_JSON: 400,
    Problem.BODY_TOO_LARGE: 413,
    Problem.NOT_FOUND: 404,
    Problem.METHOD_NOT_ALLOWED: 405,
    Problem.UNKNOWN_JOB: 404,
    Problem.UNKNOWN_RANK: 422,
    Problem.UNKNOWN_PLACE: 422,
    Problem.UNKNOWN_GROUP: 404,
    Problem.UNKNOWN_CONNECTION: 404,
    Problem.NOT_A_MEMBER: 422,
    Problem.PORTS_OVERLAP: 409,
    Problem.JOB_CONFLICT: 409,
    Problem.GROUP_CONFLICT: 409,
    Problem.STALE_INCARNATION: 409,
    Problem.STALE_START: 409,
    Problem.UNROUTABLE: 422,
    Problem.RECEIVE_FROM_ANY: 422,
    Problem.RELEASE_NOT_HELD: 409,
    Problem.LIMIT_EXCEEDED: 422,
    Problem.PRECONDITION_FAILED: 412,
    Problem.PRECONDITION_REQUIRED: 428,
    Problem.PORT_IN_USE: 409,
    Problem.RETRY_BUDGET: 409,
    Problem.PORT_DRAINED: 409,
    Problem.LOCKED: 409,
    Problem.STALE_PLAN: 409,
    Problem.EVENTS_COMPACTED: 410,
    Problem.SWITCH_AWAY: 503,
    Problem.NOT_READY: 503,
    Problem.OVERLOADED: 503,
    Problem.NOT_LEADER: 307,
    Problem.INTERNAL: 500,
    Problem.DIVERGED: 409,
    Problem.RUN_DEVIATION: 409,
    Problem.TAG_ORDER: 409,
    Problem.DEADLINE: 409,
    Problem.RANK_LOST: 409,
    Problem.OPERATION_FAILED: 409,
    Problem.ABORTED: 409,
    Problem.SUPERSEDED: 409,
    Problem.CONTROLLER_RESTARTED: 409,
}


class CoreError(Exception):
    """A request that was refused; nothing of it was done. `data` names the fields and values concerned."""

    def __init__(self, problem: Problem, detail: str, **data: object) -> None:
        super().__init__(detail)
        self.problem = problem
        self.detail = detail
        self.data = data


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an incarnation ended badly; every rank gets this same cause. `rank` = whose fault, if known."""

    problem: Problem
    detail: str
    rank: int | None = None
    data: dict[str, object] = field(default_factory=dict)
