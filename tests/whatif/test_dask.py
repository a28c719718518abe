"""A sweep on the workers of a Dask cluster finds what it finds here."""

from __future__ import annotations

import pytest
from distributed import LocalCluster

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.scenario import Mode
from opus_sdn.whatif.sweeps import points, sweep
from tests.whatif.cases import EIGHT, EXPECTED, schedules, step

WANTED = points([0, 10], [Mode.ON_DEMAND, Mode.PROVISION])


def test_points_are_replayed_by_the_cluster_that_the_address_names() -> None:
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None)
    with cluster:
        found = sweep(step(EIGHT), schedules(EIGHT), WANTED, dask=cluster.scheduler_address)
    runs = EXPECTED[EIGHT]["runs"]
    assert [document["finish_ns"] for document in found] == [
        run["last_rank"] for delay in ("0ms", "10ms") for run in runs[delay].values()
    ]


def test_an_address_where_no_scheduler_answers_is_named() -> None:
    with pytest.raises(InputError, match="no Dask scheduler answers"):
        sweep(step(EIGHT), schedules(EIGHT), WANTED, dask="tcp://127.0.0.1:1")
