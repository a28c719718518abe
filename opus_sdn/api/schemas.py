"""What clients send: strict models, no field too many, no type but JSON's own.

Field names are those of the core. Numbers of operations count from 0 per stream, times are in seconds, and
every list has a limit. `HotRequest` and its parts are typed dicts: the hot route decodes once, into plain
values.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.model import (
    Dimension,
    GroupSpec,
    JobSpec,
    Place,
    PortChoice,
    RetryBudget,
    WorldGroup,
)

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
GROUP_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"
RANKS_MAX = 1_048_576
WHOLE_MAX = 2**53 - 1  # the largest whole number that every JSON reader keeps exact

Rank = Annotated[int, Field(ge=0, lt=RANKS_MAX, description="Global rank, from 0")]
Incarnation = Annotated[
    int, Field(ge=1, le=WHOLE_MAX, description="The job's incarnation, from PUT /jobs/{job}")
]
Number = Annotated[int, Field(ge=0, le=WHOLE_MAX, description="Operation number in its stream, from 0")]
Length = Annotated[int, Field(ge=1, le=WHOLE_MAX)]
Text = Annotated[str, Field(max_length=4096)]
ConnectionName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=192,
        description="Connection: the group's name for its ring, `<group>:<a>-<b>` for a pair of ranks",
    ),
]
Source = Annotated[int, Field(ge=0, lt=RANKS_MAX, description="Sending rank; on pairs only")]
Destination = Annotated[int, Field(ge=0, lt=RANKS_MAX, description="Receiving rank; on pairs only")]


class _Wire(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class RankPlace(_Wire):
    """Where one rank runs."""

    rank: Rank
    host: Annotated[str, Field(min_length=1, max_length=253, description="A host of the fabric")]
    slot: Annotated[int, Field(ge=0, le=1023, description="GPU slot of the host, from 0")]


class DimensionSize(_Wire):
    """One parallelism dimension."""

    name: Annotated[str, Field(min_length=1, max_length=64, description="As `pp`, `dp`, `tp`")]
    size: Annotated[int, Field(ge=1, le=RANKS_MAX, description="Ranks along this dimension")]


class RetryBudgetFields(_Wire):
    """How long InfiniBand or RoCE tries: 4.096 us x 2^timeout x (retry + 1); timeout 0 is for ever."""

    timeout: Annotated[int, Field(ge=0, le=31, description="Exponent of one try, as NCCL_IB_TIMEOUT")]
    retry: Annotated[int, Field(ge=0, le=7, description="Tries after the first, as NCCL_IB_RETRY_CNT")]


class JobRequest(_Wire):
    """A training run as its launcher declares it. Sent again with the same nonce it changes nothing."""

    owner: Annotated[str, Field(min_length=1, max_length=128, description="Who answers for the job")]
    nonce: Annotated[
        str,
        Field(
            min_length=1,
            max_length=128,
            description="Fresh for every init of the ranks, shared by all of them",
        ),
    ]
    placement: Annotated[
        list[RankPlace],
        Field(min_length=1, max_length=RANKS_MAX, description="Every rank from 0 to W-1 once, in any order"),
    ]
    dimensions: Annotated[
        list[DimensionSize],
        Field(max_length=16, description="Outermost first; the sizes multiply to the number of ranks"),
    ] = []
    port_choice: Annotated[PortChoice, Field(description="Ports of two-member rings")] = PortChoice.STANDARD
    world_group: Annotated[
        WorldGroup, Field(description="Where collectives of the whole world go; auto: rails if one dimension")
    ] = WorldGroup.AUTO
    force_scale_out: Annotated[bool, Field(description="Gate groups inside one host too")] = False
    deadline_s: Annotated[
        float,
        Field(
            gt=0,
            le=604_800,
            description="Seconds from a run's first arrival until the job fails; 0.9 x the ranks' timeout",
        ),
    ] = 1620.0
    initial_topology: Annotated[
        str | None,
        Field(max_length=4096, description="Topology id in decimal digits to install at admission"),
    ] = None
    legacy_digits: Annotated[
        bool, Field(description="Experts have topology digit 3, as in the published topology ids")
    ] = False
    retry_budget: Annotated[
        RetryBudgetFields | None,
        Field(
            description="What the messages' transport does about a dark path; null: not known, not checked"
        ),
    ] = None

    admission: Annotated[
        Literal["refuse", "queue"],
        Field(description="What becomes of a job that cannot have its ports yet"),
    ] = "refuse"

    def spec(self, job: str) -> JobSpec:
        """The core's form. Raises CoreError when the placement does not name every rank once."""
        world = len(self.placement)
        places: list[Place | None] = [None] * world
        for index, entry in enumerate(self.placement):
            field = f"placement[{index}].rank"
            if entry.rank >= world:
                raise CoreError(
                    Problem.UNKNOWN_RANK,
                    f"{field} is {entry.rank}, but there are {world} entries: name 0 to {world - 1} once",
                    field=field,
                    rank=entry.rank,
                )
            if places[entry.rank] is not None:
                raise CoreError(
                    Problem.INVALID_REQUEST,
                    f"{field} is {entry.rank} again; name each rank from 0 to {world - 1} once",
                    field=field,
                    rank=entry.rank,
                )
            places[entry.rank] = Place(entry.host, entry.slot)
        budget = self.retry_budget
        return JobSpec(
            name=job,
            owner=self.owner,
            nonce=self.nonce,
            placement=tuple(place for place in places if place is not None),
            dimensions=tuple(Dimension(d.name, d.size) for d in self.dimensions),
            port_choice=self.port_choice,
            world_group=self.world_group,
            force_scale_out=self.force_scale_out,
            deadline_s=self.deadline_s,
            initial_topology=self.initial_topology,
            legacy_digits=self.legacy_digits,
            retry_budget=RetryBudget(budget.timeout, budget.retry) if budget is not None else None,
        )


