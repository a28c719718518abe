"""What a rank is told by its environment: where the controller is, which job this is, where the rank sits.

Read once, when the default process group is made. Every fault is a `SettingsError` that names the variable,
its value and what would be right.
"""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

from opus_sdn.intent.model import PortChoice, RetryBudget, WorldGroup
from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.group_settings import Labels, labels_in
from opus_sdn.shim.link_settings import SYSFS_DEFAULT, LinkSource, links_in, retry_budget_in
from opus_sdn.shim.slot_settings import GpuNames, slot_in

NAME_LENGTH_MAX = 128
JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
TOKEN_BYTES_MAX = 4096
SOCKET_BYTES_MAX = 107
FENCE_S_DEFAULT = 15.0
INIT_S_DEFAULT = 30.0
PROFILE_STEPS_DEFAULT = 5
PROFILE_STEPS_MIN = 3  # the first is skipped, and what was seen once does not repeat itself
PROFILE_STEPS_MAX = 1000

E = TypeVar("E", bound=StrEnum)


class Admission(StrEnum):
    """What becomes of a job whose ports are not free: refused at once, or queued until they are."""

    REFUSE = "refuse"
    QUEUE = "queue"


class Mode(StrEnum):
    """What the controller is told.

    `off`: nothing, plain gloo and NCCL. `on-demand`: every operation across hosts asks first. `provision`: a
    rank also says where it expects to go next, so that circuits move before anybody asks.
    """

    OFF = "off"
    ON_DEMAND = "on-demand"
    PROVISION = "provision"


class NcclCheck(StrEnum):
    """What becomes of a group whose circuits NCCL would leave, as its environment tells it."""

    REFUSE = "refuse"
    WARN = "warn"
    OFF = "off"


class Address(NamedTuple):
    """Where the controller listens."""

    tls: bool
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ShimSettings:
    """A rank's settings. `controller`, `job` and `slot` are unset only with mode `off`."""

    mode: Mode
    controller: Address | None
    job: str
    host: str
    slot: int
    owner: str
    force_scale_out: bool = False
    dimensions: tuple[tuple[str, int], ...] = ()
    port_choice: PortChoice = PortChoice.STANDARD
    world_group: WorldGroup = WorldGroup.AUTO
    initial_topology: str | None = None
    admission: Admission = Admission.REFUSE
    token_file: Path | None = None
    ca_file: Path | None = None
    witness: str | None = None  # host:port
    fence_s: float = FENCE_S_DEFAULT
    init_s: float = INIT_S_DEFAULT
    allow_torch: bool = False
    replicas: tuple[Address, ...] = ()  # further controllers, of which one leads
    watchdog: bool = False
    links: tuple[tuple[int, LinkSource], ...] = ()  # by port index
    sysfs: Path = SYSFS_DEFAULT
    retry_budget: RetryBudget | None = None
    trace_dir: Path | None = None
    agent: Path | None = None  # the Unix socket of this host's agent
    nccl_check: NcclCheck = NcclCheck.REFUSE
    labels: Labels = field(default_factory=dict)  # dimensions by rank list
    profile_steps: int = PROFILE_STEPS_DEFAULT  # 0: every operation asks for itself
    phase_table: str | None = None  # to be followed from the start; `{rank}` stands for the rank
    phase_table_save: str | None = None
    comm_pattern: str | None = None  # prefix of tables in the published format


