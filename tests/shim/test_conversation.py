"""What one rank has said and heard: order, repeats, gaps and restarts, with no clock and no socket."""

from __future__ import annotations

import random
from typing import Any

import pytest

from opus_sdn.intent.model import CutRequest, Grant, Stream
from opus_sdn.shim.conversation import (
    ALARMS_MAX,
    NEWS_PER_REQUEST_MAX,
    Alarm,
    Answer,
    Conversation,
    JobFailure,
    Letter,
)

RING = Stream("ring")
MESSAGES = Stream("g:0-1", 0, 1)


def granted(*numbers: int, stream: Stream = RING, start: int = 1) -> Answer:
    """Grants whose number is one more than their operation's n."""
    return Answer(start, tuple(Grant(no, stream, no - 1, 1) for no in numbers))


def talk_with(arrivals: int, stream: Stream = RING) -> Conversation:
    talk = Conversation(rank=0, start=1)
    for n in range(arrivals):
        talk.arrive(stream, n)
    return talk


def said(letter: Letter, kind: str = "arrivals") -> list[int]:
    return [fields["n"] for fields in letter.says.get(kind, [])]


def test_grants_are_handed_on_in_the_order_of_their_numbers_and_a_gap_is_waited_for() -> None:
    talk = talk_with(4)
    assert talk.answered(talk.compose(), granted(2, 4)).grants == ()
    assert [g.n for g in talk.answered(talk.compose(), granted(1)).grants] == [0, 1]
    assert talk.last_grant == 2
    assert [g.n for g in talk.answered(talk.compose(), granted(3)).grants] == [2, 3]
    assert talk.compose().says["last_grant"] == 4


def test_a_grant_that_comes_again_is_not_handed_on_again() -> None:
    talk = talk_with(2)
    assert len(talk.answered(talk.compose(), granted(1)).grants) == 1
    assert [g.n for g in talk.answered(talk.compose(), granted(1, 2)).grants] == [1]
    assert talk.answered(talk.compose(), granted(1, 2)).grants == ()
    assert talk.holding == 2
    assert talk._early == {}  # nor is it kept


def test_an_alarm_is_handed_on_once_and_again_when_it_is_back() -> None:
    talk = talk_with(1)
    here, there = Alarm("a--b", "ocs0"), Alarm("c--d", "ocs0")
    told = [(), (here,), (here,), (here, there), (there,), (here, there), ()]
    heard = [talk.answered(talk.compose(), Answer(1, alarms=alarms)).alarms for alarms in told]
    assert heard == [(), (here,), (), (there,), (), (here,), ()]


def test_a_flood_of_alarms_is_cut() -> None:
    talk = talk_with(1)
    flood = tuple(Alarm(f"{i}", "ocs0") for i in range(1000))
    assert len(talk.answered(talk.compose(), Answer(1, alarms=flood)).alarms) == ALARMS_MAX


def test_a_grant_for_what_was_never_asked_for_counts_but_is_not_handed_on() -> None:
    talk = talk_with(1)
    stranger = Answer(1, (Grant(1, Stream("other"), 0, 1), Grant(2, RING, 0, 1)))
    assert [g.stream for g in talk.answered(talk.compose(), stranger).grants] == [RING]
    assert talk.last_grant == 2


def test_news_are_repeated_until_a_request_with_them_has_been_answered() -> None:
    talk = talk_with(1)
    first = talk.compose()
    talk.arrive(RING, 1)
    second = talk.compose()
    assert (said(first), said(second)) == ([0], [0, 1])
    talk.lost(first)
    assert not talk.has_news  # the second one still carries it
    talk.lost(second)
    assert talk.has_news
    third = talk.compose()
    assert said(third) == [0, 1]
    talk.answered(third, Answer(1))
    assert not talk.has_news
    assert said(talk.compose()) == []
    assert talk.waiting == 2


def test_a_request_has_room_for_so_much_and_the_rest_waits_for_its_answer() -> None:
    talk = talk_with(NEWS_PER_REQUEST_MAX + 5)
    letter = talk.compose()
    assert len(said(letter)) == NEWS_PER_REQUEST_MAX
    assert not talk.has_news
    talk.answered(letter, Answer(1))
    assert talk.has_news
    assert said(talk.compose()) == list(range(NEWS_PER_REQUEST_MAX, NEWS_PER_REQUEST_MAX + 5))


