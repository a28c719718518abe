"""How the controller knows the groups that programs make, and where ranks sit; real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opus_sdn.demo.launcher import Zygote
from opus_sdn.intent.model import Domain
from tests.shim.small_controller import SmallController, a_fabric
from tests.shim.test_torch_api import DEADLINE_S, run

PROGRAMS = "tests.shim.group_programs"

pytestmark = pytest.mark.torch


def known(controller: SmallController) -> dict[tuple[tuple[int, ...], int], tuple[str, Domain]]:
    """Dimension and domain of each checked-in group, by its ranks and its ordinal among groups of these."""
    groups = controller.engine.state.jobs["job"].groups.values()
    return {(g.spec.ranks, g.spec.ordinal): (g.spec.dimension, g.domain) for g in groups}


def test_dimensions_have_the_names_of_the_device_mesh(ranks: Zygote) -> None:
    with SmallController(a_fabric(hosts=4, gpus=2)) as controller:
        found = run(ranks, controller, f"{PROGRAMS}:meshes", "opus", world=8, gpus=2, OPUS_DIMENSIONS="")
        groups = known(controller)
    for rank, said in enumerate(found):
        assert said == {
            "whole is the default group": True,
            "pp": 2 * (rank % 4) + 4,
            "dp_shard": 2 * (rank // 4 * 4 + rank % 2) + 2,
            "tp": 2 * (rank // 2 * 2) + 1,
            "pp_dp": 12 if rank % 2 == 0 else 16,
            "world": 28,
        }
    assert groups == {
        **{((r, r + 4), 0): ("pp", Domain.SCALE_OUT) for r in range(4)},
        **{((r, r + 2), 0): ("dp_shard", Domain.SCALE_OUT) for r in (0, 1, 4, 5)},
        **{((r, r + 1), 0): ("tp", Domain.SCALE_UP) for r in (0, 2, 4, 6)},
        **{((r, r + 2, r + 4, r + 6), 0): ("pp_dp", Domain.SCALE_OUT) for r in (0, 1)},
        (tuple(range(8)), 0): ("world", Domain.FRONT_END),
    }


def test_a_group_that_nobody_names_is_known_by_the_file_or_by_what_it_does_first(
    ranks: Zygote, tmp_path: Path
) -> None:
    file = tmp_path / "groups.json"
    file.write_text(json.dumps([{"ranks": [0, 2], "dimension": "cp"}, {"ranks": [1, 2], "dimension": "ep"}]))
    with SmallController(a_fabric(gpus=1)) as controller:
        run(
            ranks,
            controller,
            f"{PROGRAMS}:groups_that_nobody_names",
            "opus",
            OPUS_DIMENSIONS="",
            OPUS_GROUPS=str(file),
        )
        groups = {key: dimension for key, (dimension, _) in known(controller).items()}
    assert groups == {
        ((0, 1), 0): "pp",
        ((0, 1, 2), 0): "dp_shard",
        ((0, 1, 2), 1): "dp",
        ((0, 1, 2), 2): "ep",
        ((1, 2), 0): "ep",
        ((0, 2), 0): "cp",
    }


def test_a_group_that_is_split_off_asks_for_its_circuits_too(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=1)) as controller:
        found = run(ranks, controller, f"{PROGRAMS}:splits", "opus", OPUS_DIMENSIONS="")
        groups = {key: dimension for key, (dimension, _) in known(controller).items()}
        assert controller.job_grants("job") == 3
    for rank, said in enumerate(found):
        members = [0, 2] if rank % 2 == 0 else [1, 3]
        assert said == {
            "type": "OpusGroup",
            "ranks": members,
            "sum": float(sum(members)),
            "member": rank in (1, 2),
        }
    assert groups[(0, 2), 0] == groups[(1, 3), 0] == "dp"


def test_a_job_may_use_some_gpus_of_a_host_by_their_slots(ranks: Zygote) -> None:
    """Two hosts of four GPUs, of which the job has slots 3 and 1: two rails that the local rank knows not."""

    def place(rank: int) -> dict[str, str]:
        environment: dict[str, Any] = {"OPUS_HOST": f"host{rank // 2}", "LOCAL_RANK": str(rank % 2)}
        return environment | {"CUDA_VISIBLE_DEVICES": "3,1"}

    with SmallController(a_fabric(hosts=2, gpus=4)) as controller:
        found = ranks.run(
            "tests.shim.rank_programs:all_reduces",
            4,
            args=("opus", 2),
            environment={
                "OPUS_CONTROLLER": controller.url,
                "OPUS_JOB": "job",
                "OPUS_DIMENSIONS": "dp=4",
            },
            rank_environment=place,
            deadline_s=DEADLINE_S,
        )
        job = controller.engine.state.jobs["job"]
        assert [(p.host, p.slot) for p in job.spec.placement] == [
            ("host0", 3),
            ("host0", 1),
            ("host1", 3),
            ("host1", 1),
        ]
        (ring,) = job.connections.values()
        assert {circuit.rail for circuit in ring.circuits} == {"rail1", "rail3"}
    assert found == [[6.0, 10.0]] * 4
