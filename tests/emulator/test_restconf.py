"""What RESTCONF refuses and with which status, who may do what, and how foreign changes can be seen."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from opus_sdn.drivers.polatis_emulator import PolatisEmulator
from tests.emulator.clients import (
    JSON,
    PAIRS,
    PATIENCE_S,
    TABLE,
    USERS,
    Restconf,
    asynchronous,
    pair_list,
    spec,
    switch,
)

REFUSED: list[tuple[str, str, Any, int]] = [
    ("PATCH", PAIRS, pair_list((77, 11)), 400),
    ("PATCH", PAIRS, pair_list((4, 17)), 400),
    ("PATCH", PAIRS, pair_list((0, 11)), 400),
    ("PATCH", PAIRS, pair_list((4, 12), (5, 12)), 400),
    ("PATCH", PAIRS, pair_list((4, 5)), 400),
    ("PATCH", PAIRS, pair_list((1, 12), (77, 11), (4, 13)), 400),
    ("PATCH", PAIRS, {"pair": [{"ingress": 4}]}, 400),
    ("PATCH", PAIRS, {"pair": [{"ingress": True, "egress": 9}]}, 400),
    ("PATCH", PAIRS, {"pair": [{"ingress": 4.5, "egress": 9}]}, 400),
    ("PATCH", PAIRS, {"pair": [{"ingress": "4", "egress": "x"}]}, 400),
    ("PATCH", PAIRS, {"pair": [{"ingress": 4, "egress": 12, "colour": 1}]}, 400),
    ("PATCH", PAIRS, {"pairs": [{"ingress": 4, "egress": 12}]}, 400),
    ("PATCH", PAIRS, {"pair": [4, 12]}, 400),
    ("PATCH", PAIRS, [], 400),
    ("PATCH", TABLE, {"cross-connects": 5}, 400),
    ("PATCH", PAIRS, "<pair><ingress>4</ingress>", 400),
    (
        "PATCH",
        PAIRS,
        '<!DOCTYPE a [<!ENTITY b "c">]><pair><ingress>4</ingress><egress>&b;</egress></pair>',
        400,
    ),
    ("POST", TABLE, {"optical-switch:pair": []}, 400),
    ("POST", PAIRS, pair_list((4, 12)), 405),
    ("PATCH", f"{PAIRS}=4", pair_list((4, 12)), 404),
    ("PUT", f"{PAIRS}=4", pair_list((5, 12)), 400),
    ("DELETE", f"{PAIRS}=0", None, 404),
    ("DELETE", f"{PAIRS}=undefined", None, 404),
    ("DELETE", f"{PAIRS}=", None, 404),
    ("PATCH", "/api/data/optical-switch:nothing", pair_list((4, 12)), 404),
    ("GET", "/api/data/other-module:cross-connects", None, 404),
    ("GET", "/api/data/optical-switch:port-config/port=99", None, 404),
    ("GET", "/api/data/optical-switch:opm-power/port=1", None, 404),  # an ingress port has no detector
    ("GET", "/nothing", None, 404),
    ("DELETE", "/api/data/optical-switch:product-information", None, 405),
    ("PATCH", "/api/data/optical-switch:product-information", {"serial-number": "1"}, 405),
    ("PATCH", "/api/data/port-config/port=1", {"port": {"label": "x" * 129}}, 400),
    ("PATCH", "/api/data/port-config/port=1", {"port": {"status": "ENABLED"}}, 400),
    ("PATCH", "/api/data/port-config/port=99", {"port": {"label": "x"}}, 400),
    ("PATCH", "/api/data/opm-config/port=9", {"port": {"averaging-time-select": 9}}, 400),
    ("POST", "/api/operations/optical-switch:port-set-state", {"input": {"port-disab": [99]}}, 400),
    ("POST", "/api/operations/polatis-switch:nothing", {"input": {}}, 404),
    ("GET", "/api/operations/optical-switch:port-set-state", None, 405),
]


@asynchronous
async def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    async with switch(initial=((1, 9),)) as (emulator, restconf, _):
        revision = emulator.device.changed_at
        for method, path, body, status in REFUSED:
            answer = await restconf.ask(method, path, body)
            assert answer.status_code == status, (method, path, body, answer.text)
            assert answer.json()["ietf-restconf:errors"]["error"][0]["error-message"]
        assert emulator.table == {1: 9}
        assert emulator.device.changed_at == revision


@asynchronous
async def test_bodies_and_answers_of_other_types_are_refused() -> None:
    async with switch() as (_, restconf, _tl1):
        answer = await restconf.ask("GET", TABLE.replace("cross-connects", "port-config"), accept="text/html")
        assert answer.status_code == 406
        plain = {"content_type": "text/plain"}
        assert (await restconf.ask("PATCH", PAIRS, pair_list((1, 9)), **plain)).status_code == 415
        assert (await restconf.ask("PATCH", PAIRS, None, content_type=JSON)).status_code == 400


@pytest.mark.parametrize(
    ("user", "password", "read", "write", "system"),
    [
        ("admin", "root", 200, 204, 204),
        ("ops", "ops-word", 200, 204, 403),
        ("eye", "eye-word", 200, 403, 403),
        ("admin", "wrong", 401, 401, 401),
        ("Admin", "root", 401, 401, 401),
        ("", "", 401, 401, 401),
    ],
)
@asynchronous
async def test_a_user_may_what_the_group_may(
    user: str, password: str, read: int, write: int, system: int
) -> None:
    async with switch(initial=((1, 9),)) as (emulator, _, _tl1):
        client = Restconf(emulator, user, password)
        assert (await client.ask("GET", TABLE)).status_code == read
        assert await client.patch((2, 10)) == write
        mode = {"polatis-switch:startup-mode": "MODE_VOLATILE"}
        answer = await client.ask("PATCH", "/api/data/optical-switch:system-config", mode)
        assert answer.status_code == system
        assert all(password not in entry.request for entry in emulator.requests if password)
        await client.close()


@asynchronous
async def test_ports_of_a_sub_switch_are_for_its_users_only() -> None:
    sub = {"name": "lab", "ports": (1, 2, 9, 10), "users": ("ops",)}
    async with switch(subswitches=(sub,), initial=((1, 9),)) as (emulator, restconf, _):
        ops = Restconf(emulator, "ops", "ops-word")
        # One foreign pair spoils the whole request; so does a circuit that would have to go.
        assert await restconf.patch((4, 12), (2, 10)) == 403
        assert await restconf.patch((4, 9)) == 403
        assert (await restconf.ask("DELETE", f"{PAIRS}=1")).status_code == 403
        assert emulator.table == {1: 9}
        assert await restconf.patch((4, 12)) == 204
        assert await ops.patch((2, 10)) == 204
        assert emulator.table == {1: 9, 2: 10, 4: 12}
        await ops.close()


@asynchronous
async def test_every_change_of_the_table_has_its_own_etag_and_reading_changes_none() -> None:
    async with switch() as (emulator, restconf, tl1):
        seen = []
        for change in (
            restconf.patch((1, 9)),
            tl1.ask("ENT-PATCH::2,10:1:;"),
            emulator.foreign(connect=[(3, 11)]),
            restconf.ask("DELETE", f"{PAIRS}=1"),
            tl1.ask("OPR-PORT-SHUTTER::2:2:;"),
        ):
            await change
            seen += [(await restconf.ask("GET", TABLE)).headers["etag"] for _ in range(2)]
        assert seen[0::2] == seen[1::2]
        assert seen[0::2] == sorted(set(seen))


@asynchronous
async def test_a_client_that_has_the_newest_revision_gets_304() -> None:
    async with switch(initial=((1, 9),)) as (_, restconf, _tl1):
        etag = (await restconf.ask("GET", TABLE)).headers["etag"]
        answer = await restconf.ask("GET", TABLE, if_none_match=etag)
        assert (answer.status_code, answer.content) == (304, b"")
        await restconf.patch((2, 10))
        assert (await restconf.ask("GET", TABLE, if_none_match=etag)).status_code == 200


@asynchronous
async def test_both_doors_show_one_table() -> None:
    async with switch() as (_, restconf, tl1):
        await restconf.patch((1, 9))
        await tl1.lines("ENT-PATCH::2,10:1:;")
        assert (await restconf.ask("GET", PAIRS)).json() == pair_list((1, 9), (2, 10))
        assert await tl1.lines("RTRV-PATCH:::1:;") == ["1,9", "2,10"]


@asynchronous
async def test_old_firmware_calls_the_list_pairs_and_says_its_revision() -> None:
    async with switch(yang_revision="2015-09-14", initial=((1, 9),)) as (emulator, restconf, _):
        answer = await restconf.ask("GET", TABLE)
        assert answer.json() == {"optical-switch:cross-connects": {"pairs": [{"ingress": 1, "egress": 9}]}}
        assert (await restconf.ask("GET", PAIRS)).status_code == 404
        assert (await restconf.ask("PATCH", TABLE, pair_list((2, 10)))).status_code == 400
        old = {"pairs": [{"ingress": 2, "egress": 10}]}
        assert (await restconf.ask("PATCH", f"{TABLE}/pairs", old)).status_code == 204
        assert emulator.table == {1: 9, 2: 10}
        modules = await restconf.ask("GET", "/api/data/ietf-yang-library:modules-state/module")
        revisions = {entry["name"]: entry["revision"] for entry in modules.json()["ietf-yang-library:module"]}
        assert revisions["optical-switch"] == "2015-09-14"


@asynchronous
async def test_sessions_can_be_listed_and_ended() -> None:
    async with switch() as (_, restconf, tl1):
        path = "/api/data/polatis-switch:sessions/session"
        (session,) = (await restconf.ask("GET", path)).json()["polatis-switch:session"]
        assert (session["protocol-name"], session["user-name"]) == ("TL1", "admin")
        operation = "/api/operations/polatis-switch:disconnect-session"
        body = {"input": {"session-id": session["session-id"]}}
        assert (await restconf.ask("POST", operation, body)).status_code == 204
        with pytest.raises((EOFError, ConnectionError)):
            await tl1.message()
        assert (await restconf.ask("POST", operation, body)).status_code == 400


@asynchronous
async def test_an_interface_can_disable_another_but_not_itself() -> None:
    async with switch() as (emulator, restconf, _):
        path = "/api/data/optical-switch:system-config/protocols/protocol="
        off = {"protocol": {"enabled": False}}
        assert (await restconf.ask("PATCH", f"{path}RESTCONF", off)).status_code == 400
        assert (await restconf.ask("PATCH", f"{path}TL1", off)).status_code == 204
        assert list(emulator.faults.disabled) == ["tl1"]
        assert (await restconf.ask("PATCH", f"{path}TL1", {"protocol": {"enabled": True}})).status_code == 204
        assert emulator.faults.disabled == ()


@asynchronous
async def test_a_label_with_a_semicolon_and_quotes_survives_both_doors() -> None:
    async with switch() as (_, restconf, tl1):
        path = "/api/data/optical-switch:port-config/port=1"
        text = 'a;b"c'
        assert (await restconf.ask("PATCH", path, {"port": {"label": text}})).status_code == 204
        shown = (await restconf.ask("GET", f"{path}/label")).json()
        assert shown == {"optical-switch:label": text}
        assert await tl1.lines("RTRV-PORT-LABEL::1:1:;") == ['1:a;b\\"c']


@asynchronous
async def test_a_body_too_large_and_a_request_that_is_none_end_the_connection_only() -> None:
    async with switch() as (emulator, restconf, _):
        large = await restconf.ask("PATCH", PAIRS, "<pair>" + " " * (5 * 1024 * 1024))
        assert large.status_code == 413
        assert (await restconf.ask("GET", TABLE)).status_code == 204
        assert emulator.table == {}


def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ocs"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@asynchronous
async def test_https_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with PolatisEmulator(spec(users=USERS), tls=context) as emulator:
        assert emulator.restconf_url.startswith("https://")
        trusting = ssl.create_default_context(cafile=cert)
        async with httpx.AsyncClient(verify=trusting, trust_env=False, timeout=PATIENCE_S) as client:
            answer = await client.get(f"{emulator.restconf_url}/api", auth=("admin", "root"))
            assert answer.status_code == 200
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await client.get(f"{emulator.restconf_url}/api")