def test_releases_are_said_in_the_order_of_their_stream_whichever_finishes_first() -> None:
    talk = talk_with(3)
    talk.arrive(MESSAGES, 0)
    talk.answered(talk.compose(), granted(1, 2, 3))
    talk.answered(talk.compose(), Answer(1, (Grant(4, MESSAGES, 0, 1),)))
    talk.release(RING, 1)
    assert not talk.has_news
    talk.release(MESSAGES, 0)
    (release,) = talk.compose().says["releases"]
    assert release == {"connection": "g:0-1", "n": 0, "source": 0, "destination": 1}
    talk.release(RING, 0)
    assert [(r["connection"], r["n"]) for r in talk.compose().says["releases"]] == [
        ("g:0-1", 0),
        ("ring", 0),
        ("ring", 1),
    ]
    assert talk.holding == 1


def test_a_run_longer_than_one_is_held_and_released_as_one() -> None:
    talk = talk_with(1)
    talk.answered(talk.compose(), Answer(1, (Grant(1, RING, 0, 3),)))
    talk.arrive(RING, 3)
    talk.release(RING, 0)
    letter = talk.compose()
    assert letter.says["releases"] == [{"connection": "ring", "n": 0, "length": 3}]
    talk.answered(letter, Answer(1, (Grant(2, RING, 3, 1),)))
    talk.release(RING, 3)
    assert said(talk.compose(), "releases") == [3]


def test_the_answer_of_an_older_start_is_void() -> None:
    talk = talk_with(1)
    before = talk.compose()
    assert talk.restarted(2)
    assert talk.answered(before, granted(1, start=1)).grants == ()
    assert talk.last_grant == 0
    after = talk.compose()
    assert (after.start, said(after)) == (2, [0])
    assert len(talk.answered(after, granted(1, start=2)).grants) == 1


def test_a_restarted_controller_is_told_all_open_arrivals_again() -> None:
    talk = talk_with(3)
    talk.answered(talk.compose(), granted(1))
    assert said(talk.compose()) == []
    assert talk.restarted(2)
    assert not talk.restarted(2)
    session = talk.compose().says["session"]
    assert [fields["n"] for fields in session["open"]] == [1, 2]


def test_an_answer_of_a_newer_start_confirms_nothing_of_what_the_older_was_told() -> None:
    talk = talk_with(1)
    heard = talk.answered(talk.compose(), granted(1, start=2))
    assert (heard.grants, heard.restarted) == ((), True)
    assert said(talk.compose()) == [0]


def test_a_failure_is_handed_on_once() -> None:
    talk = talk_with(1)
    failure = JobFailure("rank-lost", "rank 1 died", 1)
    letters = [talk.compose(), talk.compose()]
    assert talk.answered(letters[0], Answer(1, failure=failure)).failure == failure
    assert talk.answered(letters[1], Answer(1, failure=failure)).failure is None


def test_that_the_host_waits_is_said_with_the_next_request_and_is_not_worth_one() -> None:
    talk = talk_with(1)
    first = talk.compose()
    talk.block(RING, 0)
    assert not talk.has_news
    talk.answered(first, Answer(1))
    second = talk.compose()
    assert second.says["arrivals"] == [{"connection": "ring", "n": 0, "blocking": True}]
    talk.answered(second, Answer(1))
    talk.block(RING, 0)
    assert said(talk.compose()) == []


def test_a_rank_that_hints_says_at_once_that_its_host_waits() -> None:
    talk = talk_with(1)
    talk.hint(MESSAGES, 0)
    talk.answered(talk.compose(), Answer(1))
    assert not talk.has_news
    talk.block(RING, 0)
    assert talk.has_news
    letter = talk.compose()
    assert letter.says["arrivals"] == [{"connection": "ring", "n": 0, "blocking": True}]
    talk.answered(letter, Answer(1))
    talk.block(RING, 0)
    assert not talk.has_news


def test_a_refused_arrival_is_forgotten_and_the_others_are_still_said() -> None:
    talk = talk_with(1)
    talk.arrive(MESSAGES, 0, tag=7)
    only_first = talk.compose(most=1)
    talk.refused(only_first)
    rest = talk.compose()
    assert rest.says["arrivals"] == [{"connection": "g:0-1", "n": 0, "source": 0, "destination": 1, "tag": 7}]
    assert talk.waiting == 1


def test_operations_of_a_stream_are_arrived_at_one_after_the_other() -> None:
    talk = talk_with(1)
    with pytest.raises(ValueError, match=r"ring#2: the next operation of this stream is 1"):
        talk.arrive(RING, 2)
    with pytest.raises(ValueError, match="does not hold it"):
        talk.release(RING, 0)


def test_leaving_is_said_with_the_last_news() -> None:
    talk = talk_with(1)
    talk.answered(talk.compose(), granted(1))
    talk.release(RING, 0)
    says = talk.compose(leave=True).says
    assert says == {
        "rank": 0,
        "last_grant": 1,
        "releases": [{"connection": "ring", "n": 0}],
        "leave": True,
    }


