"""The core behind a plain HTTP server in a thread: the wire of the rank routes, and a switch that obeys.

For tests of the shim that need a controller they can stop, restart, slow down or make lose replies. Whatever
it decides, the real core decided.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from opus_sdn.api.hot import session_of
from opus_sdn.api.schemas import WireSession
from opus_sdn.fabric_file import generate_fabric, parse_fabric
from opus_sdn.intent.engine import Engine
from opus_sdn.intent.errors import STATUS, CoreError, Failure
from opus_sdn.intent.fabric import Fabric
from opus_sdn.intent.model import (
    Arrival,
    Connection,
    CoreSettings,
    Dimension,
    GroupSpec,
    Hint,
    JobSpec,
    Place,
    PortChoice,
    RankNews,
    Release,
    Stream,
    WorldGroup,
)

STEP_S = 0.05  # how often what only time decides is looked at


def a_fabric(hosts: int = 4, gpus: int = 2, ports: int = 2) -> Fabric:
    """Hosts host0, host1, ... as an operator's file would have them."""
    text = generate_fabric(hosts=hosts, gpus_per_host=gpus, ports_per_gpu=ports)
    return parse_fabric(text, "generated").build()


class SmallController:
    """A controller at `url` from `with` to its end. `settings` are the core's."""

    def __init__(
        self,
        fabric: Fabric | None = None,
        settings: CoreSettings | None = None,
        start: int = 1,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.settings = settings or CoreSettings()
        self.fabric = fabric or a_fabric()
        self.changed = threading.Condition()
        self.over = threading.Event()
        self.engine = Engine(self.fabric, self.settings, start)
        self.delay_s = 0.0
        self.requests: list[tuple[str, str, Any]] = []
        self.connections = 0
        self.polls_run_out = 0  # long polls that ended without news and without a newer one
        self.mangle: Callable[[str, str], str | None] = lambda method, path: None
        self.matching: dict[str, frozenset[Any]] = {
            switch.name: frozenset() for switch in self.fabric.switches
        }
        for name in self.matching:
            self.engine.observe(time.time(), name, frozenset())
        self._polls: dict[Any, int] = {}
        self._stopped = False
        controller = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                controller.connections += 1

            def handle_all(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length)) if length else {}
                fate = controller.mangle(self.command, self.path)
                if fate == "drop":
                    self.close_connection = True
                    return
                if fate == "silent":  # the connection stands, and nothing ever comes
                    controller.over.wait()
                    return
                if fate == "not-ready":
                    status, answer = 503, {"type": "urn:opus-sdn:problem:not-ready", "detail": "in a while"}
                else:
                    status, answer = controller.serve(self.command, self.path, body)
                if fate == "lose":
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                head = f"HTTP/1.1 {status} x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                self.wfile.write(head + data)

            do_GET = do_PUT = do_POST = do_DELETE = handle_all  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, *args: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> SmallController:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()
        threading.Thread(target=self._tick, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        with self.changed:
            self._stopped = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def serve(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """Answer one request as the API does."""
        parts = urlsplit(path)
        words = [unquote(word) for word in parts.path.split("/")[3:]]
        self.requests.append((method, path, body))
        try:
            with self.changed:
                return 200, self._answer(method, words, parse_qs(parts.query), body)
        except CoreError as refused:
            status = STATUS[refused.problem]
            kind = f"urn:opus-sdn:problem:{refused.problem.value}"
            return status, {
                **refused.data,
                "type": kind,
                "title": kind,
                "status": status,
                "detail": refused.detail,
            }

    def job_grants(self, job: str) -> int:
        """How many runs were granted."""
        return self.engine.state.jobs[job].grants

    def _answer(self, method: str, words: list[str], query: Any, body: Any) -> Any:
        now = time.time()
        match method, words:
            case "PUT", ["jobs", job]:
                spec = _job_spec(job, body)
                incarnation, _ = self.engine.put_job(now, spec)
                self._pump()
                return {
                    "job": job,
                    "incarnation": incarnation,
                    "start": self.engine.state.start,
                    "state": "running",
                }
            case "POST", ["jobs", job, "groups"]:
                specs = [self._group_spec(job, group) for group in body["groups"]]
                views = self.engine.check_in(now, job, body["incarnation"], specs)
                self._pump()
                return {
                    "groups": [
                        {
                            "name": view.name,
                            "domain": view.domain.value,
                            "dimension": view.dimension,
                            "ranks": list(view.ranks),
                            "connection": _connection(view.connection) if view.connection else None,
                        }
                        for view in views
                    ]
                }
            case "POST", ["jobs", job, "arrivals"]:
                return self._arrivals(now, job, body)
            case "POST", ["jobs", job, "failures"]:
                stream = _stream(body) if "connection" in body else None
                self.engine.operation_failed(
                    now, job, body["incarnation"], body["rank"], stream, body.get("n"), body["detail"]
                )
            case "POST", ["jobs", job, "abort"]:
                self.engine.abort(now, job, body["incarnation"], body.get("rank"), body["detail"])
            case "POST", ["jobs", job, "deaths"]:
                self.engine.report_dead(now, job, body["incarnation"], body["ranks"], body["detail"])
            case "GET", ["connections", connection]:
                return _connection(self.engine.state.jobs[query["job"][0]].connection(connection))
        self._pump()
        return {}

    def _arrivals(self, now: float, job: str, body: Any) -> Any:
        (rank,) = body["ranks"]
        news = RankNews(
            rank["rank"],
            rank["last_grant"],
            tuple(
                Arrival(_stream(a), a["n"], tag=a.get("tag"), blocking=a.get("blocking", False))
                for a in rank.get("arrivals", ())
            ),
            tuple(Release(_stream(r), r["n"], r.get("length", 1)) for r in rank.get("releases", ())),
            rank.get("leave", False),
            hints=tuple(Hint(_stream(h), h["n"]) for h in rank.get("hints", ())),
            session=session_of(WireSession.model_validate(rank["session"])) if "session" in rank else None,
        )
        incarnation = body["incarnation"]
        self.engine.news(now, job, incarnation, body["seen_start"], [news])
        self._pump()
        if body["wait_s"]:
            key = (job, incarnation, news.rank)
            mine = self._polls[key] = self._polls.get(key, 0) + 1
            self.changed.notify_all()
            until = now + body["wait_s"]
            while (
                not self.engine.has_news_for(job, incarnation, news.rank, news.last_grant)
                and self._polls[key] == mine
                and not self._stopped
                and (left := until - time.time()) > 0
            ):
                self.changed.wait(left)
            self.polls_run_out += time.time() >= until
        answer = self.engine.answer(job, incarnation, news.rank, news.last_grant)
        return {
            "start": self.engine.state.start,
            "ranks": [
                {
                    "rank": news.rank,
                    "arrivals": [],
                    "grants": [
                        {"no": g.no, **_fields(g.stream), "n": g.n, "length": g.length} for g in answer.grants
                    ],
                    "cut_requests": [],
                    "alarms": [{"circuit": a.circuit, "switch": a.switch} for a in answer.alarms],
                    "failure": _failure(answer.failure) if answer.failure else None,
                }
            ],
        }

    def _group_spec(self, job: str, group: Any) -> GroupSpec:
        world = len(self.engine.state.jobs[job].spec.placement) if job in self.engine.state.jobs else 0
        ranks = group["ranks"]
        if ranks == "world":
            ranks = range(world)
        elif isinstance(ranks, dict):
            ranks = range(ranks["start"], ranks["stop"], ranks["step"])
        return GroupSpec(group["name"], tuple(ranks), group["dimension"], group["ordinal"])

    def _pump(self) -> None:
        """Decide, store in no time, and let the switches do at once, or after `delay_s`, what is planned."""
        while True:
            effects = self.engine.pump(time.time())
            if effects.batch is None and not effects.steps:
                break
            if effects.batch is not None:
                self.engine.committed(effects.batch.id)
            for number in effects.steps:
                step = self.engine.start_step(time.time(), number)
                if step is None:
                    continue
                if self.delay_s:
                    threading.Timer(self.delay_s, self._settle, (step,)).start()
                else:
                    self._apply(step)
        self.changed.notify_all()

    def _settle(self, step: Any) -> None:
        with self.changed:
            self._apply(step)
            self._pump()

    def _apply(self, step: Any) -> None:
        held = (self.matching[step.switch] - set(step.remove)) | set(step.add)
        self.matching[step.switch] = frozenset(held)
        self.engine.settle_step(time.time(), step.id, True, None, self.matching[step.switch])

    def _tick(self) -> None:
        while not self._stopped:
            with self.changed:
                self.changed.wait(STEP_S)
                due = self.engine.next_deadline()
                if due is not None and due <= time.time():
                    self.engine.tick(time.time())
                    self._pump()


def _job_spec(job: str, body: Any) -> JobSpec:
    places = {p["rank"]: Place(p["host"], p["slot"]) for p in body["placement"]}
    return JobSpec(
        job,
        body["owner"],
        body["nonce"],
        tuple(places[rank] for rank in range(len(places))),
        tuple(Dimension(d["name"], d["size"]) for d in body.get("dimensions", ())),
        PortChoice(body.get("port_choice", "standard")),
        WorldGroup(body.get("world_group", "auto")),
        body.get("force_scale_out", False),
        body.get("deadline_s", 1620.0),
        body.get("initial_topology"),
    )


def _stream(fields: Any) -> Stream:
    return Stream(fields["connection"], fields.get("source"), fields.get("destination"))


def _fields(stream: Stream) -> dict[str, Any]:
    return {"connection": stream.connection, "source": stream.source, "destination": stream.destination}


def _connection(connection: Connection) -> dict[str, Any]:
    circuits = [{"id": c.id, "rail": c.rail, "switch": c.switch} for c in connection.circuits]
    return {
        "id": connection.id,
        "pattern": connection.pattern.value,
        "ranks": list(connection.ranks),
        "circuits": circuits,
    }


def _failure(failure: Failure) -> dict[str, Any]:
    kind = f"urn:opus-sdn:problem:{failure.problem.value}"
    return {"type": kind, "detail": failure.detail, "rank": failure.rank, "data": failure.data}
