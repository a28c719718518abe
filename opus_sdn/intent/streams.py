"""The barrier: arrivals, marks and held runs of one stream. A grant needs every participant at the same n.

Numbers only go up: what is at or below a mark is answered from memory and never acted on again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opus_sdn.intent.changes import IntentState
from opus_sdn.intent.lifecycle import advance_intent
from opus_sdn.intent.model import Arrival, ArrivalState, Connection, Stream
from opus_sdn.intent.reasons import Because, Phase, Reason

UNNUMBERED = 0  # the grant number of a holder that has to be given its grant once more
COMMITTING = Because(Reason.COMMITTING, "decided; the record is being written")


@dataclass(slots=True)
class OpenArrival:
    """One rank's arrival at an operation that is not granted yet."""

    arrival: Arrival
    at: float


@dataclass(slots=True)
class Intent:
    """The declaration that operation n of a stream needs its circuits up."""

    stream: Stream
    connection: Connection
    n: int
    first_at: float
    clock_at: float = 0.0  # when its deadline began: its first arrival, or its turn in the stream if later
    arrived: dict[int, OpenArrival] = field(default_factory=dict)
    state: IntentState = IntentState.DECLARED
    complete_at: float = 0.0
    phase: Phase | None = None  # what of its circuits it waits for, while it waits for a device
    phase_at: float = 0.0  # since when
    phases_s: dict[Phase, float] = field(default_factory=dict)  # for how long in all
    age: int = 0  # order of completion within the job; lower is older
    overtaken: int = 0
    announced: bool = False
    because: Because | None = None
    past: HeldRun | None = None  # a cut run that this intent goes past, as the run waits for it
    held_up: bool = False  # it waits for a cut run whose holders are blocked

    @property
    def key(self) -> str:
        """Name of this run's intent within its job."""
        return f"{self.stream}#{self.n}"

    @property
    def yields(self) -> bool:
        """Whether it keeps no ports for itself while it waits: no device serves it in time.

        Planning, starting and granting ask here alike: where they differ, a step is planned and dropped for
        ever. One that only pauses after a failed step keeps its place. What waits for a run that waits for
        others yields too: it could be in their way.
        """
        return self.state is IntentState.STALLED or self.held_up

    @property
    def offered(self) -> int:
        """Operations that all who have arrived would have granted as one (rule 5).

        Until the first wait outside of the run, for all of them; or until the next issue elsewhere, for all
        of them. A run in which some only do not wait, and others only do not issue, can deadlock.
        """
        offers = [arrived.arrival for arrived in self.arrived.values()]
        return max(min(offer.closed for offer in offers), min(offer.quiet for offer in offers))

    def move(self, to: IntentState) -> None:
        """Change state by the table."""
        self.state = advance_intent(self.state, to)


@dataclass(slots=True)
class Cutting:
    """A member leaves a held run: how far each member's program is in it, and where the run ends then."""

    issued: dict[int, int] = field(default_factory=dict)  # rank -> operations of the run that it has called
    length: int | None = None  # decided
    told: set[int] = field(default_factory=set)  # ranks that are known to know the decided length
    batch: int = 0  # what is said of it may be answered once this batch is stored


@dataclass(slots=True)
class HeldRun:
    """A granted run [n, n + length): live until every participant has released it."""

    n: int
    length: int
    holders: dict[int, int]  # rank -> grant number
    granted_at: float
    intent: Intent
    guessed: bool = False  # proven by marks alone after a restart: its length is not known for sure
    cutting: Cutting | None = None