class _Controller:
    """A controller that answers requests late, twice, out of order or not at all."""

    def __init__(self) -> None:
        self.arrived = 0
        self.released = 0
        self.grants: list[Grant] = []

    def take(self, says: dict[str, Any]) -> Answer:
        for fields in says.get("arrivals", []):
            if fields["n"] == self.arrived:
                self.arrived += 1
                self.grants.append(Grant(len(self.grants) + 1, RING, fields["n"], 1))
            assert fields["n"] < self.arrived, "an arrival came before the one it follows"
        for fields in says.get("releases", []):
            assert fields["n"] <= self.released, "a release came before the one it follows"
            self.released = max(self.released, fields["n"] + 1)
        return Answer(1, tuple(g for g in self.grants if g.no > says["last_grant"]))


@pytest.mark.parametrize("seed", range(30))
def test_whatever_gets_lost_or_overtakes_every_operation_is_granted_once_and_released(seed: int) -> None:
    chance = random.Random(seed)
    talk, controller = Conversation(0, 1), _Controller()
    to_say, wanted = 0, 40
    under_way: list[Letter] = []
    done: list[int] = []
    for _ in range(20_000):
        if len(done) == wanted and not talk.untold and not under_way:
            break
        if to_say < wanted and chance.random() < 0.3:
            talk.arrive(RING, to_say)
            to_say += 1
        if len(under_way) < 4 and (talk.has_news or not under_way):
            under_way.append(talk.compose())
        letter = under_way.pop(chance.randrange(len(under_way)))
        fate = chance.random()
        if fate < 0.2:
            talk.lost(letter)  # it never came there
            continue
        answer = controller.take(letter.says)
        if fate < 0.4:
            talk.lost(letter)  # its answer was lost
            continue
        for grant in talk.answered(letter, answer).grants:
            done.append(grant.n)
            talk.release(RING, grant.n)
    assert done == list(range(wanted))
    assert controller.released == wanted
    assert (talk.waiting, talk.holding, talk.untold) == (0, 0, 0)


def test_a_hint_goes_with_the_release_and_is_said_once() -> None:
    talk = talk_with(1)
    talk.answered(talk.compose(), granted(1))
    talk.release(RING, 0)
    assert talk.hint(MESSAGES, 0)
    letter = talk.compose()
    assert letter.says["hints"] == [{"connection": "g:0-1", "source": 0, "destination": 1, "n": 0}]
    assert said(letter, "releases") == [0]
    talk.answered(letter, Answer(1))
    assert not talk.hint(MESSAGES, 0), "it is known"
    assert "hints" not in talk.compose().says
    assert not talk.has_news


def test_only_the_newest_hint_is_said_and_none_for_what_has_arrived() -> None:
    talk = talk_with(1)
    talk.answered(talk.compose(), Answer(1))  # the session is known
    talk.hint(MESSAGES, 0)
    talk.hint(RING, 1)
    assert [hint["connection"] for hint in talk.compose().says["hints"]] == ["ring"]
    talk.arrive(RING, 1)
    letter = talk.compose()
    assert said(letter) == [1]
    assert "hints" not in letter.says
    assert not talk.hint(RING, 0), "operation 0 has arrived long ago"


def test_a_hint_whose_request_was_lost_is_said_again() -> None:
    talk = talk_with(0)
    talk.answered(talk.compose(), Answer(1))  # the session is known
    talk.hint(RING, 0)
    talk.lost(talk.compose())
    assert talk.has_news
    assert said(talk.compose(), "hints") == [0]


def test_a_farewell_is_said_with_the_last_news_and_not_before() -> None:
    talk = talk_with(NEWS_PER_REQUEST_MAX + 5)
    first = talk.compose(leave=True)
    assert (first.is_farewell, "leave" in first.says) == (False, False)
    talk.answered(first, Answer(1))
    last = talk.compose(leave=True)
    assert (last.is_farewell, last.says["leave"], len(said(last))) == (True, True, 5)


# --- runs of several operations


def holding(length: int = 4) -> Conversation:
    """A rank that holds a run from operation 0 of the ring, of which it has arrived at the first two."""
    talk = Conversation(rank=0, start=1)
    talk.arrive(RING, 0, closed=length, quiet=2)
    talk.arrive(RING, 1)
    assert talk.compose().says["arrivals"][0] == {"connection": "ring", "n": 0, "closed": length, "quiet": 2}
    talk.answered(talk.compose(), Answer(1, (Grant(1, RING, 0, length),)))
    return talk


