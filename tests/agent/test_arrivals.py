"""How the news of a host's ranks become few requests, against a controller that answers as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from opus_sdn.agent.arrivals import Arrivals, is_of_one_rank
from opus_sdn.agent.checkins import CheckIns
from opus_sdn.agent.upstream import Answer, UpstreamGoneError

JOB = ("host:1", "job", "")


class Controller:
    """Answers a request when all it was told to wait for is there; says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.grants: dict[int, list[dict[str, Any]]] = {}
        self.refuses: Callable[[dict[str, Any]], bool] = lambda body: False
        self.gone = False
        self.newest: dict[int, int] = {}  # number of the newest poll of each rank, which ends its older ones

    async def send(self, content: bytes, wait_s: float) -> Answer:
        body = json.loads(content)
        self.asked.append(body)
        if self.gone:
            raise UpstreamGoneError("away")
        if self.refuses(body):
            return Answer(409, "application/problem+json", b'{"type": "x", "of": %d}' % len(body["ranks"]))
        ranks = [entry["rank"] for entry in body["ranks"]]
        number = len(self.asked)
        if wait_s:
            self.newest |= dict.fromkeys(ranks, number)
        end = asyncio.get_running_loop().time() + wait_s
        await until(
            lambda: (
                any(self.grants.get(rank) for rank in ranks)
                or any(self.newest.get(rank, 0) > number for rank in ranks)
                or asyncio.get_running_loop().time() >= end
            )
        )
        ended = wait_s and any(self.newest[rank] > number for rank in ranks)
        entries = [{"rank": rank, "grants": [] if ended else self.grants.pop(rank, [])} for rank in ranks]
        return Answer(200, "application/json", json.dumps({"start": 1, "ranks": entries}).encode())

    def grant(self, *ranks: int) -> None:
        for rank in ranks:
            self.grants[rank] = [{"no": 1}]


def said(rank: int, wait_s: float = 60.0, **news: Any) -> dict[str, Any]:
    return {
        "incarnation": 1,
        "seen_start": 1,
        "wait_s": wait_s,
        "ranks": [{"rank": rank, "last_grant": 0, **news}],
    }


def run(main: Callable[[Arrivals, Controller], Coroutine[Any, Any, None]]) -> None:
    async def with_both() -> None:
        await asyncio.wait_for(main(Arrivals(), Controller()), 50)

    asyncio.run(with_both())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what it looks at knows of no event
        await asyncio.sleep(0.001)


def entry(answer: Answer) -> dict[str, Any]:
    (found,) = json.loads(answer.body)["ranks"]
    assert isinstance(found, dict)
    return found


def test_ranks_that_speak_together_are_one_request_and_each_gets_its_own_answer() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        controller.grants = {0: [{"no": 5}], 1: [{"no": 7}]}
        asking = [arrivals.ask(JOB, said(rank, arrivals=[{"n": rank}]), controller.send) for rank in (0, 1)]
        answers = await asyncio.gather(*asking)
        assert [entry(answer) for answer in answers] == [
            {"rank": 0, "grants": [{"no": 5}]},
            {"rank": 1, "grants": [{"no": 7}]},
        ]
        (body,) = controller.asked
        assert [(one["rank"], one["arrivals"]) for one in body["ranks"]] == [(0, [{"n": 0}]), (1, [{"n": 1}])]

    run(main)


def test_who_waits_goes_on_waiting_when_another_gets_its_grant_and_says_nothing_twice() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        asking = {
            rank: asyncio.ensure_future(arrivals.ask(JOB, said(rank, arrivals=[{"n": 0}]), controller.send))
            for rank in (0, 1)
        }
        await until(lambda: len(controller.asked) == 1)
        controller.grant(1)
        assert entry(await asking[1])["grants"] == [{"no": 1}]
        assert not asking[0].done()
        await until(lambda: len(controller.asked) == 2)
        assert controller.asked[1]["ranks"] == [{"rank": 0, "last_grant": 0}]
        controller.grant(0)
        assert entry(await asking[0])["grants"] == [{"no": 1}]

    run(main)


def test_a_rank_that_comes_later_makes_one_poll_of_all_who_wait() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        first = asyncio.ensure_future(arrivals.ask(JOB, said(0), controller.send))
        await until(lambda: len(controller.asked) == 1)
        second = asyncio.ensure_future(arrivals.ask(JOB, said(1, releases=[{"n": 3}]), controller.send))
        await until(lambda: len(controller.asked) == 2)
        assert controller.asked[1]["ranks"] == [
            {"rank": 0, "last_grant": 0},
            {"rank": 1, "last_grant": 0, "releases": [{"n": 3}]},
        ]
        controller.grant(0, 1)
        await asyncio.gather(first, second)

    run(main)


