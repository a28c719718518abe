"""What is known of the wire, literal for literal: this request gets that answer.

WIRE: captured from a switch. QA: asserted against a switch by a test suite. DOC: the vendor's models, or a
standard. What only clients are known to send stands in the other modules.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.emulator.clients import JSON, PAIRS, TABLE, XML, asynchronous, open_tl1, pair_list, switch

IDENTITY = {
    "optical-switch:product-information": {
        "manufacturer": "Polatis",
        "serial-number": "2000",
        "model-name": "N-VST-512x512-LA1-DMHNV-701",
        "software-version": "6.7.3.9-dev-jenkins-20180130-181944",
    }
}


@asynchronous
async def test_wire_product_information() -> None:
    async with switch(
        "", model="N-VST-512x512-LA1-DMHNV-701", firmware="6.7.3.9-dev-jenkins-20180130-181944"
    ) as (_, restconf, _tl1):
        answer = await restconf.ask("GET", "/api/data/optical-switch:product-information")
        assert (answer.status_code, answer.json()) == (200, IDENTITY)


@asynchronous
async def test_wire_headers_of_an_answer() -> None:
    async with switch() as (_, restconf, _tl1):
        answer = await restconf.ask("GET", "/api/data/optical-switch:product-information")
        assert answer.headers["content-type"] == JSON
        assert answer.headers["pragma"] == "no-cache"
        assert answer.headers["cache-control"] == "private, no-cache, must-revalidate, proxy-revalidate"
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.headers["server"] == ""


@asynchronous
async def test_wire_an_etag_is_the_time_of_the_last_change_in_groups_of_digits() -> None:
    async with switch() as (emulator, restconf, _):
        emulator.device.changed_at = 1516992899.224835
        answer = await restconf.ask("GET", TABLE)
        assert answer.headers["etag"] == "1516-992899-224835"


@asynchronous
async def test_wire_the_first_port_of_the_list_of_ports() -> None:
    async with switch() as (_, restconf, _tl1):
        answer = await restconf.ask("GET", "/api/data/optical-switch:port-config/port")
        assert answer.json()["optical-switch:port"][0] == {
            "port-id": 1,
            "status": "ENABLED",
            "label": "",
            "peer-port": "",
        }


@asynchronous
async def test_wire_members_of_another_module_carry_its_name() -> None:
    async with switch() as (_, restconf, _tl1):
        answer = await restconf.ask("GET", "/api/data/optical-switch:system-config/user=admin")
        assert answer.json() == {"optical-switch:user": [{"name": "admin", "polatis-switch:group": "admin"}]}


@asynchronous
async def test_wire_the_end_state_of_a_reversal_of_live_circuits() -> None:
    """Seen on a 16x8: 1 to 3 connected to 17 to 19, all reversed by one edit, then 1:19, 2:18, 3:17."""
    async with switch("16x8") as (_, restconf, _tl1):
        assert await restconf.patch((1, 17), (2, 18), (3, 19)) == 204
        assert await restconf.patch((1, 19), (2, 18), (3, 17)) == 204
        assert (await restconf.ask("GET", PAIRS)).json() == pair_list((1, 19), (2, 18), (3, 17))


@asynchronous
async def test_doc_the_table_of_an_empty_switch_is_204_without_a_body() -> None:
    async with switch() as (_, restconf, _tl1):
        for path in (TABLE, PAIRS):
            answer = await restconf.ask("GET", path)
            assert (answer.status_code, answer.content) == (204, b"")


@asynchronous
async def test_doc_errors_of_what_exists_and_of_what_does_not() -> None:
    async with switch() as (_, restconf, _tl1):
        await restconf.ask("POST", TABLE, pair_list((1, 13)))
        answer = await restconf.ask("POST", TABLE, pair_list((1, 13)))
        assert (answer.status_code, answer.json()) == (
            409,
            {
                "ietf-restconf:errors": {
                    "error": [
                        {
                            "error-type": "application",
                            "error-tag": "data-exists",
                            "error-path": "/optical-switch:cross-connects",
                            "error-message": "object already exists: "
                            "/opsw:cross-connects/opsw:pair[opsw:ingress='1']",
                        }
                    ]
                }
            },
        )
        answer = await restconf.ask("GET", f"{PAIRS}=2")
        assert (answer.status_code, answer.json()) == (
            404,
            {
                "ietf-restconf:errors": {
                    "error": [
                        {
                            "error-type": "application",
                            "error-tag": "invalid-value",
                            "error-message": "uri keypath not found",
                        }
                    ]
                }
            },
        )


@asynchronous
async def test_doc_decimals_are_texts_with_two_digits() -> None:
    async with switch(initial=((1, 9),)) as (_, restconf, _tl1):
        answer = await restconf.ask("GET", "/api/data/optical-switch:opm-power/port=9")
        assert answer.json() == {"optical-switch:port": [{"port-id": 9, "power": "-1.00"}]}


# What clients are known to send, and the answers that they count on.
CONVERSATION: list[tuple[str, str, Any, int, Any]] = [
    ("GET", "/api", None, 200, ...),
    ("GET", TABLE, None, 204, None),
    ("POST", TABLE, pair_list((1, 13)), 201, None),
    ("POST", TABLE, pair_list((2, 13)), 409, ...),  # only the egress port is taken
    ("GET", f"{PAIRS}=1", None, 200, pair_list((1, 13))),
    ("PUT", f"{PAIRS}=1", "<pair><ingress>1</ingress><egress>9</egress></pair>", 204, None),
    ("PUT", f"{PAIRS}=5", "<pair><ingress>5</ingress><egress>10</egress></pair>", 201, None),
    ("PUT", f"{PAIRS}=6", "<pair><ingress>5</ingress><egress>11</egress></pair>", 400, ...),
    ("GET", PAIRS, None, 200, pair_list((1, 9), (5, 10))),
    ("PATCH", "/api/data/cross-connects/pair", {"pair": [{"ingress": 2, "egress": 14}]}, 204, None),
    ("PATCH", TABLE, {"optical-switch:cross-connects": pair_list((3, 15))}, 204, None),
    ("DELETE", f"{PAIRS}=1", None, 204, None),
    ("DELETE", f"{PAIRS}=1", None, 404, ...),
    (
        "PUT",
        TABLE,
        {
            "optical-switch:cross-connects": {
                "pair": [{"ingress": 1, "egress": 13}, {"ingress": 5, "egress": 9}]
            }
        },
        204,
        None,
    ),
    (
        "GET",
        TABLE,
        None,
        200,
        {
            "optical-switch:cross-connects": {
                "pair": [{"ingress": 1, "egress": 13}, {"ingress": 5, "egress": 9}]
            }
        },
    ),
    ("DELETE", TABLE, None, 204, None),
    ("GET", TABLE, None, 204, None),
    ("PATCH", PAIRS, pair_list((1, 9), (2, 10)), 204, None),
    ("DELETE", "/api/data/cross-connects/pair", None, 204, None),  # a client that forgot its index
    ("GET", TABLE, None, 204, None),
    (
        "POST",
        "/api/operations/polatis-switch:add-group-cross-connect",
        {"input": {"group-name-from": "ARENA_PSU_01", "group-name-to": "CCU_01"}},
        204,
        None,
    ),
    ("GET", PAIRS, None, 200, pair_list((7, 15), (8, 16))),
    (
        "POST",
        "/api/operations/polatis-switch:delete-group-cross-connect",
        {"input": {"group-name": "CCU_01"}},
        204,
        None,
    ),
    ("GET", TABLE, None, 204, None),
    (
        "POST",
        "/api/operations/optical-switch:port-set-state",
        {"optical-switch:input": {"port-disab": [3, 4], "port-enab": [5]}},
        204,
        None,
    ),
    (
        "GET",
        "/api/data/optical-switch:port-config/port=4/status",
        None,
        200,
        {"optical-switch:status": "DISABLED"},
    ),
    ("PATCH", "/api/data/optical-switch:port-config/port=1", {"port": {"label": "rail0-nic0"}}, 204, None),
    (
        "PATCH",
        "/api/data/optical-switch:voa",
        {
            "optical-switch:voa": {
                "port": [{"port-id": 9, "atten-mode": "VOA_MODE_ABSOLUTE", "atten-level": -5.0}]
            }
        },
        204,
        None,
    ),
]
GROUPS = ({"name": "ARENA_PSU_01", "ports": (7, 8)}, {"name": "CCU_01", "ports": (15, 16)})


@asynchronous
async def test_the_conversation_that_clients_have_with_a_switch() -> None:
    async with switch(groups=GROUPS) as (_, restconf, _tl1):
        for step, (method, path, body, status, wanted) in enumerate(CONVERSATION):
            answer = await restconf.ask(method, path, body)
            found = answer.json() if answer.content else None
            assert answer.status_code == status, (step, method, path, answer.text)
            assert wanted is ... or found == wanted, (step, method, path)


@asynchronous
async def test_xml_is_answered_to_whoever_accepts_it() -> None:
    async with switch(initial=((1, 9),)) as (_, restconf, _tl1):
        answer = await restconf.ask("GET", f"{PAIRS}=1", accept=XML)
        assert answer.headers["content-type"] == XML
        assert answer.text == (
            '<pair xmlns="http://www.polatis.com/yang/optical-switch">'
            "<ingress>1</ingress><egress>9</egress></pair>"
        )


# (command, code, text): each asserted against firmware 6.5.1.7, whose switch has 96 ports.
QA_DENIALS = [
    ("ENT-PATCH::100,49:123:;", "IDNV", "Invalid OXC port: 100"),
    ("ENT-PATCH::1,200:123:;", "IDNV", "Invalid OXC port: 200"),
    ("ENT-PATCH::-10,-49:123:;", "IDNV", "Invalid OXC port: -10"),
    ("ENT-PATCH::a,b:123:;", "IDNV", "Invalid OXC port: a"),
    ("ENT-PATCH::@,#:123:;", "IDNV", "Invalid OXC port: @"),
    ("DLT-PATCH::a&b:123:;", "IDNV", "Invalid OXC port: a"),
    ("DLT-PATCH::-10:123:;", "IDNV", "Invalid OXC port: -10"),
    ("DLT-PATCH::@:123:;", "IDNV", "Invalid OXC port: @"),
    ("DLT-PATCH::100:123:;", "IDNV", "Invalid OXC port: 100"),
    ("OPR-PORT-SHUTTER::100:123:;", "IDNV", "Invalid OXC port: 100"),
    ("RLS-PORT-SHUTTER::100:123:;", "IDNV", "Invalid OXC port: 100"),
    ("RTRV-PORT-SHUTTER::100:123:;", "IDNV", "Invalid OXC port: 100"),
    ("DLT-PORT-LABEL::100:123:;", "IDNV", "Invalid OXC port: 100"),
    ("RTRV-PORT-LABEL::100:123:;", "IDNV", "Invalid OXC port: 100"),
    ("ENT-PATCH::,:123:;", "IIAC", "Empty parameters"),
    ("INIT-SYS::ALARM:::1;", "IICT", "Parse error at offset 17 in command"),
    ("RTRV-EQPT::timeout:::PARAMETER=USER;", "IICT", "Parse error at offset 20 in command"),
    ("ED-DAT::123::31-2016-12;", "IICT", "Parse error at offset 13 in command"),
    ("INIT-SYS:@#@#:ALARM:123::1;", "IITA", "Parse error at offset 10 in command"),
    ("INIT-SYS:9942:ALARM:123::1;", "IITA", "Parse error at offset 10 in command"),
    ("INIT-SYS:other:ALARM:123::1;", "IITA", "Mismatched TID"),
    ("RTRV-EQPT::9999:123:::PARAMETER=SIZE;", "IIAC", ""),
    ("RTRV-ARC-EQPT::9999:123:;", "IIAC", ""),
    ("RTRV-ALM-ALL::9999:123:;", "IIAC", ""),
    ("ED-EQPT::TIMEOUT:123:::ADMIN=61;", "IPNV", "Parameter not valid"),
    ("ED-EQPT::TIMEOUT:123:::ADMIN=-2;", "IPNV", "Parameter not valid"),
    ("ED-EQPT::TIMEOUT:123:::adm=0;", "IPNV", "Unexpected parameter adm in block 2"),
    ("ED-EQPT::BOOT:123:::MODE=sun;", "IDNV", "Invalid value sun"),
    ("ED-EQPT::BOOT:123:::MODE=12345;", "IPNV", ...),
    ("RTRV-EQPT::BOOT:123:::PARAMETER=SUN;", "IPNV", ""),
    ("INIT-SYS::ALARM:123::8;", "IPNV", ""),
    ("ED-PORT-LABEL::1:123:::LABEL=@#$;", "IPNV", ""),
    (f"ED-PORT-LABEL::1:123:::LABEL={'abcdefghijklmnopqrstuvwxyz'};", "IPNV", ""),
    ("SET-SID:::1::Jasmine_Lotus_Rose_Lily;", "IDNV", ""),
    ("SET-SID:::1::**raja;", "IDNV", ""),
    ("ED-DAT:::123::16-13-16;", "IDNV", "Bad parameter value"),
    ("ED-DAT:::123::2038-08-16;", "SSTP", ""),
    ("ENT-USER-SECU::ops:123::word,,USER;", "IDNV", "User exists"),
    ("DLT-USER-SECU::nobody:123:;", "IDNV", "User does not exist"),
    ("RTRV-USER-SECU::nobody:123:;", "IDNV", "User does not exist"),
    ("ENT-USER-SECU::new:123::word,,KING;", "IPNV", "Invalid user access privilege"),
    ("ACT-USER::admin:123::root;", "", "Already logged in"),
]


@pytest.mark.parametrize(("command", "code", "text"), QA_DENIALS, ids=[row[0] for row in QA_DENIALS])
def test_qa_denials(command: str, code: str, text: Any) -> None:
    @asynchronous
    async def run() -> None:
        async with switch("48x48") as (_, _restconf, tl1):
            found_code, found_text = await tl1.denied(command)
            assert found_code == code
            assert text is ... or found_text == text

    run()


LOGIN_DENIALS = [
    ("ACT-USER:::123::root;", "IIAC", "Too few parameters (0/1)"),
    ("ACT-USER::admin:123::;", "IPMS", "Too few parameters (0/1) in block 1"),
    ("ACT-USER::bad:123::root;", "PICC", ""),
    ("ACT-USER::admin:123::bad;", "PICC", ""),
    ("ACT-USER::Admin:123::root;", "PICC", ""),
    ("ACT-USER::admin:123::Root;", "PICC", ""),
    ("ACT-USER::admin::123::root;", "IICT", "Parse error at offset 17 in command"),
    ("RTRV-PATCH:::7:;", "", "Not logged in"),
]


@asynchronous
async def test_qa_denials_before_the_login() -> None:
    async with switch() as (emulator, _, _tl1):
        stranger = await open_tl1(emulator, user="")
        for command, code, text in LOGIN_DENIALS:
            assert await stranger.denied(command) == (code, text), command
        await stranger.close()


NOT_AN_ADMIN = [
    ("RTRV-USER-SECU::admin:123:;", "SRCN", "User not in the admin group"),
    ("DLT-USER-SECU::admin:123:;", "PICC", "User not in the admin group"),
    ("ENT-USER-SECU::new:123::word,,USER;", "PICC", "Permission denied"),
    ("CANC-USER::admin:123:;", "PICC", "Permission denied"),
]


@asynchronous
async def test_qa_denials_of_user_administration_by_others_than_administrators() -> None:
    async with switch() as (emulator, _, _tl1):
        ops = await open_tl1(emulator, "ops", "ops-word")
        for command, code, text in NOT_AN_ADMIN:
            assert await ops.denied(command) == (code, text), command
        await ops.close()


# (commands before, command, lines of its answer), each on a switch of its own with 48 ports a side.
QA_ANSWERS: list[tuple[tuple[str, ...], str, Any]] = [
    ((), "RTRV-EQPT::SYSTEM:8:::PARAMETER=SIZE;", ["SYSTEM:SIZE=48x48"]),
    ((), "RTRV-PATCH:::7:;", []),
    (("ENT-PATCH::1,49:3:;",), "RTRV-PATCH::ALL:7:;", ["1,49"]),
    (("ENT-PATCH::1&7&15,49&55&63:4:;",), "RTRV-PATCH::1&7:7:;", ["1,49", "7,55"]),
    (("ENT-PATCH::1&&3,49&&51:5:;",), "RTRV-PATCH:::7:;", ["1,49", "2,50", "3,51"]),
    (("ENT-PATCH::1&&3,49&&51:5:;", "DLT-PATCH::1&3:6:;"), "RTRV-PATCH:::7:;", ["2,50"]),
    (("ENT-PATCH::1&&3,49&&51:5:;", "DLT-PATCH::1&&2:6:;"), "RTRV-PATCH:::7:;", ["3,51"]),
    (("ENT-PATCH::1&&3,49&&51:5:;", "DLT-PATCH::ALL:6:;"), "RTRV-PATCH:::7:;", []),
    (("ENT-PATCH::1&&3,49&&51:5:;", "DLT-PATCH:::6:;"), "RTRV-PATCH:::7:;", []),
    ((), "DLT-PATCH::1:6:;", []),
    ((), "RTRV-PORT-SHUTTER::1&&2:12:;", ["1:OPEN", "2:OPEN"]),
    (("OPR-PORT-SHUTTER::1:13:;",), "RTRV-PORT-SHUTTER::1:12:;", ["1:CLOSED"]),
    (("OPR-PORT-SHUTTER::1:13:;", "RLS-PORT-SHUTTER::1:14:;"), "RTRV-PORT-SHUTTER::1:12:;", ["1:OPEN"]),
    (("ENT-PATCH::1,49:3:;",), "RTRV-PORT-POWER::49&&50:15:;", ["49:-1.00", "50:-60.00"]),
    ((), "RTRV-PORT-PMON::49:16:;", ["49:1550.00,0.00,4"]),
    (("ED-PORT-LABEL::1&2:18:::LABEL=src1&src2;",), "RTRV-PORT-LABEL::1&2:18:;", ["1:src1", "2:src2"]),
    (("ED-PORT-LABEL::1:18:::LABEL=src1;", "DLT-PORT-LABEL::1:18:;"), "RTRV-PORT-LABEL::1:18:;", ["1:"]),
    (
        ("ENT-PATCH::1,49:3:;", "SET-PORT-ATTEN::49:19:::MODE=ABSOLUTE,LEVEL=-5;"),
        "RTRV-PORT-POWER::49:15:;",
        ["49:-5.00"],
    ),
    (("OPR-ARC-EQPT::REPMGR:20::IND;",), "RTRV-ARC-EQPT::ALL:22:;", ["REPMGR:IND,,"]),
    ((), "RTRV-ALM-ALL::ALL:23:;", []),
    ((), "INIT-SYS::ALARM:24::1;", []),
    (("ED-EQPT::TIMEOUT:25:::ADMIN=60;",), "RTRV-EQPT::TIMEOUT:26:::PARAMETER=ADMIN;", ["TIMEOUT:ADMIN=60"]),
    (("ED-EQPT::BOOT:123:::MODE=DARK;",), "RTRV-EQPT::BOOT:123:::PARAMETER=MODE;", ["BOOT:MODE=DARK"]),
    (("SET-SID:::27::NAME;",), "RTRV-HDR:NAME::11:;", []),
    (("ENT-PATCH::1,49:3:;", "INIT-SYS::SYSTEM:28::1;"), "RTRV-PATCH:::7:;", []),
    (("ENT-PATCH::1,49:3:;", "OPR-PORT-SHUTTER::1:13:;"), "RTRV-PATCH:::7:;", ["1,49"]),
    ((), "act - user::admin:1::root;", ...),  # spaces around dashes, any case
    ((), "RTRV-PATCH:::123;", []),  # the colon after the ctag may be left out
]


@pytest.mark.parametrize(("before", "command", "wanted"), QA_ANSWERS, ids=[row[1] for row in QA_ANSWERS])
def test_qa_answers(before: tuple[str, ...], command: str, wanted: Any) -> None:
    @asynchronous
    async def run() -> None:
        async with switch("48x48") as (_, _restconf, tl1):
            for earlier in before:
                await tl1.lines(earlier)
            if wanted is ...:
                assert (await tl1.denied(command))[1] == "Already logged in"
            else:
                assert await tl1.lines(command) == wanted

    run()


@asynchronous
async def test_qa_the_layout_of_answers() -> None:
    async with switch("48x48", sid="Lab-1") as (_, _restconf, tl1):
        await tl1.lines("ENT-PATCH::1,49:3:;")
        answer = await tl1.ask("RTRV-PATCH:::7:;")
        when = r"\d\d-\d\d-\d\d \d\d:\d\d:\d\d"
        assert re.fullmatch(rf'\r\n\r\n   Lab-1 {when}\r\nM  7 COMPLD\r\n   "1,49"\r\n;', answer)
        answer = await tl1.ask("ENT-PATCH::100,49:123:;")
        denial = rf'\r\n\r\n   Lab-1 {when}\r\nM  123 DENY\r\n   IDNV\r\n   "Invalid OXC port: 100"\r\n;'
        assert re.fullmatch(denial, answer)
        # The expressions of a client that works with real switches.
        assert re.search(r"M\s+123\s+([A-Z ]+)[^;]*;", answer)
        assert re.search(r"^(.*)\s+\d+-", answer, re.MULTILINE)


@asynchronous
async def test_qa_a_name_with_a_dash_must_be_quoted_and_an_unset_one_prints_as_nil() -> None:
    async with switch("48x48") as (_, _restconf, tl1):
        assert "   ( nil ) " in await tl1.ask("RTRV-HDR:::1:;")
        await tl1.lines("SET-SID:::1::Lab-1;")
        assert (await tl1.denied("RTRV-HDR:Lab-1::1:;"))[0] == "IITA"
        assert await tl1.lines('RTRV-HDR:"Lab-1"::1:;') == []
        assert await tl1.denied('RTRV-HDR:"Lab-2"::1:;') == ("IITA", "Mismatched TID")


@asynchronous
async def test_qa_a_shut_port_is_told_to_the_session_that_shut_it_after_its_answer() -> None:
    async with switch("48x48") as (_, _restconf, tl1):
        assert await tl1.lines("OPR-PORT-SHUTTER::1:1:;") == []
        report = await tl1.message()
        assert re.search(r'^A  \d+ REPT EVT .*\r\n   "Port 1 disabled"\r\n;$', report, re.MULTILINE)
        await tl1.lines("OPR-ARC-EQPT::REPMGR:123::IND;")
        await tl1.lines("OPR-PORT-SHUTTER::2:1:;")
        await tl1.lines("RTRV-HDR:::9:;")
        assert tl1.unasked == []