def told(length: int | None, start: int = 1) -> Answer:
    return Answer(start, cuts=(CutRequest(RING, 0, length),))


def test_a_grant_takes_the_arrivals_that_it_covers_and_the_next_one_follows_on_it() -> None:
    talk = holding()
    assert (talk.waiting, talk.holding, talk.listens) == (0, 1, True)
    assert talk.compose().says.get("arrivals") is None
    with pytest.raises(ValueError, match="the next operation of this stream is 4"):
        talk.arrive(RING, 2)
    talk.arrive(RING, 4)
    talk.release(RING, 0)
    assert talk.compose().says["releases"] == [{"connection": "ring", "n": 0, "length": 4}]


def test_an_offer_is_only_ever_made_smaller_and_only_while_it_is_open() -> None:
    talk = Conversation(rank=0, start=1)
    talk.arrive(RING, 0, closed=4, quiet=3, tag=7)
    talk.answered(talk.compose(), Answer(1))
    talk.offer(RING, 0, 9, 9)
    assert not talk.has_news
    talk.offer(RING, 0, 9, 1)
    assert talk.has_news
    assert talk.compose().says["arrivals"] == [{"connection": "ring", "n": 0, "tag": 7, "closed": 4}]
    talk.answered(talk.compose(), granted(1))
    talk.offer(RING, 0, 1, 1)
    assert not talk.has_news


def test_a_host_that_blocks_is_news_while_a_run_is_held() -> None:
    for length, urgent in ((1, False), (4, True)):
        talk = Conversation(rank=0, start=1)
        talk.arrive(RING, 0, quiet=length)
        talk.answered(talk.compose(), Answer(1, (Grant(1, RING, 0, length),)))
        talk.arrive(MESSAGES, 0)
        talk.answered(talk.compose(), Answer(1))
        talk.block(MESSAGES, 0)
        assert talk.has_news is urgent


def test_a_cut_is_said_until_it_is_answered_and_its_end_is_handed_on_once() -> None:
    talk = holding()
    talk.cut(RING, 0, 2)
    letter = talk.compose()
    assert letter.says["cut"] == [{"connection": "ring", "n": 0, "issued": 2}]
    talk.lost(letter)
    assert talk.has_news
    letter = talk.compose()
    assert talk.answered(letter, told(None)).cuts == (), "it has said so"
    assert talk.answered(talk.compose(), told(3)).cuts == (CutRequest(RING, 0, 3),)
    assert talk.compose().says["cut"] == [{"connection": "ring", "n": 0, "issued": 2, "length": 3}]
    assert talk.answered(talk.compose(), told(3)).cuts == ()
    talk.cut(RING, 0, 3)
    assert talk.compose().says["cut"] == [{"connection": "ring", "n": 0, "issued": 3, "length": 3}]
    talk.cut(RING, 0, 3)
    talk.arrive(RING, 3)
    talk.release(RING, 0)
    says = talk.compose().says
    assert says["releases"] == [{"connection": "ring", "n": 0, "length": 3}]
    assert "cut" not in says, "nobody needs to know any more"


def test_a_question_is_handed_on_until_it_is_answered() -> None:
    talk = holding()
    for _ in range(2):
        assert talk.answered(talk.compose(), told(None)).cuts == (CutRequest(RING, 0, None),)
        assert talk.asked
    talk.cut(RING, 0, 4)
    assert not talk.asked
    talk.release(RING, 0)
    assert talk.answered(talk.compose(), told(None)).cuts == (), "the run is over for this rank"
    talk.cut(RING, 0, 4)
    assert "cut" not in talk.compose().says


def test_a_new_start_hears_with_the_session_how_far_this_rank_is_in_runs_that_are_cut() -> None:
    talk = holding()
    talk.answered(talk.compose(), told(None))
    talk.cut(RING, 0, 2)
    talk.answered(talk.compose(), Answer(1))
    assert talk.restarted(2)
    assert not talk.asked
    says = talk.compose().says
    assert says["cut"] == [{"connection": "ring", "n": 0, "issued": 2}]
    assert says["session"]["held"] == [{"no": 1, "connection": "ring", "n": 0, "length": 4}]
    talk.answered(talk.compose(), told(2, start=2))
    talk.restarted(3)
    says = talk.compose().says
    assert says["cut"] == [{"connection": "ring", "n": 0, "issued": 2, "length": 2}]
    assert says["session"]["held"] == [{"no": 1, "connection": "ring", "n": 0, "length": 2}]
    assert says["session"]["marks"] == [{"connection": "ring", "granted": 2, "released": 0}]
