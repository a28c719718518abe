"""What the command line does without a controller: files, settings, the database, and errors in a line."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from opus_sdn import __version__
from opus_sdn.fabric_file import parse_fabric
from opus_sdn.store import migrate
from tests.cli.conftest import ROOT, Opus

HEAD = migrate.head()


def test_a_generated_fabric_passes_its_check(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    made = opus("fabric", "generate", "--hosts", 3, "--gpus-per-host", 4, "--rails", 2, "-o", file)
    assert (made.code, made.out) == (0, "")

    checked = opus("fabric", "check", file, "-o", "json")

    assert checked.code == 0
    assert checked.json["ok"]
    assert checked.json["hosts"] == 3
    assert [(rail["name"], rail["slots"], rail["ports"]) for rail in checked.json["rails"]] == [
        ("rail0", [0, 1], 12),
        ("rail1", [2, 3], 12),
    ]


def test_a_fabric_is_generated_on_stdout_and_checked_from_stdin(
    opus: Opus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = opus("fabric", "generate", "--delay-ms", 7).out
    assert "delay_ms: 7" in text
    (tmp_path / "in").write_text(text)
    monkeypatch.setattr(sys, "stdin", (tmp_path / "in").open())

    checked = opus("fabric", "check", "-")

    assert checked.code == 0
    assert checked.lines[0].split() == ["RAIL", "SWITCH", "GPU", "SLOTS", "PORTS"]
    assert checked.lines[1].split() == ["rail0", "ocs0", "0", "8"]
    assert checked.err == "stdin: in order; 4 hosts, 16 ports, 2 switches, duplex circuits\n"


def test_an_existing_file_is_replaced_on_request_only(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    file.write_text("mine")
    refused = opus("fabric", "generate", "-o", file)
    assert refused.code == 2
    assert refused.err == f"error: --output: {file} exists; name another file, or replace it with --force\n"
    assert file.read_text() == "mine"

    assert opus("fabric", "generate", "-o", file, "--force").code == 0
    assert parse_fabric(file.read_text(), "it").build().hosts == ("host0", "host1", "host2", "host3")


FAULTY = """\
version: 1
hosts: [a, b]
gpus_per_host: 1
ports_per_gpu: 3
circuit: duplex
switches: [{name: s, driver: emulated, size: 4, layout: sided}]
rails: [{name: r, slots: [0], switch: s, first_port: 0, colour: red}]
"""


def test_every_fault_of_a_fabric_file_is_named_with_its_line(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "faulty.yaml"
    file.write_text(FAULTY)
    checked = opus("fabric", "check", file)
    assert (checked.code, checked.out) == (1, "")
    assert [line.partition(";")[0] for line in checked.err.splitlines()] == [
        f"error: {file}:4: ports_per_gpu: is 3",
        f"error: {file}:7: rails[0].colour: is an unknown key",
    ]

    listed = opus("fabric", "check", file, "-o", "json")
    assert listed.code == 1
    assert [(fault["line"], fault["where"]) for fault in listed.json["faults"]] == [
        (4, "ports_per_gpu"),
        (7, "rails[0].colour"),
    ]


def test_options_that_only_the_driver_knows_are_checked_too(opus: Opus, tmp_path: Path) -> None:
    file = tmp_path / "typo.yaml"
    file.write_text(
        FAULTY.replace("ports_per_gpu: 3", "ports_per_gpu: 2")
        .replace(", colour: red", "")
        .replace("layout: sided", "layout: sided, options: {delay_sm: 3}")
    )
    checked = opus("fabric", "check", file)
    assert checked.code == 1
    assert "switch s: option 'delay_sm' is unknown" in checked.err
    assert "did you mean 'delay_ms'?" in checked.err


USAGE = [
    (("get", "jobz"), "KIND: is 'jobz'; did you mean job"),
    (("get", "jobs", "-o", "xml"), "'-o' / '--output' is 'xml': 'xml' is not one of 'table', 'json'"),
    (("get", "jobs", "--jbo", "a"), "No such option: --jbo"),
    (("get",), "Missing argument 'KIND'; `opus get --help` lists"),
    (("get", "groups"), "--job: is not given; groups belong to a job"),
    (("get", "ports", "--job", "a"), "--job: is 'a', but ports are not listed by job; leave it out"),
    (("get", "fabric", "f"), "NAME: is 'f', but there is one fabric only"),
    (("get", "events", "7"), "NAME: is '7', but events have numbers; use `opus events --since`"),
    (("describe", "fabric", "f"), "KIND: is 'fabric', which has no names to describe; use `opus get fabric`"),
    (("apply",), "Missing option '-f' / '--file'"),
    (("apply", "-f", "absent.yaml"), "absent.yaml: cannot be read: No such file or directory; `opus fabric"),
    (("events", "--since", "-1"), "'--since' is '-1': Input should be greater than or equal to 0"),
    (("serve", "--port", "yes"), "'--port' is 'yes': Input should be a valid integer"),
    (("serve", "--port", "70000"), "--port: is 70000: input should be less than or equal to 65535"),
    (("serve", "--host", "0.0.0.0"), "--host: is '0.0.0.0', which is not a loopback address"),
    (("serve", "--database", "mysql://u:secret@h/d"), "--database: starts with mysql://, which is"),
    (("serve", "--config", "absent.toml"), "absent.toml: cannot be read: No such file or directory"),
    (("fabric", "generate", "--ports-per-gpu", "3"), "--ports-per-gpu is 3; a GPU has 1, 2 or 4 NIC ports"),
    (("fabric", "generate", "--circuit", "beam"), "--circuit is 'beam'; use duplex or bidirectional or"),
    (("frobnicate",), "No such command 'frobnicate'; `opus --help` lists"),
    (
        ("get", "jobs", "--controller", "127.0.0.1:8700"),
        "--controller / OPUS_CONTROLLER: is '127.0.0.1:8700'; use",
    ),
    (
        ("get", "jobs", "--controller", "http://a b:1"),
        "--controller / OPUS_CONTROLLER: is 'http://a b:1'; use",
    ),
    (
        ("get", "jobs", "--controller", "http://h:99999"),
        "OPUS_CONTROLLER: is 'http://h:99999'; use http://HOST",
    ),
    (
        ("get", "jobs", "--controller", "http://h:80/api"),
        "OPUS_CONTROLLER: is 'http://h:80/api'; use http://",
    ),
    (("get", "jobs", "--controller", "http://u:secret@h"), "OPUS_CONTROLLER: holds a user name or password"),
    (("get", "jobs", "--token-file", "absent"), "OPUS_TOKEN_FILE: is 'absent', which cannot be read"),
    (
        ("get", "jobs", "--controller", "https://localhost:1", "--ca-file", "absent.pem"),
        "--ca-file / OPUS_CA_FILE: is 'absent.pem', which holds no usable certificates",
    ),
]


@pytest.mark.parametrize(("arguments", "wanted"), USAGE, ids=[" ".join(arguments) for arguments, _ in USAGE])
def test_what_cannot_be_used_is_one_line_that_says_what_would_be_right(
    opus: Opus, arguments: tuple[str, ...], wanted: str
) -> None:
    ran = opus(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: ")
    assert wanted in ran.err
    assert ran.err.count("\n") == 1
    assert "secret" not in ran.err


def test_no_command_shows_the_help_and_is_a_usage_error(opus: Opus) -> None:
    ran = opus()
    assert ran.code == 2
    assert "Exit codes:" in ran.out
    assert ran.err == ""


def test_an_absent_controller_is_one_line_and_a_code_of_its_own(opus: Opus, closed_port: int) -> None:
    for arguments in (["get", "jobs"], ["describe", "job", "a"], ["events"], ["events", "--follow"]):
        ran = opus(*arguments, "--controller", f"http://127.0.0.1:{closed_port}")
        assert (ran.code, ran.out) == (3, "")
        assert ran.err.startswith(
            f"error: controller http://127.0.0.1:{closed_port} did not answer GET /api/v1/"
        )
        assert "start it with `opus serve`, or name another one" in ran.err
        assert ran.err.count("\n") == 1


class Something(BaseHTTPRequestHandler):
    """A server that is no controller: it answers a page, or a JSON object of its own."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path.startswith("/api/v1/locks") else 404)
        self.end_headers()
        self.wfile.write(b'{"hello": "world"}' if "rails" in self.path else b"<p>hello</p>")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def something() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Something) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_what_is_no_controller_is_told_from_one_that_refuses(opus: Opus, something: str) -> None:
    for kind, status in (("locks", 200), ("jobs", 404)):
        ran = opus("get", kind, "--controller", something)
        assert (ran.code, ran.out) == (3, "")
        assert ran.err == (
            f"error: {something} answered GET /api/v1/{kind} with status {status} and no JSON object, so "
            "it is no controller; name one with --controller or OPUS_CONTROLLER\n"
        )
    other = opus("get", "rails", "--controller", something)
    assert other.code == 1
    assert other.err == 'error: GET /api/v1/rails was refused (404 no problem type): {"hello": "world"}\n'