class StreamState:
    """Marks, open arrivals and held runs of one stream; the job owns it."""

    __slots__ = (
        "connection",
        "granted",
        "granted_once",
        "held",
        "intents",
        "next_n",
        "participants",
        "released",
        "stream",
    )

    def __init__(self, stream: Stream, connection: Connection) -> None:
        self.stream = stream
        self.connection = connection
        self.participants = connection.ranks
        self.granted = 0
        self.granted_once = 0  # as far as a run ever went that was cut short later
        self.released = dict.fromkeys(connection.ranks, 0)
        self.next_n = dict.fromkeys(connection.ranks, 0)
        self.intents: dict[int, Intent] = {}
        self.held: dict[int, HeldRun] = {}

    def standing(self, rank: int, n: int) -> ArrivalState | None:
        """What is known of (rank, n): done, granted, open, or None when it would be new."""
        if n < self.released[rank]:
            return ArrivalState.DONE
        if n < self.granted:
            return ArrivalState.GRANTED
        return ArrivalState.OPEN if n < self.next_n[rank] else None

    def arrive(self, now: float, rank: int, arrival: Arrival) -> Intent:
        """Record a new arrival at the rank's next operation and return its intent."""
        intent = self.intents.get(arrival.n)
        if intent is None:
            intent = Intent(self.stream, self.connection, arrival.n, now)
            self.intents[arrival.n] = intent
        intent.arrived[rank] = OpenArrival(arrival, now)
        self.next_n[rank] = arrival.n + 1
        return intent

    def complete(self) -> Intent | None:
        """The next intent, if every participant has arrived at it."""
        intent = self.intents.get(self.granted)
        if intent is not None and len(intent.arrived) == len(self.participants):
            return intent
        return None

    def is_waited_for(self) -> bool:
        """Whether some host waits for an operation that is not granted: all before it are waited for, too."""
        arrivals = (arrived for intent in self.intents.values() for arrived in intent.arrived.values())
        return any(arrived.arrival.blocking for arrived in arrivals)

    def half_arrived(self) -> int:
        """Operations at which some, but not all, participants have arrived."""
        return sum(len(intent.arrived) < len(self.participants) for intent in self.intents.values())

    def missing(self, n: int) -> list[int]:
        """Participants that have not arrived at operation n."""
        intent = self.intents.get(n)
        arrived = intent.arrived if intent is not None else {}
        return [rank for rank in self.participants if rank not in arrived]

    def grant(self, now: float, intent: Intent, numbers: dict[int, int], length: int) -> HeldRun:
        """Raise the marks and hold the run for all participants; `numbers` are their grant numbers."""
        run = HeldRun(intent.n, length, numbers, now, intent)
        self.granted = intent.n + length
        for rank in self.participants:
            self.next_n[rank] = max(self.next_n[rank], self.granted)
        self.held[run.n] = run
        del self.intents[intent.n]
        return run

    def shorten(self, run: HeldRun, length: int) -> None:
        """The run ends earlier: what nobody has called is not granted any more."""
        self.granted_once = max(self.granted_once, self.granted)
        run.length = length
        self.granted = run.n + length
        self.next_n = dict.fromkeys(self.participants, self.granted)

    def release(self, rank: int, through: int) -> list[HeldRun]:
        """Rank has finished all operations below `through`; the runs it let go of, newly, in order."""
        let_go = []
        for run in self.held.values():
            if run.n + run.length <= through and rank in run.holders:
                del run.holders[rank]
                let_go.append(run)
        self.released[rank] = max(self.released[rank], through)
        return let_go

    def is_to_be_told(self, rank: int, n: int) -> bool:
        """Whether the rank's grant of n, proven by others after a restart, has no number yet."""
        return any(
            run.n <= n < run.n + run.length and run.holders.get(rank) == UNNUMBERED
            for run in self.held.values()
        )

    def why_open(self, intent: Intent) -> Because:
        """Why this intent is not granted, for answers and views."""
        if intent.n > self.granted:
            detail = f"operation {self.granted} of {self.stream} goes first"
            return Because(Reason.EARLIER_OPERATION, detail, {"n": self.granted})
        if intent.state is IntentState.DECLARED:
            missing = self.missing(intent.n)
            detail = f"ranks {short(missing)} have not arrived at operation {intent.n} of {self.stream}"
            return Because(Reason.MEMBERS_MISSING, detail, {"ranks": missing})
        if intent.because is None:
            return COMMITTING
        return intent.because


def short(ranks: list[int], most: int = 16) -> str:
    """A rank list for people: long ones are cut."""
    shown = ", ".join(str(rank) for rank in ranks[:most])
    return shown if len(ranks) <= most else f"{shown} and {len(ranks) - most} more"
