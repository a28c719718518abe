"""Real ranks for the tests of the torch backend: one fork server for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from opus_sdn.demo.launcher import Zygote


@pytest.fixture(scope="session")
def ranks() -> Iterator[Zygote]:
    """A fork server with torch imported; ranks forked from it start in milliseconds."""
    with Zygote() as zygote:
        yield zygote
