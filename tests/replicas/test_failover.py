"""Leaders that are stopped, killed, or lose their database: another one takes over, and no step is stale."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer
from tests.replicas.world import FAILOVER_S, Cluster, Failover, Job, cluster_of, stale_operations

SCALE = float(os.environ.get("OPUS_TEST_SCALE", "1"))
FAILOVERS = 3 if SCALE <= 1 else 50
KILLS = 2 if SCALE <= 1 else 20
HOW = ("stopped", "killed", "database restarted")


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server of this test's own, to be restarted."""
    server = PostgresServer()
    yield server
    server.remove()


def fail_over(cluster: Cluster, how: str) -> Failover:
    """End the leader's leading in one way, and wait until somebody leads; then all is as many as before."""
    leader = cluster.leader()
    began = time.monotonic()
    if how == "database restarted":
        cluster.postgres.stop(signal.SIGKILL if random.random() < 0.5 else signal.SIGINT)
        cluster.postgres.start()
        began = time.monotonic()  # nobody can lead before it is there
        cluster.leader()
        return Failover(how, time.monotonic() - began)
    leader.signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
    cluster.leader(other_than=leader)
    took_s = time.monotonic() - began
    if how == "stopped":
        leader.signal(signal.SIGCONT)
    else:
        cluster.start_again(leader)
    return Failover(how, took_s)


def test_a_new_leader_goes_on_with_the_running_job_whatever_ended_the_old_one(
    tmp_path: Path, own_postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    choose = random.Random(7)
    with cluster_of(tmp_path, own_postgres, own_postgres.create(), 3) as cluster:
        cluster.leader()
        job = Job(cluster)
        job.wait_for_turns(3)
        done: list[Failover] = []
        for number in range(FAILOVERS):
            how = HOW[number % 3] if FAILOVERS < 10 else choose.choice(HOW)
            done.append(fail_over(cluster, how))
            with capsys.disabled():
                sys.stderr.write(f"{number + 1}/{FAILOVERS}: {how}: {done[-1].took_s:.2f} s\n")
            job.wait_for_turns(2)
        epochs = {operation.epoch for operation in cluster.switch.operations()}
        violations = cluster.switch.do(lambda: list(cluster.witness.violations))
        job.end()
        assert len(epochs) > 2, "the job has moved the switch under several leaders"
        assert stale_operations(cluster) == []
        assert violations == [], "a circuit was moved under traffic"
        slow = [each for each in done if each.took_s > FAILOVER_S]
        assert slow == [], f"later than 2 TTL + the longest step deadline = {FAILOVER_S:g} s"


def test_a_database_that_is_killed_under_load_costs_the_running_job_nothing_but_time(
    tmp_path: Path, own_postgres: PostgresServer
) -> None:
    """Every process of the server is killed; what it had not written is lost, and said again by the ranks."""
    choose = random.Random(3)
    with cluster_of(tmp_path, own_postgres, own_postgres.create(), 1) as cluster:
        leader = cluster.leader()
        job = Job(cluster)
        for _ in range(KILLS):
            job.wait_for_turns(2)
            time.sleep(choose.uniform(0.0, 0.1))  # at any moment of a turn
            own_postgres.stop(signal.SIGKILL)
            own_postgres.start()
            job.wait_for_turns(2)
        violations = cluster.switch.do(lambda: list(cluster.witness.violations))
        job.end()
        assert leader.process.poll() is None, "the process stays"
        assert violations == [], "a circuit was moved under traffic"
        assert stale_operations(cluster) == []
