"""One example of every request, for the API document: a job of 8 ranks on two hosts, pipeline 2 x data 4."""

from __future__ import annotations

from typing import Any

JOB: dict[str, Any] = {
    "owner": "training-team",
    "nonce": "f3b1c2d4",
    "placement": [{"rank": rank, "host": f"gpu{rank // 4}", "slot": rank % 4} for rank in range(8)],
    "dimensions": [{"name": "pp", "size": 2}, {"name": "dp", "size": 4}],
    "port_choice": "standard",
    "world_group": "auto",
    "force_scale_out": False,
    "deadline_s": 1620.0,
    "initial_topology": None,
    "admission": "refuse",
}
GROUP: dict[str, Any] = {"incarnation": 1, "ranks": [0, 4], "dimension": "pp", "ordinal": 0}
GROUPS: dict[str, Any] = {
    "incarnation": 1,
    "groups": [
        {"name": "world", "ranks": "world", "dimension": "world", "ordinal": 0},
        {"name": "pp-0", "ranks": [0, 4], "dimension": "pp", "ordinal": 0},
        {"name": "dp-0", "ranks": {"start": 0, "stop": 4, "step": 1}, "dimension": "dp", "ordinal": 0},
    ],
}
ARRIVALS: dict[str, Any] = {
    "incarnation": 1,
    "seen_start": 7,
    "wait_s": 20.0,
    "ranks": [
        {
            "rank": 0,
            "last_grant": 3,
            "releases": [{"connection": "pp-0:0-4", "source": 0, "destination": 4, "n": 2, "length": 1}],
            "arrivals": [{"connection": "dp-0", "n": 0, "closed": 1, "quiet": 1, "blocking": True}],
            "hints": [{"connection": "pp-0:0-4", "source": 0, "destination": 4, "n": 3}],
        }
    ],
}
ABORT: dict[str, Any] = {"incarnation": 1, "rank": 0, "detail": "out of memory"}
FAILURE: dict[str, Any] = {
    "incarnation": 1,
    "rank": 0,
    "connection": "dp-0",
    "n": 0,
    "detail": "connection closed by peer",
}
DEATHS: dict[str, Any] = {"incarnation": 1, "ranks": [4], "detail": "signal 9"}
LINKS: dict[str, Any] = {
    "incarnation": 1,
    "rank": 4,
    "ports": [{"index": 0, "up": True, "detail": "eth2 has carrier"}],
}
DRAIN: dict[str, Any] = {"by": "ann", "detail": "cleaning the connector", "force": False}
UNDRAIN: dict[str, Any] = {"by": "ann", "detail": "cleaned", "force": False}
CIRCUIT: dict[str, Any] = {"by": "ann", "a": "gpu0:0:0", "b": "gpu3:0:0", "detail": "link test"}
SIMULATION: dict[str, Any] = {
    "label": "llama, 50 ms",
    "inputs": {
        "et": {"path": "llama/workload_et.tar.xz"},
        "groups": {"name": "workload.json", "text": '{"0": [0, 1]}'},
        "system": {"path": "llama/system.json"},
        "schedules": {
            "name": "schedules.txt",
            "content": "QlcgMAowIDUwCjUwIDAKRU5ECkJXIDEKMCA1MAo1MCAwCkVORAo=",
        },
    },
    "sweep": {"delays_ms": [10, 50, 100], "modes": ["on-demand", "provision"], "semantics": ["opus"]},
}
PLAN: dict[str, Any] = {
    "by": "ann",
    "detail": "cleaning the connector",
    "change": {"kind": "drain", "port": "gpu0:0:0"},
}
FABRIC: dict[str, Any] = {
    "version": 1,
    "hosts": ["gpu[0-3]"],
    "gpus_per_host": 2,
    "ports_per_gpu": 2,
    "circuit": "duplex",
    "switches": [
        {
            "name": "ocs0",
            "driver": "emulated",
            "size": 16,
            "layout": "sided",
            "options": {"delay_ms": 50},
        }
    ],
    "rails": [
        {"name": "rail0", "slots": [0], "switch": "ocs0", "first_port": 0},
        {"name": "rail1", "slots": [1], "switch": "ocs0", "first_port": 8},
    ],
}
