"""The page on which a person watches, and the side door through which tests and people set faults."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from opus_sdn.drivers.polatis_emulator import PolatisEmulator
from tests.emulator.clients import PATIENCE_S, asynchronous, switch


async def ask(emulator: PolatisEmulator, method: str, path: str, body: Any = None) -> httpx.Response:
    async with httpx.AsyncClient(base_url=emulator.page_url, trust_env=False, timeout=PATIENCE_S) as client:
        return await client.request(method, path, json=body)


class Cells(HTMLParser):
    """The words of a page, cell by cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


@asynchronous
async def test_the_page_shows_the_circuits_their_light_and_who_made_them() -> None:
    async with switch(initial=((1, 9), (2, 10))) as (emulator, restconf, tl1):
        await tl1.lines("OPR-PORT-SHUTTER::2:1:;")
        await restconf.patch((3, 11))
        emulator.next_reply("reply-lost")
        await emulator.set_faults(tuning_ms={5: 40.0})
        answer = await ask(emulator, "GET", "/")
        page = Cells(answer.text)
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        rows = [page.words[begin : begin + 4] for begin in range(len(page.words) - 3)]
        assert ["1", "9", "lit", "-1.00 dBm"] in rows
        assert ["2", "10", "dark", "-60.00 dBm"] in rows
        assert page.tags.count("line") == 3
        assert "admin (restconf)" in page.words
        assert "3:11" in page.words
        assert "tuning_ms = {'5': 40.0}" in page.words
        assert "next write request: reply-lost, 1 times" in page.words
        assert "script" not in page.tags
        assert "http-equiv=refresh" in answer.text


@asynchronous
async def test_what_comes_from_clients_is_text_on_the_page_and_nothing_else() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, _):
        label = {"port": {"label": "<script>alert(1)</script>"}}
        await restconf.ask("PATCH", "/api/data/port-config/port=1", label)
        page = Cells((await ask(emulator, "GET", "/")).text)
        assert "script" not in page.tags
        assert "1 <script>alert(1)</script>" in page.words


@pytest.mark.parametrize("size", ["16xCC", "512x512"])
@asynchronous
async def test_the_page_is_there_for_every_size(size: str) -> None:
    async with switch(size) as (emulator, _, _tl1):
        assert "No circuits." in Cells((await ask(emulator, "GET", "/")).text).words


@asynchronous
async def test_the_side_door_sets_faults_and_refuses_what_is_none() -> None:
    async with switch() as (emulator, _, _tl1):
        answer = await ask(emulator, "PATCH", "/emulator/faults", {"remote_lock": True})
        assert answer.status_code == 200
        answer = await ask(
            emulator, "PATCH", "/emulator/faults", {"tuning_ms": {"9": 5.0}, "disabled": ["tl1"]}
        )
        assert answer.json()["remote_lock"] is True
        assert emulator.faults.tuning_ms == {9: 5.0}
        for wrong in ({"remote_lok": True}, {"remote_lock": "yes"}, {"session_limit": -1}, [], None):
            answer = await ask(emulator, "PATCH", "/emulator/faults", wrong)
            assert answer.status_code in (415, 422), wrong
        assert emulator.faults.remote_lock
        await ask(emulator, "PUT", "/emulator/faults", {})
        assert emulator.faults.model_dump(exclude_defaults=True) == {}


@asynchronous
async def test_the_side_door_sets_and_forgets_reply_faults() -> None:
    async with switch() as (emulator, restconf, _):
        await ask(emulator, "POST", "/emulator/replies", {"kind": "unavailable", "times": 2})
        assert await restconf.patch((1, 9)) == 503
        left = (await ask(emulator, "GET", "/emulator/replies")).json()
        assert [(fault["kind"], fault["times"]) for fault in left] == [("unavailable", 1)]
        assert (await ask(emulator, "PUT", "/emulator/replies", [])).json() == []
        assert await restconf.patch((1, 9)) == 204
        assert (await ask(emulator, "POST", "/emulator/replies", {"kind": "boredom"})).status_code == 422


@asynchronous
async def test_the_side_door_restarts_changes_circuits_and_knows_who_asked_what() -> None:
    async with switch() as (emulator, restconf, _):
        await restconf.patch((1, 9))
        answer = await ask(emulator, "POST", "/emulator/circuits", {"connect": [[2, 9]]})
        assert answer.json() == {"removed": [[1, 9]], "added": [[2, 9]], "displaced": [[1, 9]]}
        answer = await ask(emulator, "POST", "/emulator/circuits", {"connect": [[2, 99]]})
        assert (answer.status_code, answer.json()) == (409, {"error": "Invalid OXC port: 99"})
        await ask(emulator, "POST", "/emulator/reboot", {"kept": "nothing", "ms": 0})
        assert (await ask(emulator, "GET", "/emulator")).json()["circuits"] == []
        (asked,) = (await ask(emulator, "GET", "/emulator/requests")).json()[-1:]
        assert (asked["user"], asked["request"], asked["answer"]) == (
            "admin",
            "PATCH /api/data/optical-switch:cross-connects/pair",
            "204",
        )


@asynchronous
async def test_the_side_door_tells_when_a_port_was_dark() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, _):
        since = (await ask(emulator, "GET", "/emulator")).json()["clock"]
        await restconf.ask("DELETE", "/api/data/cross-connects/pair=1")
        dark = (await ask(emulator, "GET", f"/emulator/light?port=9&since={since}")).json()["dark"]
        assert len(dark) == 1
        assert dark[0]["begin"] >= since
        assert dark[0]["end"] is None
        assert (await ask(emulator, "GET", "/emulator/light")).status_code == 422
        assert (await ask(emulator, "GET", "/emulator/light?port=99")).status_code == 404


@asynchronous
async def test_another_site_cannot_send_a_form_through_a_browser() -> None:
    async with (
        switch() as (emulator, _, _tl1),
        httpx.AsyncClient(base_url=emulator.page_url, trust_env=False) as client,
    ):
        plain = {"content-type": "text/plain"}
        assert (await client.post("/emulator/reboot", content="{}", headers=plain)).status_code == 415
        assert (await client.delete("/emulator")).status_code == 404
