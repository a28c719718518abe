"""A real PostgreSQL server for tests: in a folder of its own, on a unix socket, without a port."""

from __future__ import annotations

import ctypes
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

PATIENCE_S = 60.0
PR_SET_PDEATHSIG = 1
MISSING = (
    "PostgreSQL's programs (initdb, postgres) are not found: install PostgreSQL 15 or newer, as with "
    "`apt-get install postgresql`, or name their folder in OPUS_TEST_POSTGRES_BIN. `make test POSTGRES=no` "
    "leaves out what needs them"
)


def binaries() -> Path | None:
    """The folder of the newest PostgreSQL programs of this machine, None when there are none."""
    named = os.environ.get("OPUS_TEST_POSTGRES_BIN")
    found = [Path(named)] if named else []
    in_path = shutil.which("initdb")
    found += [Path(in_path).parent] if in_path else []
    for pattern in ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin"):
        found += sorted(Path("/").glob(pattern[1:]), key=_version, reverse=True)
    return next((folder for folder in found if (folder / "initdb").exists()), None)


def _version(folder: Path) -> int:
    digits = "".join(filter(str.isdigit, str(folder)))
    return int(digits or 0)


class PostgresServer:
    """One server with user `opus`. Ended and started anew at will; `remove` ends it and forgets its data."""

    def __init__(self, *, fsync: bool = False) -> None:
        found = binaries()
        assert found is not None, MISSING
        self._bin = found
        # The server refuses to run as root: then as the user its package has made, else as nobody.
        self._user = _unprivileged() if os.geteuid() == 0 else None
        # Not pytest's folder: a socket's path may have 107 characters only.
        self.folder = Path(tempfile.mkdtemp(prefix="opus-pg-"))
        self._data = self.folder / "data"
        self._names = itertools.count(1)
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self._run("initdb", "-D", self._data, "-U", "opus", "-A", "trust", "-E", "UTF8", "--no-locale", "-N")
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.write(f"listen_addresses = ''\nunix_socket_directories = '{self.folder}'\n")
            conf.write(f"fsync = {'on' if fsync else 'off'}\nmax_connections = 200\nshared_buffers = 32MB\n")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, database: str) -> str:
        """The address of one of its databases."""
        return f"postgresql://opus@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start it, also after it was killed; returns when it answers."""
        log = (self.folder / "log").open("ab")
        command = [str(self._bin / "postgres"), "-D", str(self._data)]
        # A group of its own: Ctrl-C is for the tests, which end it.
        self._process = subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            user=self._user,
            start_new_session=True,
            cwd=self.folder,
            preexec_fn=_end_with_the_tests,  # noqa: PLW1509  # one call, no locks
        )
        log.close()
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                psycopg.connect(self._dsn("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < give_up_at, "PostgreSQL does not answer"
                time.sleep(0.02)

    def stop(self, how: int = signal.SIGQUIT) -> None:
        """End it: SIGQUIT at once, as after a crash; SIGINT in order; SIGKILL all of its processes."""
        assert self._process is not None
        if how == signal.SIGKILL:
            for child in self._children():
                _kill(child)
        self._process.send_signal(how)
        self._process.wait(PATIENCE_S)
        if how == signal.SIGKILL:
            (self._data / "postmaster.pid").unlink(missing_ok=True)

    def answers(self) -> bool:
        """Whether it runs and takes connections."""
        try:
            psycopg.connect(self._dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def create(self, template: str = "template0") -> str:
        """A new database, as a copy of another; its address."""
        name = f"opus_{next(self._names)}"
        self.execute("postgres", f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def execute(self, database: str, statement: str) -> None:
        """One statement, committed."""
        with psycopg.connect(self._dsn(database), autocommit=True) as connection:
            connection.execute(statement)

    def remove(self) -> None:
        """End it and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _dsn(self, database: str) -> str:
        return f"host={self.folder} user=opus dbname={database} connect_timeout=5"

    def _children(self) -> list[int]:
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(child) for child in path.read_text().split()]

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._bin / program), *map(str, arguments)]
        done = subprocess.run(command, user=self._user, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def _unprivileged() -> str:
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def _end_with_the_tests() -> None:
    """In the server's process: tests that are killed leave no server behind."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    if sys.argv[1:] == ["why"]:
        sys.exit(MISSING)
    sys.exit(binaries() is None)
