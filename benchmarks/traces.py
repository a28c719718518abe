"""Makes steps to replay: Chakra traces with communicators, topologies and machine, of any size.

`make_step` writes a pipeline of transformer-like stages, `widen` multiplies the tensor parallelism of a
trace set.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 6, 7

_INT64, _STRING = 9, 29

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"],
    "all-gather-implementation": ["ring"],
    "reduce-scatter-implementation": ["ring"],
    "all-to-all-implementation": ["ring"],
    "local-mem-bw": 4800,
    "roofline-enabled": 1,
    "peak-perf": 989,
}


def varint(value: int) -> bytes:
    """A base-128 number."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value & 0xFFFFFFFFFFFFFFFF)
    return varint(number << 3 | 2) + varint(len(value)) + value


@dataclass
class Node:
    """One node; attributes are integers or strings."""

    id: int
    kind: int
    name: str = ""
    after: Sequence[int] = ()
    attributes: dict[str, int | str] = field(default_factory=dict)
    duration_micros: int = 0

    def encoded(self) -> bytes:
        """The message, as a protocol buffer."""
        found = _field(1, self.id) + _field(2, self.name.encode()) + _field(3, self.kind)
        if self.after:
            found += _field(5, b"".join(varint(node) for node in self.after))
        if self.duration_micros:
            found += _field(7, self.duration_micros)
        for name, value in self.attributes.items():
            attribute = _field(1, name.encode())
            if isinstance(value, int):
                attribute += _field(_INT64, value)
            else:
                attribute += _field(_STRING, value.encode())
            found += _field(10, attribute)
        return found


def encode(nodes: Sequence[Node]) -> bytes:
    """A rank's file: metadata, then the nodes, each preceded by its length."""
    messages = [_field(1, b"0.0.4"), *(node.encoded() for node in nodes)]
    return b"".join(varint(len(message)) + message for message in messages)


