"""Every row of the API table, real ranks: what plain gloo gives is what `opus` gives, and it was asked for.

The rows that gloo itself has not are compared with closed forms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo.controller import Controller
from opus_sdn.demo.launcher import Zygote
from opus_sdn.fabric_file import generate_fabric
from tests.shim.api_rows import MESSAGES, ROWS
from tests.shim.small_controller import SmallController, a_fabric
from tests.shim.test_torch_api import places

WORLD = 4
DEADLINE_S = 90.0
# How the backend is asked for, and the mode.
WAYS = {
    "opus": ("opus", "on-demand"),
    "cpu:opus,cuda:opus": ("cpu:opus,cuda:opus", "on-demand"),
    "cpu:gloo,cuda:opus": ("cpu:gloo,cuda:opus", "on-demand"),
    "opus with hints": ("opus", "provision"),
}
SUM_OVER_RANKS = [60.0, 64.0, 68.0, 72.0]
Found = list[dict[str, Any]]

pytestmark = pytest.mark.torch


def table(
    ranks: Zygote,
    controller: SmallController | None,
    backend: str,
    *groups: str,
    gpus: int = 1,
    leave_out: frozenset[str] = frozenset(),
    **more: str,
) -> Found:
    environment = {"OPUS_JOB": "job", "OPUS_DIMENSIONS": "dp=4", **more}
    if controller is not None:
        environment["OPUS_CONTROLLER"] = controller.url
    return ranks.run(
        "tests.shim.api_rows:run",
        WORLD,
        args=(backend, groups or ("world",), leave_out),
        environment=environment,
        rank_environment=places(gpus),
        deadline_s=DEADLINE_S,
    )


@pytest.fixture(scope="module")
def plain(ranks: Zygote) -> Found:
    return table(ranks, None, "gloo")


@pytest.fixture(scope="module")
def through_opus(ranks: Zygote) -> dict[str, Found]:
    """The table in each of the ways; in the first one also in a second group."""
    found = {}
    for way, (backend, mode) in WAYS.items():
        with SmallController(a_fabric(gpus=1)) as controller:
            groups = ("world", "new_group") if way == "opus" else ("world",)
            found[way] = table(ranks, controller, backend, *groups, OPUS_MODE=mode)
    return found


def wanted(plain: Found, name: str) -> list[Any]:
    """What each rank gets: gloo's values, else the closed form."""
    if ROWS[name].on_gloo:
        return [one[f"world: {name}"][0] for one in plain]
    if name == "all_to_all uneven":
        return [
            [[float(10 * source + rank)] * (rank + 1) for source in range(WORLD)] for rank in range(WORLD)
        ]
    assert name == "a refused coalescing, then an all_reduce"
    return [[True, SUM_OVER_RANKS]] * WORLD


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ROWS)
def test_a_call_gives_what_gloo_gives_and_asks_for_its_circuits(
    plain: Found, through_opus: dict[str, Found], name: str, way: str
) -> None:
    groups = ("world", "new_group") if way == "opus" else ("world",)
    for group in groups:
        got = [one[f"{group}: {name}"] for one in through_opus[way]]
        assert [values for values, _ in got] == wanted(plain, name), group
        assert [asked for _, asked in got] == [ROWS[name].gated] * WORLD, group


def test_with_mode_off_every_call_is_gloos_and_nobody_is_asked(ranks: Zygote, plain: Found) -> None:
    not_on_gloo = frozenset(name for name, row in ROWS.items() if not row.on_gloo)
    assert table(ranks, None, "opus", leave_out=not_on_gloo, OPUS_MODE="off") == plain


@pytest.mark.parametrize(
    ("gpus", "leave_out"), [(1, frozenset()), (2, MESSAGES)], ids=["four hosts", "two hosts of two GPUs"]
)
def test_through_the_real_controller_no_operation_meets_a_missing_or_a_moving_circuit(
    ranks: Zygote, plain: Found, tmp_path: Path, gpus: int, leave_out: frozenset[str]
) -> None:
    """On two hosts an all-to-all goes to the right rail first, then along it.

    The table's messages go around the rank list, where neighbours of two hosts would be on two rails.
    """
    fabric = generate_fabric(hosts=WORLD // gpus, gpus_per_host=gpus, delay_ms=5)
    with Controller(fabric, tmp_path) as controller:
        environment = controller.environment("job")
        found = table(ranks, None, "opus", gpus=gpus, leave_out=leave_out, **environment)
        report = controller.witness()
        assert controller.get("/jobs/job")["state"] == "ended"
    for name in ROWS.keys() - leave_out:
        assert [one[f"world: {name}"][0] for one in found] == wanted(plain, name), name
    assert (report["violations"], report["active"]) == ([], 0)
    asked = sum(row.gated for name, row in ROWS.items() if name not in leave_out)
    assert report["operations"] == WORLD * asked