def test_debug_shows_where_an_error_comes_from(capfd: pytest.CaptureFixture[str], closed_port: int) -> None:
    from opus_sdn.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["get", "jobs", "--controller", f"http://127.0.0.1:{closed_port}", "--debug"])
    assert ended.value.code == 3
    assert "Traceback" in capfd.readouterr().err


def test_versions_are_printed_for_people_and_for_programs(opus: Opus) -> None:
    assert opus("--version").out == f"{__version__}\n"
    assert opus("version", "-o", "json").json["opus"] == __version__
    assert opus("version").lines[0].split() == ["OPUS", "PYTHON", "PLATFORM"]


def test_settings_are_shown_with_their_origin(
    opus: Opus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "opus.toml"
    config.write_text("lease_s = 40\nport = 1\n")
    monkeypatch.setenv("OPUS_SDN_PORT", "2")
    monkeypatch.setenv("opus_sdn_fence_s", "9")

    shown = opus("config", "show", "--config", config, "--host", "::1", "-o", "json").json["settings"]

    found = {row["name"]: (row["value"], row["origin"]) for row in shown}
    assert found["host"] == ("::1", "--host")
    assert found["port"] == (2, "OPUS_SDN_PORT")
    assert found["fence_s"] == (9, "OPUS_SDN_FENCE_S")
    assert found["lease_s"] == (40, str(config))
    assert found["abort_s"] == (5, "default")
    assert opus("config", "show").lines[0].split() == ["NAME", "VALUE", "ORIGIN", "MEANING"]


def test_secrets_of_a_database_address_are_not_shown(opus: Opus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPUS_SDN_DATABASE", "sqlite:///opus.db?key=secret")
    for form in ("table", "json"):
        shown = opus("config", "show", "-o", form)
        assert "sqlite:///opus.db?key=***" in shown.out
        assert "secret" not in shown.out + shown.err


def test_a_database_is_checked_then_upgraded_then_in_order(opus: Opus, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/opus.db"
    before = opus("db", "check", "--database", url)
    assert before.code == 1
    assert before.err.endswith("run `opus db upgrade`\n")
    assert not (tmp_path / "opus.db").exists()

    assert opus("db", "upgrade", "--database", url).err == f"{url}: from no tables to revision {HEAD}\n"
    assert opus("db", "upgrade", "--database", url).err == f"{url}: is at revision {HEAD}; nothing to do\n"

    after = opus("db", "check", "--database", url, "-o", "json")
    assert after.code == 0
    assert after.json == {"database": url, "ok": True, "needed": HEAD, "problem": None}


def test_a_database_goes_back_to_an_older_schema_only_when_that_was_meant(opus: Opus, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/opus.db"
    opus("db", "upgrade", "--database", url)

    unknown = opus("db", "downgrade", "7", "--database", url)
    assert (unknown.code, unknown.err) == (
        2,
        f"error: REVISION: is '7'; use one of {', '.join(migrate.revisions())}, base\n",
    )
    unsure = opus("db", "downgrade", "0001", "--database", url)
    assert unsure.code == 2
    assert "would be lost; say --yes" in unsure.err
    assert opus("db", "check", "--database", url).code == 0

    done = opus("db", "downgrade", "0001", "--database", url, "--yes")
    assert (done.code, done.err) == (0, f"{url}: from revision {HEAD} to 0001\n")
    checked = opus("db", "check", "--database", url)
    assert checked.code == 1
    assert f"has revision 0001, {HEAD} is needed: run `opus db upgrade`" in checked.err


def test_a_database_server_that_does_not_answer_is_said_without_the_password(
    opus: Opus, tmp_path: Path
) -> None:
    url = f"postgresql://ann:secret@/opus?host={tmp_path}"
    for arguments in (("db", "upgrade"), ("db", "check"), ("db", "downgrade", "base", "--yes")):
        refused = opus(*arguments, "--database", url)
        assert refused.code == 1
        assert "database postgresql://ann:***@/opus" in refused.err
        assert "No such file or directory" in refused.err
        assert "it needs a running PostgreSQL server" in refused.err
        assert "secret" not in refused.err + refused.out


def test_the_api_document_is_printed_without_a_controller(opus: Opus) -> None:
    document = opus("openapi").json
    assert document["openapi"].startswith("3.")
    assert "/api/v1/jobs/{job}/arrivals" in document["paths"]


CURLS = [
    (
        ("get", "jobs"),
        "curl -sS --fail-with-body --noproxy '*' 'http://127.0.0.1:8700/api/v1/jobs?limit=500'",
    ),
    (("get", "job", "a"), "curl -sS --fail-with-body --noproxy '*' http://127.0.0.1:8700/api/v1/jobs/a"),
    (
        ("get", "connection", "g:0-1", "--job", "a"),
        "curl -sS --fail-with-body --noproxy '*' 'http://127.0.0.1:8700/api/v1/connections/g%3A0-1?job=a'",
    ),
    (
        ("events", "--follow", "--since", "3"),
        "curl -sS --fail-with-body --noproxy '*' -N -H 'Accept: text/event-stream' 'http://127.0.0.1:8700/api/v1/events?since=3'",
    ),
    (
        ("describe", "rail", "rail0"),
        "curl -sS --fail-with-body --noproxy '*' http://127.0.0.1:8700/api/v1/rails/rail0",
    ),
]


@pytest.mark.parametrize(("arguments", "wanted"), CURLS, ids=[" ".join(arguments) for arguments, _ in CURLS])
def test_curl_prints_the_line_that_asks_the_same_and_asks_nothing(
    opus: Opus, arguments: tuple[str, ...], wanted: str
) -> None:
    ran = opus(*arguments, "--curl")
    assert (ran.code, ran.out, ran.err) == (0, wanted + "\n", "")


def test_a_curl_line_names_the_file_of_the_token_and_never_the_token(opus: Opus, tmp_path: Path) -> None:
    (tmp_path / "my token").write_text("s3cret\n")
    ran = opus("get", "jobs", "--curl", "--token-file", tmp_path / "my token")
    assert f"""-H "Authorization: Bearer $(cat '{tmp_path}/my token')" """ in ran.out
    assert "s3cret" not in ran.out


def test_a_script_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m opus_sdn.cli config show | true"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert ran.stderr == ""


def test_colours_go_to_terminals_only_and_not_where_no_color_is_set(tmp_path: Path) -> None:
    def through_a_terminal(**environment: str) -> str:
        ran = subprocess.run(
            ["script", "-qec", f"{sys.executable} -m opus_sdn.cli version", "/dev/null"],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env={"TERM": "xterm-256color", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **environment},
        )
        return ran.stdout

    assert "\x1b[1m" in through_a_terminal()
    assert "\x1b[3" not in through_a_terminal(NO_COLOR="1")