@dataclass
class Shape:
    """A job: degrees of parallelism, layers in each stage, microbatches, and how big things are.

    With `rng` durations and sizes vary between layers (not between ranks of a stage). `reduce_each`:
    gradients are reduced after every microbatch instead of after the last.
    """

    dp: int = 2
    pp: int = 2
    tp: int = 2
    layers: int = 2
    microbatches: int = 1
    gather_bytes: int = 1 << 24
    gradient_bytes: int = 1 << 25
    message_bytes: int = 1 << 24
    ops: int = 1 << 37
    reduce_each: bool = False
    rng: random.Random | None = None

    @property
    def ranks(self) -> int:
        """How many there are."""
        return self.dp * self.pp * self.tp

    def rank(self, stage: int, tp: int, dp: int) -> int:
        """Data-parallel ranks are neighbours, stages are contiguous."""
        return stage * self.dp * self.tp + tp * self.dp + dp

    def groups(self) -> dict[str, list[int]]:
        """Data-parallel rings, then tensor-parallel ones."""
        found: list[list[int]] = []
        for stage in range(self.pp):
            found += [[self.rank(stage, t, d) for d in range(self.dp)] for t in range(self.tp)]
        for stage in range(self.pp):
            found += [[self.rank(stage, t, d) for t in range(self.tp)] for d in range(self.dp)]
        return {str(number): ranks for number, ranks in enumerate(found, start=1)}

    def schedules(self, out_gbps: float = 50.0, up_gbps: float = 450.0) -> Iterator[str]:
        """The topologies' lines: a bit for each stage, stage 0 the most significant, 1 for pipeline links."""
        for topology in range(1 << self.pp):
            bits = [topology >> (self.pp - 1 - stage) & 1 for stage in range(self.pp)]
            yield f"BW {topology}"
            for source in range(self.ranks):
                yield " ".join(
                    f"{self._bandwidth(bits, source, destination, out_gbps, up_gbps):f}"
                    for destination in range(self.ranks)
                )
            yield "END\n"

    def _bandwidth(self, bits: list[int], a: int, b: int, out_gbps: float, up_gbps: float) -> float:
        per_stage = self.dp * self.tp
        (s, t, d), (s2, t2, d2) = (
            (rank // per_stage, rank % per_stage // self.dp, rank % self.dp) for rank in (a, b)
        )
        if s == s2 and d == d2:
            return up_gbps
        if s != s2:
            near = abs(s - s2) in (1, self.pp - 1)
            return out_gbps if near and t == t2 and d == d2 and bits[s] and bits[s2] else 0.0
        pipeline = self.pp > 1 and bits[s] and (bits[s - 1] or bits[(s + 1) % self.pp])
        near = abs(d - d2) in (1, self.dp - 1)
        return out_gbps if near and t == t2 and not pipeline else 0.0

    def nodes(self, rank: int) -> list[Node]:
        """The program of a rank."""
        return _Program(self, rank).nodes


class _Program:
    def __init__(self, shape: Shape, rank: int) -> None:
        self.nodes: list[Node] = []
        self._shape = shape
        per_stage = shape.dp * shape.tp
        self._stage, self._tp, self._dp = rank // per_stage, rank % per_stage // shape.dp, rank % shape.dp
        self._data = str(1 + self._stage * shape.tp + self._tp)
        self._tensor = str(1 + shape.pp * shape.tp + self._stage * shape.dp + self._dp)
        # Ranks of a stage agree on sizes and durations; the seed is the stage's.
        self._rng = random.Random(f"{shape.rng.random()}-{self._stage}") if shape.rng else None
        last: list[int] = []
        for batch in range(shape.microbatches):
            last = self._forward(batch, last)
        for batch in range(shape.microbatches):
            last = self._backward(batch, last)

    def _add(self, kind: int, name: str, after: Sequence[int], **attributes: int | str) -> int:
        number = len(self.nodes) + 1
        self.nodes.append(Node(number, kind, name, tuple(after), attributes))
        return number

    def _varied(self, size: int) -> int:
        return max(64, int(size * self._rng.choice((0.125, 0.25, 0.5, 1, 2)))) if self._rng else size

    def _compute(self, name: str, after: Sequence[int], ops: int) -> int:
        ops = self._varied(ops)
        return self._add(COMPUTE, name, after, num_ops=ops, tensor_size=max(1, ops >> 9))

    def _collective(self, name: str, after: Sequence[int], which: int, size: int, group: str) -> int:
        return self._add(
            COLLECTIVE, name, after, comm_size=self._varied(size), comm_type=which, pg_name=group
        )

    def _message(self, kind: int, name: str, after: Sequence[int], peer: int, tag: int) -> int:
        rank = self._shape.rank(peer, self._tp, self._dp)
        end = "comm_dst" if kind == SEND else "comm_src"
        size = self._shape.message_bytes
        return self._add(kind, name, after, **{"comm_size": size, "comm_tag": tag, end: rank})

    def _layer(self, name: str, after: list[int], ops: int) -> list[int]:
        shape = self._shape
        if shape.tp > 1:
            after = [self._collective(f"{name}.gather", after, ALL_GATHER, shape.gather_bytes, self._tensor)]
        after = [self._compute(f"{name}.gemm", after, ops)]
        if shape.tp > 1:
            size = shape.gather_bytes * shape.tp
            after = [self._collective(f"{name}.scatter", after, REDUCE_SCATTER, size, self._tensor)]
        return [self._compute(f"{name}.add", after, ops >> 5)]

    def _forward(self, batch: int, last: list[int]) -> list[int]:
        shape, stage = self._shape, self._stage
        if stage > 0:
            tag = 2 * (batch * shape.pp + stage - 1)
            last = [*last, self._message(RECEIVE, f"mb{batch}.in", (), stage - 1, tag)]
        for layer in range(shape.layers):
            last = self._layer(f"mb{batch}.layer{layer}", last, shape.ops)
        if stage < shape.pp - 1:
            self._message(SEND, f"mb{batch}.out", last, stage + 1, 2 * (batch * shape.pp + stage))
        return last

    def _backward(self, batch: int, last: list[int]) -> list[int]:
        shape, stage = self._shape, self._stage
        if stage < shape.pp - 1:
            tag = 2 * (batch * shape.pp + stage) + 1
            last = [*last, self._message(RECEIVE, f"mb{batch}.grad_in", (), stage + 1, tag)]
        for layer in reversed(range(shape.layers)):
            name = f"mb{batch}.layer{layer}.grad"
            last = self._layer(name, last, 2 * shape.ops)
            if shape.dp > 1 and (shape.reduce_each or batch == shape.microbatches - 1):
                reduced = self._collective(
                    f"{name}.reduce", last, ALL_REDUCE, shape.gradient_bytes, self._data
                )
                self._compute(f"{name}.update", [reduced], shape.ops >> 8)
        if stage > 0:
            self._message(
                SEND, f"mb{batch}.grad_out", last, stage - 1, 2 * (batch * shape.pp + stage - 1) + 1
            )
        return last


def make_step(shape: Shape, folder: Path) -> Path:
    """Write a step: traces in `et`, `workload.json`, `system.json` and `schedules.txt`; returns `folder`."""
    (folder / "et").mkdir(parents=True, exist_ok=True)
    seed = shape.rng.random() if shape.rng else None
    for rank in range(shape.ranks):
        if seed is not None:
            shape.rng = random.Random(seed)
        (folder / "et" / f"workload.{rank}.et").write_bytes(encode(shape.nodes(rank)))
    (folder / "workload.json").write_text(json.dumps(shape.groups()))
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    with (folder / "schedules.txt").open("w") as file:
        file.writelines(line + "\n" for line in shape.schedules())
    return folder


def widen(source: Path, folder: Path, dp: int, pp: int, factor: int) -> Path:
    """Write the step in `source` with `factor` times its tensor parallelism and the same work for each rank.

    Ranks of one stage and data-parallel index run the program of the rank whose tensor index is theirs
    modulo the old degree.
    """
    groups: dict[str, list[int]] = json.loads((source / "workload.json").read_text())
    old_ranks = len(list((source / "et").glob("*.et")))
    old_tp = old_ranks // (dp * pp)
    old, new = Shape(dp, pp, old_tp), Shape(dp, pp, old_tp * factor)
    numbers = {tuple(ranks): name for name, ranks in new.groups().items()}
    (folder / "et").mkdir(parents=True, exist_ok=True)
    for rank in range(new.ranks):
        per_stage = dp * new.tp
        stage, tp, d = rank // per_stage, rank % per_stage // dp, rank % dp
        twin = old.rank(stage, tp % old_tp, d)
        names, peers = {}, {}
        for name, ranks in groups.items():
            if twin in ranks and len(ranks) > 1:
                across = ranks == [old.rank(stage, t, d) for t in range(old_tp)]
                wide = (
                    [new.rank(stage, t, d) for t in range(new.tp)]
                    if across
                    else [new.rank(stage, tp, i) for i in range(dp)]
                )
                names[name] = numbers[tuple(wide)]
        for other in range(pp):
            peers[old.rank(other, tp % old_tp, d)] = new.rank(other, tp, d)
        content = (source / "et" / f"workload.{twin}.et").read_bytes()
        (folder / "et" / f"workload.{rank}.et").write_bytes(_renamed(content, names, peers))
    (folder / "workload.json").write_text(json.dumps(new.groups()))
    (folder / "system.json").write_text((source / "system.json").read_text())
    with (folder / "schedules.txt").open("w") as file:
        file.writelines(line + "\n" for line in new.schedules())
    return folder


def _read(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _read(data, at)
        if key & 7 == 0:
            value, at = _read(data, at)
            yield key >> 3, value
        else:
            length, at = _read(data, at)
            yield key >> 3, data[at : at + length]
            at += length


def _renamed(content: bytes, names: dict[str, str], peers: dict[int, int]) -> bytes:
    """A rank's file with other groups and peers."""
    out: list[bytes] = []
    at = 0
    while at < len(content):
        length, at = _read(content, at)
        message = content[at : at + length]
        at += length
        if b"pg_name" in message or b"comm_src" in message or b"comm_dst" in message:
            message = b"".join(
                _field(number, _renamed_attribute(value, names, peers) if number == 10 else value)
                for number, value in _fields(message)
            )
        out.append(varint(len(message)) + message)
    return b"".join(out)


def _renamed_attribute(value: int | bytes, names: dict[str, str], peers: dict[int, int]) -> int | bytes:
    assert isinstance(value, bytes)
    parts = dict(_fields(value))
    name = parts[1]
    if name == b"pg_name":
        return _field(1, name) + _field(_STRING, names[bytes(parts[_STRING]).decode()].encode())
    if name in (b"comm_src", b"comm_dst"):
        (number, peer) = next((n, v) for n, v in parts.items() if n != 1)
        return _field(1, name) + _field(number, peers[int(peer)])
    return value
