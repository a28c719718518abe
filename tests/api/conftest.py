"""Controllers for the tests of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.world import Controller, controller, fabric


@pytest.fixture
def opus(tmp_path: Path) -> Iterator[Controller]:
    """A controller with two hosts on one switch, and a job `j` of two ranks with the ring `dp`."""
    with controller(tmp_path, declared=fabric()) as client:
        client.declare()
        client.check_in("dp", "world")
        yield client


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Controller]:
    """A controller without a fabric."""
    with controller(tmp_path) as client:
        yield client
