"""Topology ids: one decimal digit per pipeline stage, leftmost = stage 0, and the published bit forms.

0 = pipeline links, 1 = data-parallel ring, 2 and up = further dimensions; `x` mixed, `-` dark. The
published forms have one bit per stage, 1 = pipeline and 0 = data-parallel; the controller of the artifact
keeps stage 0 in the least significant bit, its simulator in the most significant one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from opus_sdn.intent.errors import CoreError, Problem
from opus_sdn.intent.fabric import Circuit, Fabric
from opus_sdn.intent.model import GroupSpec, JobSpec
from opus_sdn.intent.ranks import Layout, digit_map
from opus_sdn.intent.routing import LEFT, RIGHT, link, ring

MIXED = "x"
DARK = "-"


class BitOrder(StrEnum):
    """Where the published bit form keeps stage 0."""

    CONTROLLER = "controller"  # least significant
    SIMULATOR = "simulator"  # most significant


def from_bits(bits: int, stages: int, order: BitOrder) -> str:
    """Digits of a published bit topology id; ValueError when it does not fit the number of stages."""
    if not 0 <= bits < 1 << stages:
        raise ValueError(f"bit topology id {bits} does not fit {stages} stages (0 to {(1 << stages) - 1})")
    digits = ["0" if bits >> stage & 1 else "1" for stage in range(stages)]
    return "".join(digits if order is BitOrder.CONTROLLER else reversed(digits))


def to_bits(digits: str, order: BitOrder) -> int:
    """The published bit form; ValueError when a stage is neither pipeline (0) nor data-parallel (1)."""
    if set(digits) - {"0", "1"}:
        raise ValueError(f"topology id {digits!r} has no bit form: only digits 0 and 1 have one")
    stages = digits if order is BitOrder.CONTROLLER else digits[::-1]
    return sum(1 << stage for stage, digit in enumerate(stages) if digit == "0")


def topology_id(stages: int, owners: Iterable[tuple[int, int | None]]) -> str:
    """The id of what is up: `owners` has (stage, digit of the owning dimension) for every circuit end."""
    seen: list[set[int | None]] = [set() for _ in range(stages)]
    for stage, digit in owners:
        seen[stage].add(digit)
    return "".join(_stage_digit(digits) for digits in seen)


def _stage_digit(digits: set[int | None]) -> str:
    if not digits:
        return DARK
    if len(digits) == 1:
        digit = next(iter(digits))
        if digit is not None and digit <= 9:
            return str(digit)
    return MIXED


def circuits_of(fabric: Fabric, spec: JobSpec, layout: Layout, wanted: str) -> Mapping[Circuit, int]:
    """Circuits that make topology id `wanted` out of a job's ports, each with its digit.

    Pipeline links join each stage to the next one cyclically (with one stage, a GPU's right port to its own
    left one) and exist only where both stages say 0, as in the published bit form.
    Raises CoreError `invalid-request` for another length or for a digit that no dimension has.
    """
    names = {digit: name for name, digit in digit_map(spec.dimensions, spec.legacy_digits).items()}
    if len(wanted) != layout.stages:
        raise CoreError(
            Problem.INVALID_REQUEST,
            f"initial_topology {wanted!r} has {len(wanted)} digits; the job has "
            f"{layout.stages} pipeline stages",
            field="initial_topology",
        )
    circuits: dict[Circuit, int] = {}
    for text in sorted(set(wanted)):
        if text == "0":
            found = _pipeline_circuits(fabric, spec, layout, wanted, names.get(0))
        elif text in "123456789" and int(text) in names:
            found = _ring_circuits(fabric, spec, layout, wanted, names[int(text)], text)
        else:
            known = ", ".join(f"{d} {n}" for d, n in sorted({0: "pipeline", **names}.items()))
            raise CoreError(
                Problem.INVALID_REQUEST,
                f"initial_topology {wanted!r}: no dimension has digit {text!r}; known digits: {known}",
                field="initial_topology",
            )
        circuits.update(dict.fromkeys(found, int(text)))
    return circuits


def _pipeline_circuits(
    fabric: Fabric, spec: JobSpec, layout: Layout, wanted: str, name: str | None
) -> list[Circuit]:
    lines = layout.lines(name) if name else tuple((rank,) for rank in range(layout.world))
    circuits: list[Circuit] = []
    for line in lines:
        links = list(zip(line, line[1:] + line[:1], strict=True))
        for first, second in links[:1] if len(line) == 2 else links:
            a, b = spec.placement[first], spec.placement[second]
            if first == second and fabric.ports_per_gpu == 1:
                raise CoreError(
                    Problem.INVALID_REQUEST,
                    f"initial_topology {wanted!r}: with one pipeline stage, 0 joins a GPU's right port to "
                    "its own left one, which takes two ports per GPU; this fabric has one",
                    field="initial_topology",
                )
            both = wanted[layout.stage_of[first]] == wanted[layout.stage_of[second]] == "0"
            if both and (a.host != b.host or first == second or spec.force_scale_out):
                circuits += link(fabric, a, RIGHT, b, LEFT)
    return circuits


def _ring_circuits(
    fabric: Fabric, spec: JobSpec, layout: Layout, wanted: str, name: str, digit: str
) -> list[Circuit]:
    circuits: list[Circuit] = []
    for line in layout.lines(name):
        if all(wanted[layout.stage_of[rank]] == digit for rank in line):
            circuits += ring(fabric, spec, layout, GroupSpec(name, line, name)).circuits
    return circuits