class Stride(_Wire):
    """The ranks start, start + step, ... below stop."""

    start: Rank
    stop: Annotated[int, Field(ge=1, le=RANKS_MAX, description="First rank that is not in the list")]
    step: Annotated[int, Field(ge=1, le=RANKS_MAX)] = 1


def _form_of(value: object) -> str:
    if isinstance(value, str):
        return "<world>"
    return "<stride>" if isinstance(value, dict | Stride) else "<list>"


RankList = Annotated[
    Annotated[Literal["world"], Tag("<world>")]
    | Annotated[list[Rank], Field(min_length=1, max_length=RANKS_MAX), Tag("<list>")]
    | Annotated[Stride, Tag("<stride>")],
    Discriminator(_form_of),
    Field(description='Ranks in group order: "world", a list, or a stride'),
]
DimensionLabel = Annotated[
    str,
    Field(max_length=64, description="Name of the group's dimension, as declared or as the program calls it"),
]
Ordinal = Annotated[int, Field(ge=0, le=65_535, description="Number among groups of the same ranks, from 0")]


class GroupRequest(_Wire):
    """One process group checks in."""

    incarnation: Incarnation
    ranks: RankList
    dimension: DimensionLabel
    ordinal: Ordinal = 0


class NamedGroup(_Wire):
    """One of several groups that check in together."""

    name: Annotated[
        str, Field(pattern=GROUP_PATTERN, description="Chosen by the client, the same on all members")
    ]
    ranks: RankList
    dimension: DimensionLabel
    ordinal: Ordinal = 0


class GroupsRequest(_Wire):
    """Several process groups check in; all of them or none."""

    incarnation: Incarnation
    groups: Annotated[list[NamedGroup], Field(min_length=1, max_length=4096)]


def group_spec(name: str, group: GroupRequest | NamedGroup, world: int) -> GroupSpec:
    """The core's form of a group of a job with `world` ranks. The core checks the ranks themselves."""
    if isinstance(group.ranks, Stride):
        stop = min(group.ranks.stop, world + group.ranks.step)  # at most one unknown rank, for the message
        ranks = tuple(range(group.ranks.start, stop, group.ranks.step))
    else:
        ranks = tuple(range(world)) if group.ranks == "world" else tuple(group.ranks)
    return GroupSpec(name, ranks, group.dimension, group.ordinal)


class AbortRequest(_Wire):
    """A rank, or the launcher, gives up: the incarnation fails for all ranks."""

    incarnation: Incarnation
    rank: Rank | None = None
    detail: Text


class FailureRequest(_Wire):
    """An operation failed on a rank's device. The controller decides the cause that all ranks are told."""

    incarnation: Incarnation
    rank: Rank
    connection: ConnectionName | None = None
    source: Source | None = None
    destination: Destination | None = None
    n: Number | None = None
    detail: Text


class DeathsRequest(_Wire):
    """The launcher or the host's agent vouches that these ranks have stopped and transmit no more."""

    incarnation: Incarnation
    ranks: Annotated[list[Rank], Field(min_length=1, max_length=RANKS_MAX)]
    detail: Text