def from_environ(environ: Mapping[str, str] | None = None, gpu_names: GpuNames | None = None) -> ShimSettings:
    """Read the `OPUS_*` variables. Raises SettingsError on the first one that cannot be used."""
    env = os.environ if environ is None else environ
    mode = _choice(env, "OPUS_MODE", Mode, Mode.ON_DEMAND)
    if mode is Mode.OFF:
        return ShimSettings(mode, None, "", "", 0, "", allow_torch=_flag(env, "OPUS_ALLOW_TORCH"))
    controllers = controllers_in(env)
    links, sysfs = links_in(env), _folder(env, "OPUS_LINK_SYSFS", SYSFS_DEFAULT)
    return ShimSettings(
        mode=mode,
        controller=controllers[0],
        job=_job(env),
        host=_host(env),
        slot=slot_in(env, links, sysfs, gpu_names),
        owner=_owner(env),
        force_scale_out=_force(env),
        dimensions=_dimensions(env),
        port_choice=_choice(env, "OPUS_PORT_CHOICE", PortChoice, PortChoice.STANDARD),
        world_group=_choice(env, "OPUS_WORLD_GROUP", WorldGroup, WorldGroup.AUTO),
        initial_topology=_topology(env),
        admission=_choice(env, "OPUS_ADMISSION", Admission, Admission.REFUSE),
        token_file=_file(env, "OPUS_TOKEN_FILE"),
        ca_file=_file(env, "OPUS_CA_FILE"),
        witness=_host_port(env, "OPUS_WITNESS"),
        fence_s=_seconds(env, "OPUS_FENCE_S", FENCE_S_DEFAULT),
        init_s=_seconds(env, "OPUS_INIT_S", INIT_S_DEFAULT),
        allow_torch=_flag(env, "OPUS_ALLOW_TORCH"),
        replicas=controllers[1:],
        watchdog=env.get("OPUS_WATCHDOG", "").strip() == "" or _flag(env, "OPUS_WATCHDOG"),
        links=links,
        sysfs=sysfs,
        nccl_check=_choice(env, "OPUS_NCCL_CHECK", NcclCheck, NcclCheck.REFUSE),
        labels=labels_in(env),
        retry_budget=retry_budget_in(env),
        trace_dir=_new_folder(env, "OPUS_TRACE_DIR"),
        profile_steps=_profile_steps(env),
        phase_table=env.get("OPUS_PHASE_TABLE", "").strip() or None,
        phase_table_save=env.get("OPUS_PHASE_TABLE_SAVE", "").strip() or None,
        comm_pattern=env.get("COMM_PATTERN_PATH", "").strip() or None,
        agent=_socket(env, "OPUS_AGENT"),
    )


def read_token(path: Path | None) -> str | None:
    """The bearer token in a file, without surrounding white space. The token is never part of a message."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as failed:
        raise SettingsError(
            f"OPUS_TOKEN_FILE: is {str(path)!r}, which cannot be read ({failed.strerror}); "
            "name a file that holds the token alone"
        ) from None
    text = raw.decode("ascii", errors="replace").strip()
    if len(raw) > TOKEN_BYTES_MAX or not text or not text.isprintable() or " " in text or "\ufffd" in text:
        raise SettingsError(
            f"OPUS_TOKEN_FILE: is {str(path)!r}, which does not hold a token: one line of printable ASCII "
            f"without spaces, at most {TOKEN_BYTES_MAX} bytes"
        )
    return text


def _wrong(variable: str, value: str, remedy: str) -> SettingsError:
    return SettingsError(f"{variable}: is {value!r}; {remedy}")


def _choice(env: Mapping[str, str], variable: str, kind: type[E], default: E) -> E:
    value = env.get(variable, "").strip()
    if not value:
        return default
    try:
        return kind(value.lower())
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise _wrong(variable, value, f"use one of: {known}") from None


def _flag(env: Mapping[str, str], variable: str) -> bool:
    value = env.get(variable, "").strip()
    if value not in ("", "0", "1"):
        raise _wrong(variable, value, "use 1 for yes, 0 or nothing for no")
    return value == "1"


def _seconds(env: Mapping[str, str], variable: str, default: float) -> float:
    value = env.get(variable, "").strip()
    if not value:
        return default
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 86_400:
        raise _wrong(variable, value, "use seconds from 0.1 to 86400, as 15")
    return seconds


def _profile_steps(env: Mapping[str, str]) -> int:
    value = env.get("OPUS_PROFILE_STEPS", "").strip()
    if not value:
        return PROFILE_STEPS_DEFAULT
    steps = int(value) if value.isascii() and value.isdecimal() and len(value) < 10 else -1
    if steps != 0 and not PROFILE_STEPS_MIN <= steps <= PROFILE_STEPS_MAX:
        remedy = f"use the number of steps to learn from, {PROFILE_STEPS_MIN} to {PROFILE_STEPS_MAX}, as 5"
        raise _wrong("OPUS_PROFILE_STEPS", value, f"{remedy}, or 0 to have every operation ask for itself")
    return steps


def controllers_in(env: Mapping[str, str]) -> tuple[Address, ...]:
    """One address, or those of several controllers between commas. Raises SettingsError."""
    value = env.get("OPUS_CONTROLLER", "").strip()
    return tuple(_controller(part.strip()) for part in value.split(","))


def _controller(value: str) -> Address:
    example = "use http://HOST:PORT or https://HOST:PORT, as http://10.0.0.5:8700 or http://[fd00::5]:8700"
    if not value:
        raise SettingsError(f"OPUS_CONTROLLER: is not set; {example}, or OPUS_MODE=off to do without")
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _wrong("OPUS_CONTROLLER", value, example) from None
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            "OPUS_CONTROLLER: holds a user name or password; "
            "give the address alone, and the token in OPUS_TOKEN_FILE"
        )
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not host or not port or not plain:
        raise _wrong("OPUS_CONTROLLER", value, example)
    return Address(parts.scheme == "https", host, port)


def _job(env: Mapping[str, str]) -> str:
    value = env.get("OPUS_JOB", "").strip()
    remedy = "use at most 128 letters, digits, '.', '_' and '-', a letter or digit first, as llama-7b"
    if not value:
        raise SettingsError(f"OPUS_JOB: is not set; {remedy}")
    if len(value) > NAME_LENGTH_MAX or not JOB_NAME.fullmatch(value):
        raise _wrong("OPUS_JOB", value, remedy)
    return value


def _host(env: Mapping[str, str]) -> str:
    """The host's name in the fabric. A boot id would not do: containers of one machine share it."""
    value = env.get("OPUS_HOST", "").strip() or env.get("SLURMD_NODENAME", "").strip()
    return value or socket.gethostname()


