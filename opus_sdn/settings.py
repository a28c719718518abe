"""What can be set about a controller, from where, and which values are refused.

A flag beats an `OPUS_SDN_*` variable, that beats the TOML file, that beats the default. Everything is checked
when the process starts, so that a wrong value is a message at the prompt and never a surprise under load.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

ENV_PREFIX = "OPUS_SDN_"
DATABASES = ("sqlite:///", "sqlite+pysqlite:///", "postgresql://", "postgresql+psycopg://")
KIB = 1024
MIB = 1024 * 1024


class SettingsError(Exception):
    """Settings that cannot be used; one line per fault: where it was set, the value, what would be right."""


def _refuse_bool(value: object) -> object:
    """Refuse `true` for a number: pydantic would read 1, and a port or lease of 1 is nobody's wish."""
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}, which is not a number")
    return value


Count = Annotated[int, BeforeValidator(_refuse_bool)]
Seconds = Annotated[float, BeforeValidator(_refuse_bool), Field(gt=0, le=86_400, allow_inf_nan=False)]


class Settings(BaseSettings):
    """The controller's settings, immutable; `load_settings` reads them with errors meant for people."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        validate_default=True,
    )

    host: str = Field(
        "127.0.0.1", description="Address to listen on: loopback only, as there are no tokens yet"
    )
    port: Count = Field(8700, ge=0, le=65_535, description="TCP port to listen on; 0 takes a free one")
    database: str = Field(
        "sqlite:///opus.db",
        description="Where state is kept: sqlite:///PATH or postgresql://USER@HOST/DATABASE",
        repr=False,
    )
    fabric_file: Path | None = Field(None, description="Fabric to load at the start when none is stored yet")
    runs_dir: Path = Field(Path("runs"), description="Folder of the per-job logs and event streams")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log level written"
    )

    lease_s: Seconds = Field(
        30.0, description="Silence of a rank, in seconds, after which its locks may be reclaimed"
    )
    fence_s: Seconds = Field(
        15.0, description="Seconds without an answer after which a rank stops its own device work"
    )
    abort_s: Seconds = Field(5.0, description="Seconds that stopping unfinished device work may take")
    step_deadline_s: Seconds = Field(
        5.0, description="Seconds after which a switch's unanswered step is ambiguous"
    )
    observe_s: Seconds = Field(
        30.0, description="Seconds between two readings of a switch on which nothing happens"
    )
    install_s: Seconds = Field(
        10.0, description="Seconds after which what waits for a switch counts as stalled"
    )
    light_s: Seconds = Field(10.0, description="The same for circuits that are connected and pass no light")
    carrier_s: Seconds = Field(
        60.0, description="The same for circuits with light, on rails whose grants wait for the NICs' links"
    )
    run_length_max: Count = Field(
        4096, ge=1, le=1_000_000, description="Most operations of a connection that are granted as one run"
    )
    overtake_max: Count = Field(
        8, ge=0, le=10_000, description="How often others may overtake one waiting intent"
    )
    overtake_ms: Count = Field(250, ge=0, le=600_000, description="For how many milliseconds they may do so")
    ring_patience_ms: Count = Field(
        0,
        ge=0,
        le=600_000,
        description="For how many milliseconds a collective without a waiting host leaves ports to messages",
    )
    wait_s_max: Seconds = Field(60.0, description="Longest wait, in seconds, that one long poll may ask for")

    events_kept_max: Count = Field(
        1_000_000, ge=1, le=1_000_000_000, description="Most events kept; the oldest go first"
    )
    events_kept_days: Count = Field(
        90, ge=1, le=36_500, description="Days after which events go even if there are few"
    )
    jobs_kept_max: Count = Field(
        10_000, ge=1, le=10_000_000, description="Most ended jobs kept; those that ended first go first"
    )
    steps_kept_max: Count = Field(
        10_000, ge=20, le=10_000_000, description="Most finished device steps kept; the oldest go first"
    )
    store_queue_max: Count = Field(
        16_384,
        ge=64,
        le=1_000_000,
        description="Most batches waiting for the disk; at half, requests get 503",
    )
    store_reconnect_s: Seconds = Field(
        10.0, description="Seconds that a lost database connection is tried again"
    )

    leader_ttl_s: Seconds = Field(
        3.0, description="Seconds after which a silent leader is replaced (PostgreSQL)"
    )
    advertise: str | None = Field(
        None, description="URL by which other replicas name this one; absent: where it listens"
    )

    rank_body_max_bytes: Count = Field(
        256 * KIB, ge=KIB, le=16 * MIB, description="Largest body on rank routes, bytes"
    )
    operator_body_max_bytes: Count = Field(
        32 * MIB, ge=KIB, le=256 * MIB, description="Largest body on fabric and job routes, bytes"
    )
    traces_dir: Path | None = Field(
        None, description="Folder below which simulations may read files; absent: files are sent along"
    )
    simulations_running_max: Count = Field(1, ge=1, le=64, description="Most simulations at a time")
    simulations_queued_max: Count = Field(16, ge=1, le=1000, description="Most simulations that wait")
    simulations_kept_max: Count = Field(
        32, ge=1, le=1000, description="Most ended simulations kept in memory; the oldest go first"
    )
    simulation_s_max: Seconds = Field(600.0, description="Seconds after which a simulation is ended")
    simulation_memory_max_bytes: Count = Field(
        2048 * MIB, ge=256 * MIB, le=1024 * 1024 * MIB, description="Memory of one simulation, bytes"
    )
    witness: bool = Field(
        False, description="Emulated switches record changes under traffic that clients report"
    )

    @field_validator("host")
    @classmethod
    def _loopback_only(cls, value: str) -> str:
        """Without tokens whoever reaches the port commands the switches: only this machine may reach it."""
        host = value.strip().removeprefix("[").removesuffix("]")
        if host.lower() == "localhost":
            return "localhost"
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise ValueError(
                f"is {value!r}, which is not a loopback address: the controller has no access tokens yet "
                "and answers this machine only; use 127.0.0.1, ::1 or localhost"
            )
        return host

    @field_validator("database")
    @classmethod
    def _known_database(cls, value: str) -> str:
        if not value.startswith(DATABASES):
            # The address may hold a password: of what was given, name its scheme at most.
            scheme, mark, _ = value.partition("://")
            given = f"starts with {scheme}://, which" if mark else "has no scheme, which"
            raise ValueError(
                f"{given} is not supported: use sqlite:///PATH, as sqlite:///opus.db, or "
                "postgresql://USER@HOST/DATABASE"
            )
        return value

    @property
    def replicated(self) -> bool:
        """Whether several processes may share the database."""
        return self.database.startswith("postgresql")

    @field_validator("advertise")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path not in {"", "/"}:
            raise ValueError(f"is {value!r}; use http://HOST:PORT, as http://127.0.0.1:8700")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _fail_over_is_faster_than_the_fence(self) -> Self:
        """A rank that is not answered for `fence_s` stops its work: by then another replica has to answer."""
        longest_s = 2 * self.leader_ttl_s + self.step_deadline_s
        if self.replicated and longest_s >= self.fence_s:
            raise ValueError(
                f"leader_ttl_s is {self.leader_ttl_s:g} and step_deadline_s {self.step_deadline_s:g}: a "
                f"fail-over may take 2 x leader_ttl_s + step_deadline_s = {longest_s:g} s, but ranks stop "
                f"after fence_s = {self.fence_s:g}; use a leader_ttl_s below "
                f"{(self.fence_s - self.step_deadline_s) / 2:g}"
            )
        return self

    @model_validator(mode="after")
    def _lease_outlasts_the_fence(self) -> Self:
        """A lock is taken from a silent rank only when that rank has surely stopped transmitting."""
        if self.lease_s <= self.fence_s + self.abort_s:
            raise ValueError(
                f"lease_s is {self.lease_s:g}, which is not more than fence_s + abort_s = "
                f"{self.fence_s:g} + {self.abort_s:g}: a rank could still transmit over circuits "
                f"whose lock is gone; use a lease_s above {self.fence_s + self.abort_s:g}"
            )
        return self


def load_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Read the settings from flags, the environment and the TOML file `config`, in this order of precedence.

    A flag that is `None` counts as not given. Raises `SettingsError` with one line for every fault.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    in_file = _read_toml(config) if config is not None else {}

    class FileSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            below = InitSettingsSource(settings_cls, in_file)
            return init_settings, env_settings, dotenv_settings, file_secret_settings, below

    try:
        return FileSettings(**given)
    except ValidationError as refused:
        lines = [_explain(error, given, config) for error in refused.errors(include_url=False)]
        raise SettingsError("\n".join(lines)) from None


def _read_toml(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as failed:
        raise SettingsError(
            f"{config}: cannot be read: {failed.strerror}; name an existing TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as failed:
        raise SettingsError(f"{config}: is not TOML: {failed}; write lines such as  port = 8700") from None


def _explain(error: Any, given: dict[str, Any], config: Path | None) -> str:
    """One line that says where the refused value was set, what it is and what would be right."""
    name = str(error["loc"][0]) if error["loc"] else ""
    variable = ENV_PREFIX + name.upper()
    if not name:
        origin = "settings"
    elif name in given:
        origin = f"--{name.replace('_', '-')}"
    elif any(key.upper() == variable for key in os.environ):
        origin = variable
    else:
        origin = f"{config}: {name}"
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(Settings.model_fields)}"
        return f"{origin}: unknown setting; {remedy}"
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
        return f"{origin}: {message}" if name else message
    given_value = "***" if name == "database" else repr(error["input"])  # it may hold a password
    return f"{origin}: is {given_value}: {error['msg'][0].lower()}{error['msg'][1:]}"
