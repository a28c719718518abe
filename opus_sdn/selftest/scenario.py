"""What the self-test plays: four ranks on four hosts, pipeline 2 x data 2, one rail, two ports per GPU.

    rank 0 (host0, stage 0)   rank 1 (host1, stage 0)      data-parallel groups {0, 1} and {2, 3}
    rank 2 (host2, stage 1)   rank 3 (host3, stage 1)      pipeline groups      {0, 2} and {1, 3}

By the standard port choice a data-parallel pair takes right of its first member and left of its second, and
so does a pipeline pair. Both need right of ranks 0 and left of rank 3, so that they cannot be up together:
every turn from one dimension to the other has to re-point the switch, and staying with one must not.
"""

from __future__ import annotations

from dataclasses import dataclass

from opus_sdn.intent.model import Stream

HOSTS = 4
DELAY_MS = 20.0
JOB = "selftest"
RAIL = "rail0"
DIMENSIONS = (("pp", 2), ("dp", 2))
DARK = "--"
GROUPS = {"dp-0": (0, 1), "dp-1": (2, 3), "pp-0": (0, 2), "pp-1": (1, 3)}
LINGER_MS = 30.0


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation `n` of a stream, done by the `ranks`. `linger_ms`: how much longer each one sends."""

    stream: Stream
    n: int
    ranks: tuple[int, int]
    linger_ms: tuple[float, float] = (0.0, 0.0)

    @property
    def key(self) -> str:
        """As events name it."""
        return f"{self.stream}#{self.n}"


@dataclass(frozen=True, slots=True)
class Phase:
    """Operations that all ranks do at the same time. `changes`: the switch has to be re-pointed for them."""

    title: str
    operations: tuple[Operation, ...]
    topology: str
    changes: bool


def _all_reduce(n: int, linger_ms: float = 0.0) -> tuple[Operation, ...]:
    """The second member of each group takes longer, by `linger_ms`."""
    return tuple(
        Operation(Stream(name), n, (ranks[0], ranks[1]), (0.0, linger_ms))
        for name, ranks in GROUPS.items()
        if name.startswith("dp")
    )


def _messages(n: int, forward: bool) -> tuple[Operation, ...]:
    found = []
    for name, (first, second) in ((k, v) for k, v in GROUPS.items() if k.startswith("pp")):
        source, destination = (first, second) if forward else (second, first)
        stream = Stream(f"{name}:{first}-{second}", source, destination)
        found.append(Operation(stream, n, (first, second)))
    return tuple(found)


# Ranks go from phase to phase without waiting for each other, as in a training step; a round ends where the
# self-test looks at the controller. The second phase lasts longer on some ranks, so that the others ask
# for its circuits to be taken down while they still carry traffic.
ROUNDS: tuple[tuple[Phase, ...], ...] = (
    (Phase("data-parallel all-reduce", _all_reduce(0), "11", True),),
    (
        Phase("all-reduce again, some ranks slow", _all_reduce(1, LINGER_MS), "11", False),
        Phase("activations to the next stage", _messages(0, True), "00", True),
    ),
    (Phase("gradients back, same circuits", _messages(0, False), "00", False),),
    (Phase("data-parallel all-reduce", _all_reduce(2), "11", True),),
    (Phase("activations to the next stage", _messages(1, True), "00", True),),
)
PHASES = tuple(phase for one_round in ROUNDS for phase in one_round)
OPERATIONS = tuple(operation for phase in PHASES for operation in phase.operations)
CHANGES = sum(phase.changes for phase in PHASES)
