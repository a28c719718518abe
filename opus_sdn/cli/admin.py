"""`opus db`, `opus config`, `opus openapi`, `opus version`: what needs no running controller."""

from __future__ import annotations

import os
import platform
import tomllib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from opus_sdn import __version__
from opus_sdn.cli.exits import CliError, ExitCode
from opus_sdn.cli.output import Format, columns, message, print_json, print_table
from opus_sdn.settings import ENV_PREFIX, Settings, SettingsError, load_settings

HIDDEN = "***"

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file with the controller's settings.")
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database", metavar="URL", help="Database, as sqlite:///opus.db or postgresql://opus@db/opus."
    ),
]
FormatOption = Annotated[Format, typer.Option("-o", "--output", help="How to write the result.")]

database_app = typer.Typer(help="The controller's database.", no_args_is_help=True)
config_app = typer.Typer(help="The controller's settings.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.add_typer(database_app, name="db")
    app.add_typer(config_app, name="config")
    app.command()(openapi)
    app.command()(version)


def settings_of(config: Path | None, **flags: Any) -> Settings:
    """The settings; CliError `usage` with a line for each that cannot be used."""
    try:
        return load_settings(config, **flags)
    except SettingsError as wrong:
        raise CliError(str(wrong), ExitCode.USAGE) from None


@database_app.command()
def upgrade(config: ConfigOption = None, database: DatabaseOption = None) -> None:
    """Bring the database, new or old, to the schema that this program needs."""
    from opus_sdn.store import migrate
    from opus_sdn.store.base import StoreError

    url = settings_of(config, database=database).database
    try:
        before = migrate.current(url)
        migrate.upgrade(url)
        after = migrate.current(url)
    except StoreError as failed:
        raise CliError(str(failed)) from None
    if before == after:
        message(f"{redacted(url)}: is at revision {after}; nothing to do")
    else:
        message(
            f"{redacted(url)}: from {f'revision {before}' if before else 'no tables'} to revision {after}"
        )


@database_app.command()
def check(
    config: ConfigOption = None, database: DatabaseOption = None, form: FormatOption = Format.TABLE
) -> None:
    """Say whether the database has the schema that this program needs; exit code 1 when not."""
    from opus_sdn.store import migrate
    from opus_sdn.store.base import StoreError

    url = settings_of(config, database=database).database
    try:
        wrong = migrate.check(url)
        found, needed = (migrate.current(url) if wrong is None else None), migrate.head()
    except StoreError as failed:
        raise CliError(str(failed)) from None
    if form is Format.JSON:
        print_json({"database": redacted(url), "ok": wrong is None, "needed": needed, "problem": wrong})
    if wrong is not None:
        raise CliError(wrong)
    if form is Format.TABLE:
        message(f"{redacted(url)}: in order, revision {found}")


@database_app.command()
def downgrade(
    revision: Annotated[
        str, typer.Argument(metavar="REVISION", help="As `0001`; `base` removes all tables.")
    ],
    config: ConfigOption = None,
    database: DatabaseOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Yes, what the older schema cannot hold is lost.")
    ] = False,
) -> None:
    """Take the database back to the schema of an older program. Stop every controller first."""
    from opus_sdn.store import migrate
    from opus_sdn.store.base import StoreError

    url = settings_of(config, database=database).database
    if revision not in (*migrate.revisions(), "base"):
        known = ", ".join((*migrate.revisions(), "base"))
        raise CliError(f"REVISION: is {revision!r}; use one of {known}", ExitCode.USAGE)
    if not yes:
        raise CliError(
            f"{redacted(url)}: what the schema of {revision} cannot hold would be lost; say --yes",
            ExitCode.USAGE,
        )
    try:
        before = migrate.current(url)
        migrate.downgrade(url, revision)
    except StoreError as failed:
        raise CliError(str(failed)) from None
    message(f"{redacted(url)}: from revision {before} to {revision}")


@config_app.command()
def show(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="As of `opus serve`.")] = None,
    port: Annotated[int | None, typer.Option(help="As of `opus serve`.")] = None,
    database: DatabaseOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Show every setting with its value and where that comes from; secrets are not shown."""
    flags = {"host": host, "port": port, "database": database}
    settings = settings_of(config, **flags)
    in_file = tomllib.loads(config.read_text(encoding="utf-8")) if config is not None else {}
    in_environment = {key.upper() for key in os.environ}
    rows = []
    for name, field in Settings.model_fields.items():
        variable = ENV_PREFIX + name.upper()
        if flags.get(name) is not None:
            origin = f"--{name.replace('_', '-')}"
        elif variable in in_environment:
            origin = variable
        else:
            origin = str(config) if name in in_file else "default"
        value = getattr(settings, name)
        if name == "database":
            value = redacted(value)
        shown = value if isinstance(value, bool | int | float | None) else str(value)
        rows.append({"name": name, "value": shown, "origin": origin, "meaning": field.description})
    if form is Format.JSON:
        print_json({"settings": rows})
    else:
        print_table(rows, columns(name="name", value="value", origin="origin", meaning="meaning"))


def redacted(url: str) -> str:
    """A database address without what may be secret: the password, and the values of parameters."""
    parts = urlsplit(url)
    place = parts.netloc
    if "@" in place:
        user, _, host = place.rpartition("@")
        name, colon, _ = user.partition(":")
        place = f"{name}{colon}{HIDDEN if colon else ''}@{host}"
    query = "&".join(f"{pair.partition('=')[0]}={HIDDEN}" for pair in parts.query.split("&") if pair)
    return f"{parts.scheme}://{place}{parts.path}{f'?{query}' if query else ''}"


def openapi() -> None:
    """Print the OpenAPI document of this program's API."""
    from opus_sdn.api.openapi import document

    print_json(document())


def version(form: FormatOption = Format.TABLE) -> None:
    """Print the versions of this program and of what it runs on."""
    facts = {"opus": __version__, "python": platform.python_version(), "platform": platform.platform()}
    if form is Format.JSON:
        print_json(facts)
    else:
        print_table([facts], columns(opus="opus", python="python", platform="platform"))
