"""Lists come in pages, in one order, each entry once."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.api.world import PREFIX, Controller, controller, fabric, wait_until


def pages(opus: Controller, path: str, name: str, limit: int, **query: str) -> list[str]:
    """All entries of a list, page by page, as text."""
    found: list[str] = []
    cursor: str | None = None
    for _ in range(100):
        page = opus.get(path, limit=limit, **query, **({} if cursor is None else {"cursor": cursor}))
        assert len(page[name]) <= limit
        found += [str(entry) for entry in page[name]]
        cursor = page["next"]
        if cursor is None:
            return found
    raise AssertionError("the list never ends")


def test_every_list_can_be_read_in_pages_of_any_size(tmp_path: Path) -> None:
    with controller(tmp_path, declared=fabric(hosts=6, slots=2)) as opus:
        opus.declare(world=6)
        for i in range(5):
            opus.check_in(f"g{i}", [i, i + 1])
        for i in (0, 2, 4):
            for rank in (i, i + 1):
                opus.arrive(rank, f"g{i}", 0)
        for i in (1, 3):
            opus.arrive(i, f"g{i}", 0)
        wait_until(lambda: len(opus.get("/locks", limit=500)["locks"]) == 6, "the three rings are granted")
        opus.declare("k0", world=1, nonce="1", placement=[{"rank": 0, "host": "h0", "slot": 1}])
        opus.declare("k1", world=1, nonce="1", placement=[{"rank": 0, "host": "h1", "slot": 1}])
        for path, name, query, least in (
            ("/rails", "rails", {}, 2),
            ("/switches", "switches", {}, 1),
            ("/ports", "ports", {}, 24),
            ("/jobs", "jobs", {}, 3),
            ("/jobs/j/groups", "groups", {}, 5),
            ("/connections", "connections", {"job": "j"}, 5),
            ("/intents", "intents", {"job": "j"}, 2),
        ):
            whole = [str(entry) for entry in opus.get(path, limit=500, **query)[name]]
            assert len(whole) >= least, path
            for limit in (1, 2, 7):
                assert pages(opus, path, name, limit, **query) == whole, (path, limit)
                assert len(set(whole)) == len(whole)


def test_locks_and_intents_can_be_asked_for_by_job(opus: Controller) -> None:
    opus.arrive(0, "dp", 0)
    assert opus.get("/intents", job="j")["intents"]
    assert opus.get("/locks", job="other")["locks"] == []
    unknown = opus.http.get(f"{PREFIX}/intents", params={"job": "other"})
    assert unknown.status_code == 404


@pytest.mark.parametrize("key", ["[NaN]", "[0, NaN]", "[Infinity]", "[1e999]", "[null]", "{}", '["j"'])
def test_a_cursor_that_has_no_place_in_an_order_is_refused(opus: Controller, key: str) -> None:
    cursor = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
    for path in ("/ports", "/locks", "/jobs"):
        refused = opus.http.get(PREFIX + path, params={"cursor": cursor})
        assert (refused.status_code, refused.json()["field"]) == (422, "query.cursor")


@pytest.mark.parametrize("path", ["/rails/rail0"])
def test_a_representation_that_the_client_has_is_not_sent_again(opus: Controller, path: str) -> None:
    first = opus.http.get(PREFIX + path)
    tag = first.headers["ETag"]
    assert opus.http.get(PREFIX + path, headers={"If-None-Match": f'"x", {tag}'}).status_code == 304
    opus.arrive(0, "dp", 0)
    opus.arrive(1, "dp", 0, wait_s=30)
    changed = opus.http.get(PREFIX + path, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["ETag"] != tag
    rail = changed.json()
    assert rail["topology"] == {"j": "1"}
    assert [circuit["id"] for circuit in rail["observed"]] == ["h0:0:1--h1:0:0"]
    assert rail["matching"] == [{"ingress": 1, "egress": 2}, {"ingress": 2, "egress": 1}]