class PortLink(_Wire):
    """The link of one of a GPU's NIC ports, as its host sees it."""

    index: Annotated[
        int, Field(ge=0, le=3, description="Index of the port on its GPU: 0 is left, 1 is right")
    ]
    up: Annotated[bool, Field(description="Whether the port has its link")]
    detail: Annotated[str, Field(max_length=256, description="In the words of the host")] = ""


class LinksRequest(_Wire):
    """A rank's host says what became of the links of its NIC ports; when one changes, and now and then."""

    incarnation: Incarnation
    rank: Rank
    ports: Annotated[list[PortLink], Field(min_length=1, max_length=4)]


class WireArrival(_Wire):
    """The rank's next operation on this stream is n; it offers a run of `closed` or `quiet` operations."""

    connection: ConnectionName
    source: Source | None = None
    destination: Destination | None = None
    n: Number
    closed: Annotated[Length, Field(description="Operations until the first wait outside the run")] = 1
    quiet: Annotated[Length, Field(description="Operations until the next issue elsewhere")] = 1
    tag: Annotated[int | None, Field(ge=-WHOLE_MAX, le=WHOLE_MAX, description="Message tag")] = None
    blocking: Annotated[
        bool, Field(description="Whether the host waits for it; a rank that hints says so at once")
    ] = False


class WireRelease(_Wire):
    """Operations [n, n + length) of the stream have finished on the rank's device."""

    connection: ConnectionName
    source: Source | None = None
    destination: Destination | None = None
    n: Number
    length: Annotated[Length, Field(description="Operations of the run")] = 1


class WireCut(_Wire):
    """The rank leaves a run that it holds, or answers how far it is in it; it goes no further until told."""

    connection: ConnectionName
    n: Annotated[int, Field(ge=0, le=WHOLE_MAX, description="First operation of the run")]
    issued: Annotated[Length, Field(description="Operations of the run that the rank's program has called")]
    length: Annotated[
        Length | None, Field(description="Operations of the run as this rank was told; null: not told yet")
    ] = None


class WireHint(_Wire):
    """The rank expects to need this operation next. Accepted, and of no effect in this version."""

    connection: ConnectionName
    source: Source | None = None
    destination: Destination | None = None
    n: Number


class WireHeld(_Wire):
    """A granted run that the rank has not released."""

    no: Annotated[int, Field(ge=1, le=WHOLE_MAX, description="Its grant number")]
    connection: ConnectionName
    source: Source | None = None
    destination: Destination | None = None
    n: Number
    length: Annotated[Length, Field(description="Operations of the run")] = 1


class WireMark(_Wire):
    """How far the rank has come on one stream."""

    connection: ConnectionName
    source: Source | None = None
    destination: Destination | None = None
    granted: Annotated[int, Field(ge=0, le=WHOLE_MAX, description="All below this was granted to the rank")]
    released: Annotated[int, Field(ge=0, le=WHOLE_MAX, description="All below this has finished on it")] = 0


class WireSession(_Wire):
    """All that binds a rank, said to a controller start that has not heard it yet.

    `held` are the runs between the marks, `open` the arrivals without a grant.
    """

    last_grant: Annotated[int, Field(ge=0, le=WHOLE_MAX, description="As the rank's `last_grant`")]
    held: Annotated[list[WireHeld], Field(max_length=8192)] = []
    open: Annotated[list[WireArrival], Field(max_length=8192)] = []
    marks: Annotated[list[WireMark], Field(max_length=131_072)] = []


class WireRank(_Wire):
    """All that one rank has to say."""

    rank: Rank
    last_grant: Annotated[
        int, Field(ge=0, le=WHOLE_MAX, description="Highest grant number that the rank received, 0 for none")
    ]
    arrivals: Annotated[list[WireArrival], Field(max_length=4096)] = []
    releases: Annotated[list[WireRelease], Field(max_length=4096)] = []
    hints: Annotated[list[WireHint], Field(max_length=4096)] = []
    cut: Annotated[
        list[WireCut], Field(max_length=4096, description="Runs that the rank leaves before their end")
    ] = []
    leave: Annotated[bool, Field(description="The rank is done and holds nothing")] = False
    session: Annotated[
        WireSession | None,
        Field(description="With the first request to a start of the controller, and until it is answered"),
    ] = None


class ArrivalsRequest(_Wire):
    """News of one rank, or of all ranks of a host, and how long to wait for the answer."""

    incarnation: Incarnation
    seen_start: Annotated[
        int, Field(ge=0, le=WHOLE_MAX, description="The controller's start number that the client last saw")
    ]
    wait_s: Annotated[float, Field(ge=0, le=60, description="Longest wait for news, seconds; 0: none")]
    ranks: Annotated[list[WireRank], Field(min_length=1, max_length=1024)]
