"""The network file: how many ranks, the latency of a link, and how long a reconfiguration takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import number, read_yaml

DEFAULT_LATENCY_NS = 936.25
MAX_LATENCY_NS = 1e9
MAX_DELAY_NS = 600e9  # a device that takes ten minutes is repaired rather than planned with
MAX_RANKS = 65_536


@dataclass(frozen=True, slots=True)
class Network:
    """Ranks, latency and reconfiguration delay in ns."""

    ranks: int
    latency_ns: float
    delay_ns: float


def read_network(path: Path | str) -> Network:
    """The network file; `topology` and `bandwidth` are ignored, bandwidths stand in the schedules."""
    file = Path(path)
    found = read_yaml(file)

    def single(field: str, maximum: float, default: float | None = None) -> float:
        value = found.get(field, default)
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if value is None:
            raise InputError("the field is missing", file=file, field=field)
        return number(value, file=file, field=field, minimum=0, maximum=maximum)

    ranks = single("npus_count", MAX_RANKS)
    if ranks != int(ranks) or ranks < 1:
        raise InputError("it must be a count of ranks", file=file, field="npus_count", value=ranks)
    return Network(
        int(ranks),
        single("latency", MAX_LATENCY_NS, DEFAULT_LATENCY_NS),
        single("reconfig_time", MAX_DELAY_NS, 0.0),
    )
