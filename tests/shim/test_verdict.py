"""What a refusal means for the rank."""

from __future__ import annotations

import pytest

from opus_sdn.intent.errors import STATUS, Problem
from opus_sdn.shim.errors import ControllerError
from opus_sdn.shim.verdict import Verdict, judge


def refused(problem: Problem) -> ControllerError:
    return ControllerError(problem.value, STATUS[problem], "for some reason")


@pytest.mark.parametrize(
    ("problem", "news", "verdict"),
    [
        (Problem.NOT_READY, 3, Verdict.TRY_AGAIN),
        (Problem.INTERNAL, 0, Verdict.TRY_AGAIN),
        (Problem.STALE_START, 3, Verdict.TRY_AGAIN),
        (Problem.UNROUTABLE, 3, Verdict.SPLIT),
        (Problem.UNROUTABLE, 1, Verdict.DROP),
        (Problem.UNKNOWN_CONNECTION, 1, Verdict.DROP),
        (Problem.LIMIT_EXCEEDED, 2, Verdict.SPLIT),
        (Problem.RELEASE_NOT_HELD, 1, Verdict.DROP),
        (Problem.BODY_TOO_LARGE, 900, Verdict.SPLIT),
        (Problem.UNROUTABLE, 0, Verdict.END),
        (Problem.STALE_INCARNATION, 3, Verdict.END),
        (Problem.UNKNOWN_JOB, 1, Verdict.END),
        (Problem.UNKNOWN_RANK, 2, Verdict.END),
        (Problem.RANK_LOST, 1, Verdict.END),
        (Problem.MALFORMED_JSON, 1, Verdict.END),
    ],
)
def test_a_refusal_is_judged_by_its_type_and_by_what_the_request_carried(
    problem: Problem, news: int, verdict: Verdict
) -> None:
    assert judge(refused(problem), news) is verdict


@pytest.mark.parametrize("status", [401, 403])
def test_without_permission_there_is_nothing_to_try_again(status: int) -> None:
    assert judge(ControllerError(f"http-{status}", status, "no"), 3) is Verdict.END


@pytest.mark.parametrize("status", [429, 500, 502, 504])
def test_a_tired_server_is_asked_again(status: int) -> None:
    assert judge(ControllerError(f"http-{status}", status, "no"), 3) is Verdict.TRY_AGAIN