def _owner(env: Mapping[str, str]) -> str:
    for variable in ("OPUS_OWNER", "SLURM_JOB_USER", "USER", "LOGNAME"):
        value = env.get(variable, "").strip()
        if value:
            return value[:NAME_LENGTH_MAX]
    return f"uid-{os.getuid()}"


def _force(env: Mapping[str, str]) -> bool:
    value = env.get("OPUS_FORCE_DOMAIN", "").strip()
    if value not in ("", "scale-out"):
        raise _wrong("OPUS_FORCE_DOMAIN", value, "use scale-out, or leave it unset")
    return value == "scale-out"


def _dimensions(env: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    text = env.get("OPUS_DIMENSIONS", "").strip()
    remedy = "use NAME=SIZE, outermost first, each name once, as pp=2,dp=2,tp=2"
    found: dict[str, int] = {}
    for item in text.split(",") if text else ():
        name, _, size = (part.strip() for part in item.partition("="))
        named = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
        if not named or len(name) > NAME_LENGTH_MAX or name in found:
            raise _wrong("OPUS_DIMENSIONS", text, remedy)
        if not (size.isascii() and size.isdecimal() and 1 <= len(size) <= 7 and int(size) >= 1):
            raise _wrong("OPUS_DIMENSIONS", text, remedy)
        found[name] = int(size)
    return tuple(found.items())


def _topology(env: Mapping[str, str]) -> str | None:
    value = env.get("OPUS_INITIAL_TOPOLOGY", "").strip()
    if value and not (value.isascii() and value.isdecimal() and len(value) <= 4096):
        raise _wrong("OPUS_INITIAL_TOPOLOGY", value, "use one decimal digit per pipeline stage, as 0 or 0011")
    return value or None


def _file(env: Mapping[str, str], variable: str) -> Path | None:
    value = env.get(variable, "").strip()
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise _wrong(variable, value, "there is no such file; name one that this process can read")
    return path


def _folder(env: Mapping[str, str], variable: str, default: Path) -> Path:
    value = env.get(variable, "").strip()
    if not value:
        return default
    if not Path(value).is_dir():
        raise _wrong(variable, value, "there is no such folder; name the one where sysfs is mounted, as /sys")
    return Path(value)


def _socket(env: Mapping[str, str], variable: str) -> Path | None:
    value = env.get(variable, "").strip()
    if value and len(os.fsencode(value)) > SOCKET_BYTES_MAX:
        raise _wrong(
            variable, value, f"a socket's path has at most {SOCKET_BYTES_MAX} bytes; use a shorter one"
        )
    return Path(value) if value else None


def _new_folder(env: Mapping[str, str], variable: str) -> Path | None:
    value = env.get(variable, "").strip()
    if not value:
        return None
    if Path(value).exists() and not Path(value).is_dir():
        raise _wrong(variable, value, "this is no folder; name one, which is made where it is missing")
    return Path(value)


def _host_port(env: Mapping[str, str], variable: str) -> str | None:
    value = env.get(variable, "").strip()
    if not value:
        return None
    host, _, port = value.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or not 1 <= int(port) <= 65_535:
        raise _wrong(variable, value, "use HOST:PORT, as 127.0.0.1:8800")
    return value
