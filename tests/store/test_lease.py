"""The lease of the leader on a real PostgreSQL: one holder at a time, whatever clocks and connections do."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg
import pytest

from opus_sdn.intent.changes import EventAppended
from opus_sdn.store import migrate
from opus_sdn.store.base import StaleEpochError, StoreError
from opus_sdn.store.database import database_of
from opus_sdn.store.lease import Lease, LeaseHeldError, LeaseRecord, open_lease
from opus_sdn.store.postgres import PostgresDatabase
from opus_sdn.store.sql import SqlStore
from tests.api.world import wait_until
from tests.postgres import PostgresServer
from tests.store.world import batch

TTL_S = 3.0
STEP_S = 5.0


@dataclass
class Process:
    """One process: its lease, its store, and a clock of its own that the test moves."""

    url: str
    name: str
    now: float = 1000.0
    started: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        database = database_of(self.url)
        assert isinstance(database, PostgresDatabase)
        self.lease = Lease(
            database,
            holder=self.name,
            address=f"http://{self.name}",
            ttl_s=TTL_S,
            step_deadline_s=STEP_S,
            clock=lambda: self.now,
        )
        self.open()

    def open(self) -> None:
        """Open the store, whose next start number comes with the lease."""
        self.store = SqlStore(self.url, may_start=self.lease.take, started=self.started.append)

    def may(self) -> float:
        """Read the lease; seconds until this process may try to take it."""
        return self.lease.free_in_s(self.lease.read())

    def lead(self) -> int:
        """Take the lease; the epoch."""
        self.may()
        return self.store.raise_start()

    def close(self) -> None:
        self.store.close()
        self.lease.close()


@pytest.fixture
def processes(postgres_url: str) -> Iterator[Callable[[str], Process]]:
    made: list[Process] = []

    def make(name: str) -> Process:
        made.append(Process(postgres_url, name))
        return made[-1]

    yield make
    for process in made:
        process.close()


def turn_server_clock(url: str, seconds: float) -> None:
    """As if the server's clock had been set forward since the lease was renewed."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "UPDATE lease SET renewed_at = renewed_at - %(s)s, expires_at = expires_at - %(s)s, "
            "quiet_at = quiet_at - %(s)s",
            {"s": seconds},
        )


def test_the_first_process_leads_at_once_and_its_epoch_is_the_start_number(
    processes: Callable[[str], Process],
) -> None:
    one = processes("one")
    assert one.may() == 0
    assert one.lead() == 1
    assert one.started == [1]
    record = one.lease.read()
    assert record is not None
    assert (record.epoch, record.holder, record.address) == (1, "one", "http://one")
    assert record.given_s == pytest.approx(TTL_S)
    assert record.step_s == pytest.approx(STEP_S)
    assert one.store.snapshot().start == 1


