"""Requests to one controller: address, token and certificates, pages of lists, and the same as curl lines.

The environment's proxies are never used: what answers has to be the controller that was named.
"""

from __future__ import annotations

import json
import shlex
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer

from opus_sdn import __version__
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.settings import read_token

PREFIX = "/api/v1"
DEFAULT_CONTROLLER = "http://127.0.0.1:8700"
PAGE_ITEMS = 500  # the most that the controller gives at once
PAGES_MAX = 20_000  # a controller that never says it is done must not keep us for ever
REQUEST_S = 30.0
CONNECT_S = 5.0
NO_CONTENT = 204

ControllerOption = Annotated[
    str,
    typer.Option("--controller", envvar="OPUS_CONTROLLER", metavar="URL", help="Address of the controller."),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file", envvar="OPUS_TOKEN_FILE", metavar="FILE", help="File that holds the access token."
    ),
]
CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="OPUS_CA_FILE",
        metavar="FILE",
        help="PEM file with the controller's certificate authority.",
    ),
]
CurlOption = Annotated[
    bool, typer.Option("--curl", help="Ask nothing; print the curl line that asks the same.")
]

Params = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the controller: its JSON object, and the ETag it came with."""

    body: dict[str, Any]
    etag: str | None


class RefusedError(CliError):
    """The controller refused a request; `kind` is the problem's stable name."""

    def __init__(self, message: str, status: int, kind: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Controller:
    """One controller. Raises CliError: refused (1), a setting that cannot be used (2), nobody there (3)."""

    def __init__(self, url: str, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        self.url = _checked_url(url)
        self._token_file = token_file
        self._ca_file = ca_file
        try:
            token = read_token(token_file)
        except SettingsError as wrong:
            raise CliError(str(wrong), ExitCode.USAGE) from None
        headers = {"Accept": "application/json", "User-Agent": f"opus-cli/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            verify=_certificates(self.url, ca_file),
            trust_env=False,
            follow_redirects=True,  # a replica that does not lead says who does
            timeout=httpx.Timeout(REQUEST_S, connect=CONNECT_S),
        )

    def __enter__(self) -> Controller:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, params: Params | None = None, *, timeout_s: float = REQUEST_S) -> Answer:
        """GET a path below /api/v1; parameters that are None are left out."""
        return self._ask("GET", path, params, timeout_s=timeout_s)

    def put(self, path: str, body: bytes, headers: Mapping[str, str], params: Params | None = None) -> Answer:
        """PUT a JSON body."""
        return self._ask("PUT", path, params, body, headers)

    def post(self, path: str, body: bytes | None = None, params: Params | None = None) -> Answer:
        """POST, with a JSON body if there is one."""
        return self._ask("POST", path, params, body)

    def delete(self, path: str, params: Params | None = None) -> Answer:
        """DELETE; an answer without content is an empty object."""
        return self._ask("DELETE", path, params)

    def pages(self, path: str, params: Params | None = None) -> Iterator[dict[str, Any]]:
        """Every page of a list, by its cursors."""
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            answer = self.get(path, {**(params or {}), "limit": PAGE_ITEMS, "cursor": cursor})
            yield answer.body
            following = answer.body.get("next")
            if not following or following == cursor:
                return
            cursor = str(following)
        raise CliError(f"{path}: still not at its end after {PAGES_MAX} pages; narrow the question down")

    def curl(
        self,
        path: str,
        params: Params | None = None,
        *,
        method: str = "GET",
        options: tuple[str, ...] = (),
        body: bytes | None = None,
    ) -> str:
        """The shell line that does the same. The token is read from its file when the line runs.

        `options` are further words of the line, quoted already.
        """
        words = ["curl", "-sS", "--fail-with-body", "--noproxy", "'*'"]
        if method != "GET":
            words += ["-X", method]
        if self._token_file is not None:
            words.append(f'-H "Authorization: Bearer $(cat {shlex.quote(str(self._token_file))})"')
        if self._ca_file is not None:
            words += ["--cacert", shlex.quote(str(self._ca_file))]
        words += options
        url = str(httpx.URL(self.url + PREFIX + path, params=_given(params)))
        words.append(shlex.quote(url))
        if body is None:
            return " ".join(words)
        words += ["-H", "'Content-Type: application/json'", "--data-binary", "@-", "<<'EOF'"]
        return " ".join(words) + f"\n{body.decode('utf-8')}\nEOF"

    def _ask(
        self,
        method: str,
        path: str,
        params: Params | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = REQUEST_S,
    ) -> Answer:
        what = f"{method} {PREFIX}{path}"
        more = dict(headers or {})
        if body is not None:
            more["Content-Type"] = "application/json"
        try:
            response = self._http.request(
                method,
                PREFIX + path,
                params=_given(params),
                content=body,
                headers=more,
                timeout=httpx.Timeout(timeout_s, connect=CONNECT_S),
            )
        except httpx.HTTPError as failed:
            raise self._unavailable(what, failed) from failed
        document = {} if response.status_code == NO_CONTENT else self._document(response, what)
        if response.is_success:
            return Answer(document, response.headers.get("etag"))
        raise _refusal(what, response.status_code, document)

    def _document(self, response: httpx.Response, what: str) -> dict[str, Any]:
        try:
            document = response.json()
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise CliError(
                f"{self.url} answered {what} with status {response.status_code} and no JSON object, so it is "
                "no controller; name one with --controller or OPUS_CONTROLLER",
                ExitCode.UNAVAILABLE,
            )
        return document

    def _unavailable(self, what: str, failed: httpx.HTTPError) -> CliError:
        reason = str(failed) or type(failed).__name__
        return CliError(
            f"controller {self.url} did not answer {what}: {reason}; start it with `opus serve`, or name "
            "another one with --controller or OPUS_CONTROLLER",
            ExitCode.UNAVAILABLE,
        )


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def _refusal(what: str, status: int, problem: dict[str, Any]) -> RefusedError:
    kind = str(problem.get("type", "")).rpartition(":")[2] or "no problem type"
    detail = problem.get("detail") or problem.get("title") or json.dumps(problem)
    return RefusedError(
        f"{what} was refused ({status} {kind}): {' '.join(str(detail).split())}", status, kind
    )


def _given(params: Params | None) -> dict[str, str | int]:
    return {name: value for name, value in (params or {}).items() if value is not None}


def _checked_url(url: str) -> str:
    """The address without a final slash. CliError names what is wrong with another form."""
    example = "use http://HOST:PORT or https://HOST:PORT, as http://127.0.0.1:8700 or http://[::1]:8700"
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
        httpx.URL(url.strip())  # stricter with host names
    except (ValueError, httpx.InvalidURL):
        raise CliError(f"--controller / OPUS_CONTROLLER: is {url!r}; {example}", ExitCode.USAGE) from None
    if parts.username is not None or parts.password is not None:
        raise CliError(
            "--controller / OPUS_CONTROLLER: holds a user name or password; give the address alone, and the "
            "token with --token-file or OPUS_TOKEN_FILE",
            ExitCode.USAGE,
        )
    plain = " " not in url.strip() and parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not host or not plain:
        raise CliError(f"--controller / OPUS_CONTROLLER: is {url!r}; {example}", ExitCode.USAGE)
    return f"{parts.scheme}://{parts.netloc}"


def _certificates(url: str, ca_file: Path | None) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False  # nothing to verify, and reading the system's certificates takes its time
    try:
        return ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    except (OSError, ssl.SSLError) as failed:
        raise CliError(
            f"--ca-file / OPUS_CA_FILE: is {str(ca_file)!r}, which holds no usable certificates ({failed}); "
            "name a PEM file with the controller's certificate authority",
            ExitCode.USAGE,
        ) from None
