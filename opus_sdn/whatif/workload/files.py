"""Writes a generated step as the files that replays, and the published simulator, are given."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from opus_sdn.whatif.inputs.network import DEFAULT_LATENCY_NS
from opus_sdn.whatif.inputs.schedules import Schedules
from opus_sdn.whatif.inputs.system import System
from opus_sdn.whatif.trace.write import write_trace

if TYPE_CHECKING:
    from opus_sdn.whatif.workload.accelerators import Accelerator
    from opus_sdn.whatif.workload.generate import Workload

PREFIX = "workload"


def write_workload(
    workload: Workload, folder: Path, accelerator: Accelerator, scale_out_gbps: float, scale_up_gbps: float
) -> None:
    """`workload.<rank>.et`, `workload.json`, `system.json`, `schedules.txt.xz`, `network.yml`, in `folder`.

    Raises InputError, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    trace = workload.trace
    write_trace(trace, folder / PREFIX)
    groups = {group.name: list(group.ranks) for group in trace.groups}
    (folder / f"{PREFIX}.json").write_text(json.dumps(groups) + "\n", encoding="utf-8")
    system = system_document(accelerator.system(workload.efficiency))
    (folder / "system.json").write_text(json.dumps(system, indent=4) + "\n", encoding="utf-8")
    network = {
        "topology": ["FullyConnected"],
        "npus_count": [len(trace.ranks)],
        "bandwidth": [scale_out_gbps],
        "latency": [DEFAULT_LATENCY_NS],
        "reconfig_time": [0.0],
    }
    lines = "".join(f"{name}: {json.dumps(value)}\n" for name, value in network.items())
    (folder / "network.yml").write_text(lines, encoding="utf-8")
    with lzma.open(folder / "schedules.txt.xz", "wb", preset=0) as packed:
        write_schedules(workload.schedules(scale_out_gbps, scale_up_gbps), cast("BinaryIO", packed))


def system_document(system: System) -> dict[str, object]:
    """The system file."""
    rings = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    return {
        "scheduling-policy": "LIFO",
        "endpoint-delay": system.endpoint_delay_ns,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": system.splits,
        **{f"{name}-implementation": ["ring"] for name in rings},
        "collective-optimization": "localBWAware",
        "local-mem-bw": system.memory_gbps,
        "boost-mode": 0,
        "replay-only": 0,
        "roofline-enabled": int(system.roofline),
        "peak-perf": system.peak_tflops,
    }


def write_schedules(schedules: Schedules, file: BinaryIO) -> None:
    """The schedules file. Rows that are one object are written out once."""
    known: dict[int, bytes] = {}
    for number, rows in enumerate(schedules.topologies):
        file.write(f"BW {number}\n".encode())
        for row in rows:
            if id(row) not in known:
                known[id(row)] = (" ".join([f"{cell:.6f}" for cell in row]) + "\n").encode()
            file.write(known[id(row)])
        file.write(b"END\n\n")