def test_a_request_that_does_not_wait_is_answered_at_once_beside_the_poll() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        poll = asyncio.ensure_future(arrivals.ask(JOB, said(0), controller.send))
        await until(lambda: len(controller.asked) == 1)
        news = await arrivals.ask(JOB, said(0, wait_s=0, releases=[{"n": 1}]), controller.send)
        assert entry(news) == {"rank": 0, "grants": []}
        assert controller.asked[1]["wait_s"] == 0
        assert not poll.done()
        controller.grant(0)
        await poll

    run(main)


def test_a_rank_that_has_more_to_say_at_once_is_answered_each_time_and_in_order() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        said_now = [said(0, wait_s=0, releases=[{"n": n}]) for n in range(3)]
        answers = await asyncio.gather(*(arrivals.ask(JOB, each, controller.send) for each in said_now))
        assert [answer.status for answer in answers] == [200, 200, 200]
        assert [body["ranks"][0]["releases"] for body in controller.asked] == [[{"n": n}] for n in range(3)]

    run(main)


def test_a_newer_request_of_a_rank_ends_its_older_one() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        older = asyncio.ensure_future(arrivals.ask(JOB, said(0, arrivals=[{"n": 1}]), controller.send))
        newer = asyncio.ensure_future(arrivals.ask(JOB, said(0, arrivals=[{"n": 2}]), controller.send))
        await until(lambda: len(controller.asked) == 2)
        assert [body["ranks"][0]["arrivals"] for body in controller.asked] == [[{"n": 1}], [{"n": 2}]]
        controller.grant(0)
        await asyncio.gather(older, newer)

    run(main)


def test_a_wait_that_is_over_is_answered_with_what_the_controller_said_then() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        answer = await arrivals.ask(JOB, said(0, wait_s=0.05), controller.send)
        assert entry(answer) == {"rank": 0, "grants": []}
        assert len(controller.asked) >= 1

    run(main)


def test_where_the_controller_is_silent_so_is_the_agent() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        controller.gone = True
        asking = [
            arrivals.ask(JOB, said(rank, wait_s=wait), controller.send) for rank, wait in ((0, 60), (1, 0))
        ]
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [UpstreamGoneError, UpstreamGoneError]

    run(main)


def test_a_refusal_of_all_becomes_each_ranks_own_answer() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        controller.refuses = lambda body: any(one["rank"] == 1 for one in body["ranks"])
        controller.grants = {0: [{"no": 1}]}
        good, bad = await asyncio.gather(
            *(arrivals.ask(JOB, said(rank, arrivals=[{"n": 0}]), controller.send) for rank in (0, 1))
        )
        assert (good.status, bad.status) == (200, 409)
        assert json.loads(bad.body)["of"] == 1

    run(main)


def test_jobs_and_incarnations_do_not_share_requests() -> None:
    async def main(arrivals: Arrivals, controller: Controller) -> None:
        other = {**said(0, wait_s=0), "incarnation": 2}
        await asyncio.gather(
            arrivals.ask(JOB, said(0, wait_s=0), controller.send),
            arrivals.ask(JOB, other, controller.send),
            arrivals.ask(("host:1", "other", ""), said(0, wait_s=0), controller.send),
        )
        assert len(controller.asked) == 3

    run(main)


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (said(0), True),
        ({**said(0), "ranks": []}, False),
        ({**said(0), "wait_s": True}, False),
        ({**said(0), "ranks": [{"rank": "0"}]}, False),
        ([], False),
    ],
)
def test_only_a_ranks_own_news_are_put_together(body: object, want: bool) -> None:
    assert is_of_one_rank(body) is want


def test_a_group_that_all_ranks_check_in_is_said_once() -> None:
    async def main() -> None:
        asked: list[dict[str, Any]] = []

        async def send(content: bytes, wait_s: float) -> Answer:
            body = json.loads(content)
            asked.append(body)
            groups = [{"name": group["name"], "domain": "scale-out"} for group in body["groups"]]
            return Answer(200, "application/json", json.dumps({"groups": groups}).encode())

        check_ins = CheckIns()
        bodies = [{"incarnation": 1, "groups": [{"name": name}]} for name in ("a", "b", "a", "a")]
        answers = await asyncio.gather(*(check_ins.ask(JOB, body, send) for body in bodies))
        names = [[group["name"] for group in json.loads(answer.body)["groups"]] for answer in answers]
        assert names == [["a"], ["b"], ["a"], ["a"]]
        assert [[group["name"] for group in body["groups"]] for body in asked] == [["a", "b"]]
        # who does not agree on what a group is gets the controller's own words
        await asyncio.gather(
            check_ins.ask(JOB, {"incarnation": 1, "groups": [{"name": "a", "ranks": [0]}]}, send),
            check_ins.ask(JOB, {"incarnation": 1, "groups": [{"name": "a", "ranks": [1]}]}, send),
        )
        assert len(asked) == 3

    asyncio.run(main())
