"""What a refusal of a rank's request means: wait, find the culprit, drop one piece of news, or end."""

from __future__ import annotations

from enum import Enum, auto

from opus_sdn.intent.errors import Problem
from opus_sdn.shim.errors import ControllerError

# Refusals that concern the whole rank, or its job, and not one piece of its news.
FATAL = frozenset(
    {
        Problem.STALE_INCARNATION,
        Problem.SUPERSEDED,
        Problem.UNKNOWN_JOB,
        Problem.UNKNOWN_RANK,
        Problem.DIVERGED,
        Problem.RUN_DEVIATION,
        Problem.TAG_ORDER,
        Problem.DEADLINE,
        Problem.RANK_LOST,
        Problem.OPERATION_FAILED,
        Problem.ABORTED,
        Problem.CONTROLLER_RESTARTED,
    }
)
_ELSEWHERE = frozenset({Problem.STALE_START, Problem.NOT_LEADER})  # another start or controller takes it
_ABOUT_NEWS = (404, 409, 413, 422)  # statuses of refusals that may be about one piece of news


class Verdict(Enum):
    """What to do about a refused request."""

    TRY_AGAIN = auto()  # it passes by itself, or with the controller's new start number
    SPLIT = auto()  # one of several pieces of news is to blame: say them one by one
    DROP = auto()  # the only piece of news is to blame
    END = auto()  # the job is over for this rank


def judge(refused: ControllerError, news: int) -> Verdict:
    """The verdict on a refusal of a request that carried so many pieces of news."""
    if refused.status >= 500 or refused.status == 429 or refused.problem in _ELSEWHERE:
        return Verdict.TRY_AGAIN
    if refused.problem in FATAL or refused.status not in _ABOUT_NEWS or not news:
        return Verdict.END
    return Verdict.DROP if news == 1 else Verdict.SPLIT
