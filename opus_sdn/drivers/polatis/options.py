"""The options of a Polatis in the fabric file, checked before anything is sent. They hold no secrets."""

from __future__ import annotations

import base64
import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from opus_sdn.drivers.base import SwitchConfigError
from opus_sdn.intent.fabric import Switch

SECRET_MAX_BYTES = 4096
DEFAULT_CREDENTIALS = ("admin", "root")

TcpPort = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=600)]


class PolatisOptions(BaseModel):
    """How to reach one Polatis. Times in seconds, power in dBm.

    `password_env` and `password_file` name where the secret is; the fabric file itself never holds one, as it
    is stored and shown. `settle_s`: how long after a change the table is read once more, for somebody may
    undo it; 0 = never. `light_threshold_dbm`: below it a monitored port counts as dark. `tls`: RESTCONF over
    HTTPS, and then `auto` is RESTCONF only, as TL1 would carry the password in clear.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    host: str = Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9._:%\[\]-]+$")
    transport: Literal["auto", "restconf", "tl1"] = "auto"
    restconf_port: TcpPort = 8008
    tl1_port: TcpPort = 3082
    tls: bool = False
    ca_file: str | None = None
    user: str = Field("admin", min_length=1, max_length=64)
    password_env: str | None = None
    password_file: str | None = None
    connect_timeout_s: Seconds = 3.0
    timeout_s: Seconds = 4.0
    readback_s: Seconds = 2.0
    settle_s: Annotated[float, Field(ge=0, le=600)] = 3.0
    verify_light: bool = True
    light_s: Seconds = 1.0
    light_threshold_dbm: Annotated[float, Field(ge=-60, le=28)] = -40.0

    @property
    def bare_host(self) -> str:
        """The host without the brackets of an IPv6 literal."""
        return self.host.removeprefix("[").removesuffix("]")

    @classmethod
    def of(cls, switch: Switch) -> PolatisOptions:
        """Read the options of one switch; SwitchConfigError names the option, the value and what is right."""
        given = dict(switch.options)
        if "password" in given:
            raise SwitchConfigError(
                f"switch {switch.name}: option password is not taken, as the fabric file is stored and "
                "shown; use password_file (path of a file with it) or password_env (name of a variable)"
            )
        try:
            options = cls.model_validate(_numbers_as_written(given))
        except ValidationError as error:
            raise SwitchConfigError(_said(switch.name, error)) from None
        if (options.password_env is None) == (options.password_file is None):
            raise SwitchConfigError(
                f"switch {switch.name}: options password_env and password_file: "
                f"{'neither' if options.password_env is None else 'both'} given; give exactly one"
            )
        if options.ca_file is not None and not options.tls:
            raise SwitchConfigError(f"switch {switch.name}: option ca_file is given without tls: true")
        if options.tls and options.transport == "tl1":
            raise SwitchConfigError(
                f"switch {switch.name}: option tls is true with transport: tl1, which has no TLS; "
                "use transport: restconf, or leave tls out"
            )
        return options


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are to the device. Never shown: `repr` leaves the password out."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, ...)"

    def hidden(self, text: str) -> str:
        """What a device said, without the secret in it: some repeat what they were sent."""
        basic = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return text.replace(basic, "...").replace(self.password, "...")

    @property
    def are_default(self) -> bool:
        """Whether these are the ones that the device is delivered with."""
        return (self.user, self.password) == DEFAULT_CREDENTIALS


def credentials_of(switch: str, options: PolatisOptions) -> Credentials:
    """Fetch the secret from where the options say it is. Raises SwitchConfigError when it is not there."""
    if options.password_env is not None:
        secret = os.environ.get(options.password_env)
        if not secret:
            raise SwitchConfigError(
                f"switch {switch}: option password_env names {options.password_env}, which is not set; "
                "set it to the password"
            )
    else:
        secret = _secret_in(switch, Path(str(options.password_file)))
    if not secret.isprintable():
        raise SwitchConfigError(f"switch {switch}: the password has characters that cannot be sent")
    return Credentials(options.user, secret)


def _secret_in(switch: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise SwitchConfigError(
            f"switch {switch}: option password_file is {str(path)!r}, which cannot be read ({why})"
        ) from None
    secret = secret.rstrip("\r\n")
    if not secret:
        raise SwitchConfigError(
            f"switch {switch}: option password_file is {str(path)!r}, which is empty; "
            "write the password there"
        )
    return secret


def _numbers_as_written(given: dict[str, object]) -> dict[str, object]:
    """Whole numbers where decimals are meant: `settle_s: 3` is as good as 3.0."""
    decimals = {name for name, field in PolatisOptions.model_fields.items() if field.annotation is float}
    return {
        name: float(value) if name in decimals and type(value) is int else value
        for name, value in given.items()
    }


def _said(switch: str, error: ValidationError) -> str:
    """The first fault in one sentence."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        known = list(PolatisOptions.model_fields)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        return (
            f"switch {switch}: option {name!r} is unknown to the polatis driver{hint}; "
            f"known: {', '.join(known)}"
        )
    if first["type"] == "missing":
        return f"switch {switch}: option {name} is missing; give the name or address of the device"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"switch {switch}: option {name} is {first['input']!r}: {message}"
