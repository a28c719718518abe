"""Whether NCCL, as its environment tells it, will talk along the circuits that its groups are granted.

NCCL chooses by itself who talks to whom. Circuits join each member of a group with its neighbours on its rail
and nobody else, so NCCL has to use rings, in the order of the circuits, by the ports that they end on. Pure;
the rules are read from NCCL's documentation and source and have not been tried on GPUs yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CIRCUIT = re.compile(r"(.+):(\d+):(\d+)(?:--|->)(.+):(\d+):(\d+)")  # host:slot:port to host:slot:port
RING = "ring"
ALGORITHMS = frozenset({"tree", RING, "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat"})
INSIDE_HOSTS = frozenset({RING, "nvls"})  # nvls alone is a host's own; nvlstree goes on as a tree


@dataclass(frozen=True, slots=True)
class Finding:
    """A setting that does not fit. `refuse`: data would wait for a circuit that is not there."""

    refuse: bool
    variable: str
    value: str
    why: str
    remedy: str

    def __str__(self) -> str:
        shown = repr(self.value) if self.value else "not set"
        return f"{self.variable} is {shown}: {self.why}; {self.remedy}"


def check_nccl(
    env: Mapping[str, str],
    ranks: Sequence[int],
    places: Sequence[tuple[str, int]],
    circuits: Sequence[str],
) -> tuple[Finding, ...]:
    """What does not fit a group of `ranks`, at `places` (host, slot), over these circuits; refusals first."""
    ends = [found.groups() for circuit in circuits if (found := CIRCUIT.fullmatch(circuit)) is not None]
    if not ends:
        return ()
    rails = _rails(places, {((a, int(s)), (b, int(t))) for a, s, _, b, t, _ in ends})
    crossed = any(p != q for _, _, p, _, _, q in ends)
    several_ports = len({port for _, _, p, _, _, q in ends for port in (p, q)}) > 1
    checks = (
        *_algorithm(env, longest=max(map(len, rails))),
        *_order(ranks, places, rails),
        *_cross_nic(env, crossed, many_rails=len(rails) > 1),
        *_others(env, several_ports, many_rails=len(rails) > 1),
    )
    return tuple(sorted(checks, key=lambda finding: not finding.refuse))


def _rails(
    places: Sequence[tuple[str, int]], joined: set[tuple[tuple[str, int], tuple[str, int]]]
) -> list[list[tuple[str, int]]]:
    """The members that circuits join, each set in rank-list order, which is that of the ring."""
    name = {place: number for number, place in enumerate(places)}
    for a, b in joined:
        if a in name and b in name:
            low, high = sorted((name[a], name[b]))
            name = {place: low if number == high else number for place, number in name.items()}
    return [[place for place in places if name[place] == number] for number in sorted(set(name.values()))]


def _algorithm(env: Mapping[str, str], longest: int) -> list[Finding]:
    """On two members every algorithm uses their one link; on more, all but rings need other ones."""
    value = env.get("NCCL_ALGO", "").strip()
    others = sorted(_allowed(value) - INSIDE_HOSTS)
    if longest < 3 or not others:
        return []
    return [
        Finding(
            True,
            "NCCL_ALGO",
            value,
            f"it allows {', '.join(others)} between {longest} hosts of a rail, whose circuits are a ring",
            "set NCCL_ALGO=Ring",
        )
    ]


def _allowed(value: str) -> set[str]:
    """What NCCL_ALGO allows for some function: `ring,tree`, `^tree`, `allreduce:ring;broadcast:ring`."""
    found: set[str] = set()
    parts = [part.strip().lower() for part in value.split(";") if part.strip()]
    for part in parts or ["^"]:
        listed = part.rpartition(":")[2]
        names = {name.strip() for name in listed.lstrip("^").split(",") if name.strip()}
        found |= ALGORITHMS - names if listed.startswith("^") else names
    if parts and all(":" in part for part in parts):
        functions = {part.partition(":")[0].strip() for part in parts}
        if not {"allreduce", "allgather", "reducescatter", "broadcast", "reduce"} <= functions:
            found |= ALGORITHMS  # functions that are not named choose freely
    return found


def _order(
    ranks: Sequence[int], places: Sequence[tuple[str, int]], rails: Sequence[Sequence[tuple[str, int]]]
) -> list[Finding]:
    """NCCL goes from host to host in the order of their first ranks, the same way on all rails."""
    hosts = list(dict.fromkeys(host for host, _ in places))
    for rail in rails:
        ring = [host for host, _ in rail]
        if len(ring) < 3 or len(set(ring)) < len(ring):
            continue
        wanted = [host for host in hosts if host in set(ring)]
        at = wanted.index(ring[0])
        if wanted[at:] + wanted[:at] != ring:
            return [
                Finding(
                    True,
                    "the group's rank list",
                    str(list(ranks)),
                    f"NCCL's ring visits hosts {', '.join(wanted)}, the circuits of slot {rail[0][1]} join "
                    f"{', '.join(ring)}, in this order",
                    "number the ranks so that every GPU slot meets the hosts in the same order",
                )
            ]
    return []


def _cross_nic(env: Mapping[str, str], crossed: bool, many_rails: bool) -> list[Finding]:
    value = env.get("NCCL_CROSS_NIC", "").strip()
    if crossed and value != "1":
        why = "circuits leave a GPU by one port and enter the next by another; NCCL takes them for two NICs"
        return [Finding(value == "0", "NCCL_CROSS_NIC", value, why, "set NCCL_CROSS_NIC=1")]
    if not crossed and many_rails and value != "0":
        why = "a ring may change the rail between hosts, and no circuit joins two rails"
        return [Finding(value == "1", "NCCL_CROSS_NIC", value, why, "set NCCL_CROSS_NIC=0")]
    return []


def _others(env: Mapping[str, str], several_ports: bool, many_rails: bool) -> list[Finding]:
    found = []
    if env.get("NCCL_RUNTIME_CONNECT", "").strip() == "0":
        why = "communicators connect when they are made, before any circuit was granted"
        found.append(Finding(True, "NCCL_RUNTIME_CONNECT", "0", why, "leave it unset"))
    if env.get("NCCL_COLLNET_ENABLE", "").strip() == "1":
        why = "reductions inside the network need packet switches"
        found.append(Finding(True, "NCCL_COLLNET_ENABLE", "1", why, "set NCCL_COLLNET_ENABLE=0"))
    pxn = env.get("NCCL_PXN_DISABLE", "").strip()
    if many_rails and pxn != "1":
        why = "messages may leave by the NIC of another GPU of the host, which has circuits of its own"
        found.append(Finding(False, "NCCL_PXN_DISABLE", pxn, why, "set NCCL_PXN_DISABLE=1"))
    merged = env.get("NCCL_IB_MERGE_NICS", "").strip()
    if several_ports and merged != "0":
        why = "the ports of one card may be used as one, and they lead to different peers"
        found.append(Finding(False, "NCCL_IB_MERGE_NICS", merged, why, "set NCCL_IB_MERGE_NICS=0"))
    return found
