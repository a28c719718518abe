"""What the client says and understands over RESTCONF: literals seen on real devices and in their clients."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from opus_sdn.drivers.base import (
    AmbiguousError,
    DriverError,
    Persistence,
    Refusal,
    TerminalError,
    TransientError,
)
from opus_sdn.drivers.polatis.options import Credentials, PolatisOptions
from opus_sdn.drivers.polatis.restconf import ANSWER_MAX_BYTES, RestconfTransport
from opus_sdn.drivers.polatis.wire import ChangedError, Identity, PortBusyError, WirePort, WireTable

OPTIONS = PolatisOptions(host="ocs.example", user="opus", password_env="X", timeout_s=0.3)
CREDENTIALS = Credentials("opus", "Zq8-kept-secret")
Responder = Callable[[httpx.Request], httpx.Response]
Ask = Callable[[RestconfTransport], Awaitable[Any]]

# The headers of a real answer, with its entity tag without quotes.
HEADERS = {
    "server": "",
    "pragma": "no-cache",
    "etag": "1516-992899-224835",
    "content-type": "application/yang-data+json",
    "cache-control": "private, no-cache, must-revalidate, proxy-revalidate",
    "connection": "close",
}


class Device:
    """Answers every request with the next of these; keeps what was asked."""

    def __init__(self, *answers: httpx.Response | Exception | Responder) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []
        self.transport = RestconfTransport(OPTIONS, CREDENTIALS, http=httpx.MockTransport(self._answer))
        self.transport._list = "pair"

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def lines(self) -> list[str]:
        """Method and path of each request, as on the wire."""
        return [f"{r.method} {r.url.raw_path.decode()}" for r in self.asked]


def reply(status: int, body: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, content=body.encode(), headers=HEADERS | headers)


def run(device: Device, ask: Ask) -> Any:
    async def main() -> Any:
        try:
            return await ask(device.transport)
        finally:
            await device.transport.close()

    return asyncio.run(main())


PAIRS = WireTable(((1, 13), (5, 9)), "1516-992899-224835")


@pytest.mark.parametrize(
    ("status", "body", "wanted"),
    [
        (
            200,
            '{"optical-switch:cross-connects":{"pair":[{"ingress":1,"egress":13},{"ingress":5,"egress":9}]}}',
            PAIRS,
        ),
        (200, '{"cross-connects":{"pair":[{"ingress":5,"egress":9},{"ingress":1,"egress":13}]}}', PAIRS),
        (
            200,
            (
                '{"optical-switch:cross-connects":{"optical-switch:pairs":[{"ingress":"1","egress":"13"},'
                '{"egress":5,"ingress":9}]}}'
            ),
            PAIRS,
        ),
        (
            200,
            '{"optical-switch:cross-connects":{"pair":{"ingress":1,"egress":9}}}',
            WireTable(((1, 9),), PAIRS.etag),
        ),
        (200, '{"optical-switch:cross-connects":{"pair":[]}}', WireTable((), PAIRS.etag)),
        (200, '{"optical-switch:cross-connects":{}}', WireTable((), PAIRS.etag)),
        (204, "", WireTable((), PAIRS.etag)),
    ],
)
def test_a_table_is_read_in_every_form_that_devices_give_it(
    status: int, body: str, wanted: WireTable
) -> None:
    device = Device(reply(status, body))
    assert run(device, lambda t: t.table()) == wanted
    assert device.lines() == ["GET /api/data/optical-switch:cross-connects"]
    assert device.asked[0].headers["accept"] == "application/yang-data+json"
    basic = base64.b64encode(b"opus:Zq8-kept-secret").decode()
    assert device.asked[0].headers["authorization"] == f"Basic {basic}"


PRODUCT = '{"optical-switch:product-information":{"model-name":"N-OST-8x8-LA1-DMHNS"}}'


def test_404_is_an_empty_table_only_from_a_device_that_is_up() -> None:
    """So a firmware may answer for a table without circuits; so do a proxy, and a device that is booting."""
    missing = reply(404, "uri keypath not found")
    assert run(Device(missing, reply(200, PRODUCT)), lambda t: t.table()) == WireTable((), PAIRS.etag)
    for identity in (missing, reply(200, "<html>Welcome</html>"), reply(503)):
        with pytest.raises(DriverError):
            run(Device(missing, identity), lambda t: t.table())


def test_an_empty_answer_counts_only_when_the_device_said_that_it_is_empty() -> None:
    """Where the end of the connection ends the answer, one that was cut off looks the same."""
    empty = reply(200, **{"content-length": "0"})
    assert run(Device(empty), lambda t: t.table()) == WireTable((), PAIRS.etag)
    with pytest.raises(TransientError, match="ended before it began"):
        run(Device(reply(200)), lambda t: t.table())


@pytest.mark.parametrize(
    "body",
    [
        "<html>Welcome</html>",
        "[]",
        "17",
        '{"optical-switch:product-information":{}}',
        '{"optical-switch:cross-connects":{"circuits":[{"ingress":1,"egress":9}]}}',
        '{"optical-switch:cross-connects":[1]}',
        '{"optical-switch:cross-connects":{"pair":[1]}}',
        '{"optical-switch:cross-connects":{"pair":[{"ingress":1}]}}',
        '{"optical-switch:cross-connects":{"pair":[{"ingress":true,"egress":9}]}}',
        '{"optical-switch:cross-connects":{"pair":[{"ingress":1,"egress":9},{"ingress":2,"egress":9}]}}',
        '{"a":' * 100_000,
        '{"optical-switch:cross-connects":{"pair":[{"ingress":' + "9" * 5000 + ',"egress":9}]}}',
    ],
)
def test_nonsense_is_never_taken_for_an_empty_table(body: str) -> None:
    with pytest.raises(TransientError, match="not understood"):
        run(Device(reply(200, body)), lambda t: t.table())


# Every request: what it looks like on the wire, byte for byte where clients of real devices send just that.
REQUESTS: dict[str, tuple[Ask, list[tuple[str, str]]]] = {
    "the normal write": (
        lambda t: t.merge([(1, 513), (2, 514)], WireTable(())),
        [
            (
                "PATCH /api/data/cross-connects/pair",
                '{"pair":[{"ingress":1,"egress":513},{"ingress":2,"egress":514}]}',
            )
        ],
    ),
    "a removal": (
        lambda t: t.delete([1, 7], WireTable(())),
        [
            ("DELETE /api/data/optical-switch:cross-connects/pair=1", ""),
            ("DELETE /api/data/optical-switch:cross-connects/pair=7", ""),
        ],
    ),
    "an overwrite": (
        lambda t: t.replace([(1, 13), (5, 9)], WireTable(())),
        [
            (
                "PUT /api/data/optical-switch:cross-connects",
                '{"optical-switch:cross-connects":{"pair":[{"ingress":1,"egress":13},{"ingress":5,"egress":9}]}}',
            )
        ],
    ),
    "an overwrite with nothing": (
        lambda t: t.replace([], WireTable(())),
        [("DELETE /api/data/optical-switch:cross-connects", "")],
    ),
    "shutters closed": (
        lambda t: t.shutter([3, 4], closed=True),
        [
            (
                "POST /api/operations/optical-switch:port-set-state",
                '{"optical-switch:input":{"port-disab":[3,4]}}',
            )
        ],
    ),
    "shutters opened": (
        lambda t: t.shutter([5], closed=False),
        [
            (
                "POST /api/operations/optical-switch:port-set-state",
                '{"optical-switch:input":{"port-enab":[5]}}',
            )
        ],
    ),
    "a label": (
        lambda t: t.label({1: "rail0-nic0"}),
        [("PATCH /api/data/optical-switch:port-config/port=1", '{"port":{"label":"rail0-nic0"}}')],
    ),
    "nothing to write": (lambda t: t.merge([], WireTable(())), []),
    "nothing to remove": (lambda t: t.delete([], WireTable(())), []),
    "no shutters": (lambda t: t.shutter([], closed=True), []),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_written_as_the_device_knows_it(name: str) -> None:
    ask, wanted = REQUESTS[name]
    device = Device(reply(204))
    run(device, ask)
    assert [
        (line, r.content.decode()) for line, r in zip(device.lines(), device.asked, strict=True)
    ] == wanted
    assert all(r.headers["content-type"] == "application/yang-data+json" for r in device.asked if r.content)


def test_old_firmware_calls_its_list_pairs_and_is_written_to_so() -> None:
    body = '{"optical-switch:cross-connects":{"pairs":[{"ingress":1,"egress":17}]}}'
    device = Device(reply(200, body), reply(204), reply(204))

    async def ask(t: RestconfTransport) -> None:
        await t.table()
        await t.merge([(2, 18)], WireTable(()))
        await t.delete([1], WireTable(()))

    run(device, ask)
    assert device.lines()[1:] == [
        "PATCH /api/data/cross-connects/pairs",
        "DELETE /api/data/optical-switch:cross-connects/pairs=1",
    ]
    assert json.loads(device.asked[1].content) == {"pairs": [{"ingress": 2, "egress": 18}]}


@pytest.mark.parametrize(
    ("pair_status", "pairs_status", "firmware", "name"),
    [
        (204, 404, "x", "pair"),
        (404, 204, "x", "pairs"),
        (404, 404, "6.7.3.9-dev-jenkins-20180130-181944", "pair"),
        (404, 404, "6.3.1.4", "pairs"),
        (204, 204, "unknown", None),
    ],
)
def test_on_an_empty_switch_the_list_name_is_asked_for(
    pair_status: int, pairs_status: int, firmware: str, name: str | None
) -> None:
    product = (
        '{"optical-switch:product-information":{"manufacturer":"Polatis","serial-number":"2000",'
        f'"model-name":"N-VST-512x512-LA1-DMHNV-701","software-version":"{firmware}"}}}}'
    )
    device = Device(reply(200, product), reply(204), reply(pair_status), reply(pairs_status), reply(204))
    device.transport._list = None

    async def ask(t: RestconfTransport) -> None:
        identity = await t.identify()
        assert identity == Identity(
            "N-VST-512x512-LA1-DMHNV-701", "N-VST-512x512-LA1-DMHNV-701", firmware, "2000"
        )
        await t.merge([(1, 513)], WireTable(()))

    if name is None:
        with pytest.raises(TerminalError, match="nothing is written") as refusal:
            run(device, ask)
        assert refusal.value.reason is Refusal.WRONG_DEVICE
        assert all(r.method == "GET" for r in device.asked)
    else:
        run(device, ask)
        assert device.lines()[-1] == f"PATCH /api/data/cross-connects/{name}"


def test_ports_and_power_are_read_in_either_form() -> None:
    ports = (
        '{"optical-switch:port":[{"port-id":1,"status":"ENABLED","label":"","peer-port":""},'
        '{"port-id":2,"status":"DISABLED","label":"a;b"},{"port-id":"3","status":"FAILED"}]}'
    )
    wanted = {1: WirePort(True), 2: WirePort(False, label="a;b"), 3: WirePort(False, failed=True)}
    assert run(Device(reply(200, ports)), lambda t: t.ports(3)) == wanted
    power = '{"optical-switch:port":[{"port-id":9,"power":"-12.34"},{"port-id":10,"power":-60.0}]}'
    assert run(Device(reply(200, power)), lambda t: t.power([9, 10, 11])) == {9: -12.34, 10: -60.0}
    old = '{"ports":{"port":{"port-id":1,"port-state":"PO_FAILED"}}}'
    assert run(Device(reply(200, old.replace('"ports"', '"port-config"'))), lambda t: t.ports(1)) == {
        1: WirePort(False, failed=True)
    }


@pytest.mark.parametrize("answer", [reply(204), reply(404), reply(200, '{"optical-switch:port":[]}')])
def test_a_device_without_monitors_has_no_power_instead_of_zero(answer: httpx.Response) -> None:
    assert run(Device(answer), lambda t: t.power([9])) is None


@pytest.mark.parametrize(
    ("body", "persistence"),
    [
        ('{"polatis-switch:startup-mode":"MODE_PRESERVE"}', Persistence.PRESERVED),
        ('{"startup-mode":"MODE_VOLATILE"}', Persistence.VOLATILE),
        ('{"startup-mode":"MODE_OF_TOMORROW"}', Persistence.UNKNOWN),
    ],
)
def test_what_survives_a_loss_of_power_is_read(body: str, persistence: Persistence) -> None:
    assert run(Device(reply(200, body)), lambda t: t.persistence()) is persistence


def test_what_survives_is_unknown_to_a_user_who_may_not_see_it() -> None:
    assert run(Device(reply(403)), lambda t: t.persistence()) is Persistence.UNKNOWN


IETF = (
    '{"ietf-restconf:errors":{"error":[{"error-type":"application","error-tag":"data-exists",'
    '"error-path":"/optical-switch:cross-connects","error-message":"object already exists: '
    "/opsw:cross-connects/opsw:pair[opsw:ingress='1']\"}]}}"
)
OLD = '{"errors":{"error":[{"error-message":"in use","error-urlpath":"/api/x","error-tag":"data-exists"}]}}'
XML = "<errors><error><error-tag>data-exists</error-tag></error></errors>"
LOCKED = '{"errors":{"error":[{"error-tag":"access-denied","error-message":"Locked by the touchscreen"}]}}'


@pytest.mark.parametrize("body", [IETF, OLD, XML, "<html><body>409</body></html>", "", "}{", "[1]", "null"])
def test_an_error_is_decided_by_its_status_whatever_its_body_is(body: str) -> None:
    with pytest.raises(PortBusyError, match="409"):
        run(Device(reply(409, body)), lambda t: t.merge([(1, 9)], WireTable(())))


@pytest.mark.parametrize(
    ("status", "body", "kind", "reason"),
    [
        (400, "", TerminalError, Refusal.INVALID),
        (401, "", TerminalError, Refusal.UNAUTHORISED),
        (403, "", TerminalError, Refusal.UNAUTHORISED),
        (403, LOCKED, TerminalError, Refusal.LOCKED),
        (409, LOCKED, TerminalError, Refusal.LOCKED),
        (405, "", TerminalError, Refusal.INVALID),
        (415, "", TerminalError, Refusal.INVALID),
        (301, "", TerminalError, Refusal.REFUSED),
        (418, "", TerminalError, Refusal.REFUSED),
        (429, "", TransientError, None),
        (500, "", TransientError, None),
        (503, "", TransientError, None),
        (502, "", AmbiguousError, None),
        (504, "", AmbiguousError, None),
    ],
)
def test_a_refused_write_becomes_the_failure_that_its_status_means(
    status: int, body: str, kind: type[DriverError], reason: Refusal | None
) -> None:
    with pytest.raises(kind) as failure:
        run(Device(reply(status, body)), lambda t: t.merge([(1, 9)], WireTable(())))
    if isinstance(failure.value, TerminalError):
        assert failure.value.reason is reason
    assert "Zq8" not in failure.value.detail


@pytest.mark.parametrize(
    ("said", "waits_s"), [("7", 7.0), ("99999", 60.0), ("Fri, 31 Dec 1999 23:59:59 GMT", 1.0)]
)
def test_a_device_says_how_long_to_wait(said: str, waits_s: float) -> None:
    with pytest.raises(TransientError) as failure:
        run(Device(reply(503, **{"retry-after": said})), lambda t: t.table())
    assert failure.value.retry_after_s == waits_s


def test_removing_what_is_not_there_is_no_failure() -> None:
    device = Device(reply(404), reply(204))
    run(device, lambda t: t.delete([1, 2], WireTable(())))
    assert len(device.asked) == 2


@pytest.mark.parametrize("number", [0, -1, None, True, "1", 1.0])
def test_a_number_that_is_none_never_reaches_the_device(number: Any) -> None:
    """An address without its key would remove every circuit of the switch."""
    device = Device(reply(204))
    for ask in (
        lambda t: t.delete([number], WireTable(())),
        lambda t: t.merge([(number, 9)], WireTable(())),
        lambda t: t.replace([(number, 9)], WireTable(())),
        lambda t: t.shutter([number], closed=True),
        lambda t: t.label({number: "x"}),
    ):
        with pytest.raises(ValueError, match="whole number from 1"):
            run(device, ask)
    assert device.asked == []


@pytest.mark.parametrize("text", ["x" * 129, "tab\t", "größe", "line\nbreak"])
def test_a_label_that_the_device_cannot_hold_is_refused_here(text: str) -> None:
    device = Device(reply(204))
    with pytest.raises(TerminalError, match="128 printable"):
        run(device, lambda t: t.label({1: "fine", 2: text}))
    assert device.asked == []


# --- the entity tag


def test_a_write_is_made_only_if_the_table_is_the_one_that_was_read() -> None:
    device = Device(reply(204))
    run(device, lambda t: t.merge([(1, 9)], PAIRS))
    assert device.asked[0].headers["if-match"] == "1516-992899-224835"


def test_a_table_that_somebody_changed_meanwhile_is_not_written_to() -> None:
    device = Device(reply(412), reply(204, etag="1516-992899-999999"))
    with pytest.raises(ChangedError):
        run(device, lambda t: t.merge([(1, 9)], PAIRS))
    assert device.lines()[-1].startswith("GET")


@pytest.mark.parametrize("status", [400, 412])
def test_a_device_that_does_not_understand_its_own_tags_is_written_to_without(status: int) -> None:
    answers = [reply(status), *([reply(204)] if status == 412 else []), reply(204), reply(204)]
    device = Device(*answers)

    async def ask(t: RestconfTransport) -> None:
        await t.merge([(1, 9)], PAIRS)
        await t.merge([(2, 10)], PAIRS)

    run(device, ask)
    conditional = ["if-match" in r.headers for r in device.asked if r.method == "PATCH"]
    assert conditional == [True, False, False]


def test_every_removal_is_made_only_if_the_table_is_as_the_former_left_it() -> None:
    device = Device(reply(204, etag="1516-1-2"), reply(204, etag="1516-1-3"))
    assert run(device, lambda t: t.delete([1, 5], PAIRS)) == "1516-1-3"
    assert [r.headers.get("if-match") for r in device.asked] == ["1516-992899-224835", "1516-1-2"]


@pytest.mark.parametrize("status", [400, 502])
def test_a_password_that_somebody_on_the_way_repeats_is_not_passed_on(status: int) -> None:
    basic = base64.b64encode(b"opus:Zq8-kept-secret").decode()
    body = f"<html>you sent Authorization: Basic {basic} (opus:Zq8-kept-secret)</html>"
    with pytest.raises(DriverError, match=r"you sent Authorization: Basic \.\.\.") as failure:
        run(Device(reply(status, body)), lambda t: t.table())
    assert "Zq8" not in failure.value.detail
    with pytest.raises(TransientError) as failure:
        run(Device(reply(200, body)), lambda t: t.table())
    assert basic not in failure.value.detail
    assert "Zq8" not in failure.value.detail


# --- connections


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), httpx.ConnectTimeout("slow")])
def test_a_write_to_a_device_that_cannot_be_reached_has_changed_nothing(error: Exception) -> None:
    with pytest.raises(TransientError, match="cannot connect"):
        run(Device(error), lambda t: t.merge([(1, 9)], WireTable(())))


@pytest.mark.parametrize(
    "error",
    [
        httpx.ReadTimeout("slow"),
        httpx.WriteTimeout("slow"),
        httpx.RemoteProtocolError("closed"),
        httpx.ReadError("reset"),
        httpx.WriteError("reset"),
    ],
)
def test_a_write_without_an_answer_is_ambiguous_and_sent_once(error: Exception) -> None:
    device = Device(error)
    with pytest.raises(AmbiguousError):
        run(device, lambda t: t.merge([(1, 9)], WireTable(())))
    assert len(device.asked) == 1


def test_a_reading_whose_idle_connection_had_ended_is_tried_once_more() -> None:
    assert run(Device(httpx.RemoteProtocolError("closed"), reply(204)), lambda t: t.table()) == WireTable(
        (), PAIRS.etag
    )
    device = Device(httpx.ReadError("reset"))
    with pytest.raises(TransientError):
        run(device, lambda t: t.table())
    assert len(device.asked) == 2


def test_an_endless_answer_is_cut_off() -> None:
    with pytest.raises(TransientError, match="more than"):
        run(Device(reply(200, "x" * (ANSWER_MAX_BYTES + 1))), lambda t: t.table())


def test_a_redirect_is_not_followed_with_the_password() -> None:
    device = Device(reply(302, location="http://elsewhere.example/api"))
    with pytest.raises(TerminalError, match="302"):
        run(device, lambda t: t.table())
    assert len(device.asked) == 1
