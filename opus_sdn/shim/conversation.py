"""What one rank has said to the controller and heard from it, as a pure state machine: no socket, no clock.

News stay in every request until one that carried them has been answered: requests overtake each other on two
connections, replies get lost, and the controller answers repeats from memory. Grants are handed on exactly
once, in the order of their numbers; a gap is waited for. Answers of an older controller start are void.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple

from opus_sdn.intent.model import CutRequest, Grant, Stream

NEWS_PER_REQUEST_MAX = 1000  # keeps a request under the 256 KiB that the controller takes from a rank
EARLY_GRANTS_MAX = 8192  # beyond a gap; twice the arrivals that the controller lets a rank have open
ALARMS_MAX = 16  # of one answer; a controller of this version sends no more


class Kind(StrEnum):
    """What a piece of news is about: the name of its list in a request."""

    ARRIVAL = "arrivals"
    RELEASE = "releases"
    HINT = "hints"
    CUT = "cut"


class Subject(NamedTuple):
    """The name of a piece of news: an arrival, a release, a hint, or how far this rank is in a cut run."""

    kind: Kind
    stream: Stream
    n: int


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why the incarnation ended, as the controller told it; the type is text, for later kinds to pass."""

    problem: str
    detail: str
    rank: int | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Alarm:
    """A circuit that this rank holds is gone or dark, as `switch` says."""

    circuit: str
    switch: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One rank's part of an answer, and the start number of the controller that gave it."""

    start: int
    grants: tuple[Grant, ...] = ()
    failure: JobFailure | None = None
    alarms: tuple[Alarm, ...] = ()
    cuts: tuple[CutRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """What an answer brought that was not known: grants in order, a fatal cause, alarms, a restart.

    `cuts`: of held runs, which are asked about and not answered yet, or where they end.
    """

    grants: tuple[Grant, ...] = ()
    failure: JobFailure | None = None
    restarted: bool = False
    alarms: tuple[Alarm, ...] = ()
    cuts: tuple[CutRequest, ...] = ()


@dataclass(slots=True, eq=False)
class News:
    """What has to be said, until it is confirmed. `under_way` counts the unanswered requests with it."""

    fields: dict[str, Any]
    under_way: int = 0


@dataclass(frozen=True, slots=True)
class Letter:
    """One request of the rank. Give it back to `answered` or `lost`, whichever happens to it."""

    start: int
    says: dict[str, Any]
    news: dict[Subject, News]
    is_session: bool = False
    is_farewell: bool = False  # nothing is left to say after it


class Conversation:
    """The state of one rank's session. Callers hold one lock around every call."""

    def __init__(self, rank: int, start: int) -> None:
        self.rank = rank
        self.start = start
        self.last_grant = 0
        self.failure: JobFailure | None = None
        self._asserted = False  # this start of the controller has taken the session
        self._restarted = False  # it has followed on another, whose ranks are waited for
        self._sessions_under_way = 0
        self._next: dict[Stream, int] = {}
        self._open: dict[tuple[Stream, int], dict[str, Any]] = {}
        self._granted: dict[Stream, int] = {}  # all below this n was granted
        self._held: dict[Stream, dict[int, Grant]] = {}  # by first n; runs that may be unfinished
        self._finished: dict[Stream, dict[int, Grant]] = {}  # finished before an earlier run of their stream
        self._cuts: dict[tuple[Stream, int], dict[str, Any]] = {}  # of held runs: what was said last
        self._asked: set[tuple[Stream, int]] = set()  # how far this rank is in them, and it has not said yet
        self._released: dict[Stream, int] = {}  # all below this n are finished and said so
        self._told: set[tuple[Stream, int]] = set()  # of the open ones, those that some start has taken
        self._untold: dict[Subject, News] = {}
        self._urgent: set[Subject] = set()  # untold, in no request under way, and worth a request of its own
        self._early: dict[int, Grant] = {}
        self._alarms: frozenset[Alarm] = frozenset()  # as of the newest answer
        self._hint: Subject | None = None  # the newest; it is said once and not again

    @property
    def has_news(self) -> bool:
        """Something has to be said that no request under way carries, and a request has room for it."""
        if self._restarted and not self._asserted and not self._sessions_under_way:
            return True
        return bool(self._urgent) and len(self._untold) - len(self._urgent) < NEWS_PER_REQUEST_MAX

    @property
    def untold(self) -> int:
        """News that no answer has confirmed, under way or not."""
        return len(self._untold)

    @property
    def waiting(self) -> int:
        """Arrivals that are not granted yet."""
        return len(self._open)

    @property
    def holding(self) -> int:
        """Granted runs whose work on the device may be unfinished."""
        return sum(map(len, self._held.values()))

    @property
    def asked(self) -> bool:
        """A question of the controller about a run that this rank holds waits for its answer."""
        return bool(self._asked)

    @property
    def listens(self) -> bool:
        """The controller may have something to say at any time: a grant, or that a run is being cut."""
        return bool(self._open) or self._holds_long()

    def arrive(
        self,
        stream: Stream,
        n: int,
        tag: int | None = None,
        blocking: bool = False,
        closed: int = 1,
        quiet: int = 1,
    ) -> None:
        """Say that operation n is next on the stream, and offer a run. Raises ValueError when it is not."""
        wanted = self._next.get(stream, 0)
        if n != wanted:
            raise ValueError(f"arrival at {stream}#{n}: the next operation of this stream is {wanted}")
        self._next[stream] = n + 1
        fields = _named(stream, n)
        if tag is not None:
            fields["tag"] = tag
        if blocking:
            fields["blocking"] = True
        if self._hint == Subject(Kind.HINT, stream, n):
            self._forget(self._hint)  # the arrival says more
        fields |= _offers(closed, quiet)
        self._open[stream, n] = fields
        self._tell(Subject(Kind.ARRIVAL, stream, n), fields)

    def block(self, stream: Stream, n: int) -> None:
        """The host waits for this operation now. Goes with the next request, not worth one of its own.

        Except while this rank holds a run of several operations, which may be in the way of the operation, or
        when it hints: its rings may leave their ports to messages until somebody waits for them.
        """
        fields = self._open.get((stream, n))
        if fields is not None and not fields.get("blocking"):
            urgent = self._holds_long() or self._hint is not None
            self._say_again(stream, n, {**fields, "blocking": True}, urgent=urgent)

    def offer(self, stream: Stream, n: int, closed: int, quiet: int) -> None:
        """Offer a shorter run with an arrival that is not granted yet; of no effect on one that is."""
        fields = self._open.get((stream, n))
        if fields is None:
            return
        kept = {name: value for name, value in fields.items() if name not in ("closed", "quiet")}
        fresh = kept | _offers(
            min(closed, fields.get("closed", 1)),
            min(quiet, fields.get("quiet", 1)),
        )
        if fresh != fields:
            self._say_again(stream, n, fresh, urgent=True)

    def _say_again(self, stream: Stream, n: int, fields: dict[str, Any], *, urgent: bool) -> None:
        subject = Subject(Kind.ARRIVAL, stream, n)
        self._open[stream, n] = fields
        if subject in self._urgent:
            self._untold[subject].fields = fields
        else:
            self._untold[subject] = News(fields)
            if urgent:
                self._urgent.add(subject)

    def _holds_long(self) -> bool:
        return any(run.length > 1 for runs in self._held.values() for run in runs.values())

    def cut(self, stream: Stream, n: int, issued: int) -> None:
        """The program has called `issued` operations of the held run that begins at n, and calls no more.

        Until it is told where the run ends; from then on this is said again when it has called another one.

        Of no effect when the run is not held, or the same was said before.
        """
        if n not in self._held.get(stream, {}):
            return
        fields = self._cuts.get((stream, n)) or _named(stream, n)
        self._asked.discard((stream, n))
        if issued > fields.get("issued", 0):
            self._tell_cut(stream, n, {**fields, "issued": issued})

    def _tell_cut(self, stream: Stream, n: int, fields: dict[str, Any]) -> None:
        self._cuts[stream, n] = fields
        self._tell(Subject(Kind.CUT, stream, n), fields)

    def release(self, stream: Stream, n: int) -> None:
        """The run that begins at n has finished; it is said once the earlier ones of its stream have too.

        Raises ValueError for a run that is not held.
        """
        run = self._held.get(stream, {}).pop(n, None)
        if run is None:
            raise ValueError(f"release of {stream}#{n}: this rank does not hold it")
        self._forget_cut(stream, n)
        finished = self._finished.setdefault(stream, {})
        finished[n] = run
        n = self._released.get(stream, 0)
        while (run := finished.pop(n, None)) is not None:
            fields = _named(stream, n)
            if run.length != 1:
                fields["length"] = run.length
            self._tell(Subject(Kind.RELEASE, stream, n), fields)
            n += run.length
        self._released[stream] = n

    def hint(self, stream: Stream, n: int) -> bool:
        """Say that operation n of the stream is expected to be the next one; False when that is nothing new.

        Goes with the release that caused it. Each hint is said once, and only the newest one.
        """
        subject = Subject(Kind.HINT, stream, n)
        if subject == self._hint or n < self._next.get(stream, 0):
            return False
        if self._hint is not None:
            self._forget(self._hint)
        self._hint = subject
        self._tell(subject, _named(stream, n))
        return True

    def compose(self, most: int = NEWS_PER_REQUEST_MAX, leave: bool = False) -> Letter:
        """The next request, with all news that no answer has confirmed, oldest first, up to `most`.

        Until this start of the controller has answered one, each has the session too, and in its marks all
        releases. Only one that has room for all news can `leave`: see `is_farewell`.
        """
        news = dict(islice(self._untold.items(), most))
        says: dict[str, Any] = {"rank": self.rank, "last_grant": self.last_grant}
        for subject, item in news.items():
            item.under_way += 1
            self._urgent.discard(subject)
            if self._asserted or self._is_new_arrival(subject):
                says.setdefault(subject.kind.value, []).append(item.fields)
        if not self._asserted:
            self._sessions_under_way += 1
            says["session"] = self._session()
            if self._cuts:
                says[Kind.CUT.value] = list(self._cuts.values())
        farewell = leave and len(news) == len(self._untold)
        if farewell:
            says["leave"] = True
        return Letter(self.start, says, news, not self._asserted, farewell)

    def _is_new_arrival(self, subject: Subject) -> bool:
        return subject.kind is Kind.ARRIVAL and (subject.stream, subject.n) not in self._told

    def _session(self) -> dict[str, Any]:
        """All that binds this rank but what is news, as the wire has it."""
        held: list[dict[str, Any]] = []
        marks: list[dict[str, Any]] = []
        for stream, granted in self._granted.items():
            marks.append({**_ends(stream), "granted": granted, "released": self._released.get(stream, 0)})
            runs = (*self._held.get(stream, {}).values(), *self._finished.get(stream, {}).values())
            held += [{"no": run.no, **_named(stream, run.n), "length": run.length} for run in runs]
        told = sorted(self._told, key=lambda operation: operation[1])
        opened = [self._open[operation] for operation in told]
        return {"last_grant": self.last_grant, "held": held, "open": opened, "marks": marks}

    def answered(self, letter: Letter, answer: Answer) -> Heard:
        """Take an answer in: confirm the letter's news, put the grants in order."""
        if answer.start != letter.start or answer.start < self.start:
            # Said to one start and answered by another: nothing is sure but that it has to be said again.
            self.lost(letter)
            return Heard(restarted=self.restarted(answer.start))
        self._back(letter)
        self._asserted = self._asserted or letter.is_session
        for subject, item in letter.news.items():
            item.under_way -= 1
            if subject.kind is Kind.ARRIVAL and (subject.stream, subject.n) in self._open:
                self._told.add((subject.stream, subject.n))
            if self._untold.get(subject) is item:
                self._forget(subject)
        failure = answer.failure if self.failure is None else None
        self.failure = self.failure or failure
        fresh = tuple(alarm for alarm in answer.alarms if alarm not in self._alarms)
        self._alarms = frozenset(answer.alarms[:ALARMS_MAX])
        grants = self._in_order(answer.grants)
        cuts = tuple(filter(self._take_cut, answer.cuts))
        return Heard(grants, failure, alarms=fresh[:ALARMS_MAX], cuts=cuts)

    def lost(self, letter: Letter) -> None:
        """No usable answer came: its news have to be said again."""
        self._back(letter)
        for subject, item in letter.news.items():
            item.under_way -= 1
            if not item.under_way and self._untold.get(subject) is item:
                self._urgent.add(subject)

    def refused(self, letter: Letter) -> None:
        """The controller will not have these news: forget them."""
        self._back(letter)
        for subject, item in letter.news.items():
            item.under_way -= 1
            if self._untold.get(subject) is item:
                self._forget(subject)
            if subject.kind is Kind.ARRIVAL:
                self._open.pop((subject.stream, subject.n), None)
                self._told.discard((subject.stream, subject.n))

    def restarted(self, start: int) -> bool:
        """A newer controller start is there: it gets the whole session first. False when it is not newer.

        Grants of the older start that came beyond a gap are void: the newer one may number them otherwise.
        """
        if start <= self.start:
            return False
        self.start = start
        self._asserted, self._restarted, self._sessions_under_way = False, True, 0
        self._early.clear()
        self._asked.clear()
        return True

    def _back(self, letter: Letter) -> None:
        """A request is not under way any more."""
        if letter.is_session and letter.start == self.start:
            self._sessions_under_way -= 1

    def _tell(self, subject: Subject, fields: dict[str, Any]) -> None:
        self._untold[subject] = News(fields)
        self._urgent.add(subject)

    def _forget(self, subject: Subject) -> None:
        self._untold.pop(subject, None)
        self._urgent.discard(subject)

    def _in_order(self, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        """Grants that are next by number; what comes early is kept until the gap has been filled."""
        for grant in grants:
            if grant.no > self.last_grant and len(self._early) < EARLY_GRANTS_MAX:
                self._early[grant.no] = grant
        ready = []
        while (grant_next := self._early.pop(self.last_grant + 1, None)) is not None:
            self.last_grant = grant_next.no
            if self._take(grant_next):
                ready.append(grant_next)
        return tuple(ready)

    def _take_cut(self, request: CutRequest) -> bool:
        """Whether a request about a run is news: the question until it is answered, the end once."""
        stream, n, length = request.stream, request.n, request.length
        run = self._held.get(stream, {}).get(n)
        if run is None:
            return False
        said = self._cuts.get((stream, n))
        if length is None:
            if said is None:
                self._asked.add((stream, n))
            return said is None
        if said is None or "length" in said:
            return False
        self._held[stream][n] = replace(run, length=length)
        self._granted[stream] = self._next[stream] = n + length
        self._tell_cut(stream, n, {**said, "length": length})
        return True

    def _forget_cut(self, stream: Stream, n: int) -> None:
        """The run is over for this rank: nobody needs to know how far it is in it."""
        self._asked.discard((stream, n))
        if self._cuts.pop((stream, n), None) is not None:
            self._forget(Subject(Kind.CUT, stream, n))

    def _take(self, grant: Grant) -> bool:
        """Hold a granted run. False when no such arrival is open: granted before, or never asked for."""
        if (grant.stream, grant.n) not in self._open:
            return False
        for n in range(
            grant.n, grant.n + min(grant.length, len(self._open))
        ):  # further ones follow on each other
            self._open.pop((grant.stream, n), None)
            self._told.discard((grant.stream, n))
            self._forget(Subject(Kind.ARRIVAL, grant.stream, n))
        self._held.setdefault(grant.stream, {})[grant.n] = grant
        self._granted[grant.stream] = max(self._granted.get(grant.stream, 0), grant.n + grant.length)
        self._next[grant.stream] = max(self._next[grant.stream], grant.n + grant.length)
        return True


def _offers(closed: int, quiet: int) -> dict[str, Any]:
    """An offer as the wire has it; 1 goes without saying."""
    return {name: value for name, value in (("closed", closed), ("quiet", quiet)) if value != 1}


def _named(stream: Stream, n: int) -> dict[str, Any]:
    """An operation's name as the wire has it."""
    return {**_ends(stream), "n": n}


def _ends(stream: Stream) -> dict[str, Any]:
    """A stream's name as the wire has it."""
    fields: dict[str, Any] = {"connection": stream.connection}
    if stream.source is not None:
        fields["source"] = stream.source
        fields["destination"] = stream.destination
    return fields
