"""Settings that every test shares."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests import chromium as browser
from tests.postgres import MISSING, PostgresServer, binaries

# A loaded machine makes any one example slow, which says nothing about the code.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The PostgreSQL server of this session. Where its programs are missing tests fail."""
    if os.environ.get("OPUS_TEST_POSTGRES") == "no":
        pytest.skip("PostgreSQL is left out, as OPUS_TEST_POSTGRES=no says")
    if binaries() is None:
        pytest.fail(MISSING)
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> browser.Chromium:
    """A headless browser. Where it is missing tests fail."""
    if os.environ.get("OPUS_TEST_CHROMIUM") == "no":
        pytest.skip("Chromium is left out, as OPUS_TEST_CHROMIUM=no says")
    found = browser.program()
    if found is None:
        pytest.fail(browser.MISSING)
    return browser.Chromium(found, tmp_path_factory.mktemp("chromium"))