def test_a_lease_that_is_held_cannot_be_taken_and_the_start_number_stays(
    processes: Callable[[str], Process],
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    assert 0 < two.may() <= TTL_S
    with pytest.raises(LeaseHeldError, match="one at http://one leads, under start 1"):
        two.store.raise_start()
    assert two.store.snapshot().start == 1
    assert one.store.submit(batch(1, EventAppended("still"))).result(timeout=60) == 1


def test_a_lease_that_ran_out_is_taken_and_the_former_leader_writes_nothing_more(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    two.may()
    turn_server_clock(postgres_url, TTL_S + 1)
    two.now += TTL_S
    assert two.may() == 0
    assert two.store.raise_start() == 2
    with pytest.raises(StaleEpochError, match="under start 2; start 1 may not"):
        one.store.submit(batch(1, EventAppended("late"))).result(timeout=60)
    assert not one.lease.renew(1)
    assert two.lease.renew(2)


def test_a_server_clock_that_jumps_forward_gives_nobody_the_lease_of_a_living_leader(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    two.may()
    turn_server_clock(postgres_url, 3600)
    two.now += TTL_S / 2
    assert two.may() == pytest.approx(TTL_S / 2), "it has not seen it unchanged for its time"
    with pytest.raises(LeaseHeldError):
        two.store.raise_start()
    assert one.lease.renew(1)


def test_a_server_clock_that_jumps_back_only_makes_the_successor_wait(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    two.may()
    turn_server_clock(postgres_url, -3600)
    two.now += 10 * TTL_S
    assert two.may() > 3000


def test_a_leader_that_renews_at_the_last_moment_is_not_robbed(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    two.may()
    turn_server_clock(postgres_url, TTL_S + 1)
    two.now += TTL_S
    assert two.may() == 0
    assert one.lease.renew(1)
    turn_server_clock(postgres_url, TTL_S + 1)  # it would have run out again
    with pytest.raises(LeaseHeldError):
        two.store.raise_start()
    assert two.store.snapshot().start == 1


def test_of_many_that_try_at_once_one_leads(processes: Callable[[str], Process]) -> None:
    candidates = [processes(f"p{number}") for number in range(6)]
    assert [candidate.may() for candidate in candidates] == [0] * 6
    together = threading.Barrier(6)

    def attempt(candidate: Process) -> bool:
        together.wait()
        try:
            candidate.store.raise_start()
        except LeaseHeldError:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        assert sorted(threads.map(attempt, candidates)) == [False] * 5 + [True]
    assert candidates[0].store.snapshot().start == 1


def test_a_released_lease_is_free_at_once_and_says_whether_steps_may_be_under_way(
    processes: Callable[[str], Process],
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    one.lease.release(1, drained=True)
    assert two.may() == 0
    assert two.store.raise_start() == 2
    assert two.lease.quiet_until == pytest.approx(two.now, abs=0.5), "nothing is under way"
    two.lease.release(2, drained=False)
    one.now += 50
    one.store.close()
    one.open()
    assert one.may() == 0
    assert one.store.raise_start() == 3
    assert one.lease.quiet_until - one.now == pytest.approx(TTL_S + STEP_S, abs=1.0)


def test_a_successor_waits_for_the_steps_of_its_predecessor_by_both_clocks(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    two.may()
    seen_at = two.now
    turn_server_clock(postgres_url, 3600)  # by the server's clock all of it is long over
    two.now += TTL_S
    two.may()
    two.store.raise_start()
    assert two.lease.quiet_until == pytest.approx(seen_at + TTL_S + STEP_S)


def ended(process: Process, record: LeaseRecord, url: str) -> bool:
    """Whether no writer has a transaction open, after the process has ended what is old."""
    process.lease.end_holder(record)
    with psycopg.connect(url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'opus-sdn-writer' AND xact_start IS NOT NULL"
        ).fetchone()
    return row == (0,)


def test_a_stopped_leaders_open_transaction_does_not_keep_its_successor_out(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two = processes("one"), processes("two")
    one.lead()
    with psycopg.connect(postgres_url, application_name="opus-sdn-writer") as stopped:
        stopped.execute("UPDATE meta SET commits = commits")  # and then it says nothing any more
        two.may()
        turn_server_clock(postgres_url, TTL_S + 1)
        two.now += TTL_S
        record = two.lease.read()
        assert record is not None
        assert two.lease.free_in_s(record) == 0
        wait_until(lambda: ended(two, record, postgres_url), "the open transaction is ended")
        assert two.store.raise_start() == 2, "its own session was not"
        with pytest.raises(psycopg.OperationalError):
            stopped.execute("SELECT 1")


def test_the_writer_of_a_new_leader_is_not_ended_by_one_that_comes_too_late(
    processes: Callable[[str], Process], postgres_url: str
) -> None:
    one, two, three = processes("one"), processes("two"), processes("three")
    one.lead()
    two.may(), three.may()
    turn_server_clock(postgres_url, TTL_S + 1)
    two.now = three.now = 1000.0 + TTL_S
    record = three.lease.read()
    assert record is not None
    two.may()
    two.store.raise_start()
    three.lease.end_holder(record)
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'opus-sdn-writer'"
        ).fetchone()
    assert row == (3,)


def test_a_lease_that_cannot_be_reached_is_an_error_and_not_a_lost_lease() -> None:
    server = PostgresServer()
    try:
        url = server.create()
        migrate.upgrade(url)
        lease = open_lease(url, holder="one", address="http://one", ttl_s=TTL_S, step_deadline_s=STEP_S)
        assert lease.read() is None
        server.stop()
        for call in (lease.read, lambda: lease.renew(1)):
            with pytest.raises(StoreError, match="the lease cannot be reached"):
                call()
        server.start()
        assert lease.read() is None, "it goes on by itself"
        lease.close()
    finally:
        server.remove()


def test_sqlite_has_no_lease() -> None:
    with pytest.raises(StoreError, match=re.escape("opus.db is for one process: use PostgreSQL for several")):
        open_lease("sqlite:///opus.db", holder="x", address="y", ttl_s=1, step_deadline_s=1)
