"""What ranks record of the operations that they issue, through real process groups."""

from __future__ import annotations

import pytest

from opus_sdn.demo.launcher import Zygote
from tests.shim.small_controller import SmallController, a_fabric
from tests.shim.test_torch_api import run

pytestmark = pytest.mark.torch


def test_every_operation_is_recorded_with_its_name_its_size_and_its_moments_in_order(ranks: Zygote) -> None:
    with SmallController(a_fabric(gpus=2)) as controller:
        found = run(ranks, controller, "recorded", "opus", gpus=2)
    for rank, records in enumerate(found):
        message = ("send", (rank, rank + 2)) if rank < 2 else ("recv", (rank - 2, rank))
        said = [(one["kind"], one["dimension"], one["gated"], one["n"], one["bytes"]) for one in records]
        assert said == [
            ("allreduce", "world", True, 0, 16),
            ("all_gather_single", "world", True, 1, 64),
            ("allreduce", "dp", False, None, 8),
            (message[0], "world", True, 0, 32),
            ("barrier", "world", True, 2, 0),
        ]
        assert (records[3]["kind"], records[3]["ends"]) == message
        assert records[3]["peer"] == (rank + 2) % 4
        for one in records:
            called, arrived, granted, issued, wait_begin, wait_end, finished = one["moments"]
            steps = (
                [called, arrived, granted, issued, finished] if one["gated"] else [called, issued, finished]
            )
            assert steps == sorted(steps)
            assert 0 < called <= wait_begin <= wait_end
            assert issued <= finished
            if one["gated"]:
                assert finished <= wait_end
            else:
                assert (arrived, granted) == (0, 0), "nobody was asked"
