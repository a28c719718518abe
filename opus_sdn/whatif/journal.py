"""What a sweep has found already, a line for each point, so that an interrupted one can go on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from opus_sdn import __version__
from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.text import read_bytes

if TYPE_CHECKING:
    from opus_sdn.whatif.engine import Step
    from opus_sdn.whatif.inputs.schedules import Row, Schedules

MAX_BYTES = 1 << 30


class Journal:
    """The journal at `path`, as far as it is about this step on these schedules.

    `read` before it is entered; `add` within. A last line that was torn when its sweep was killed is cut off.
    Raises InputError.
    """

    def __init__(self, path: Path, step: Step, schedules: Schedules, files: Iterable[str] = ()) -> None:
        """`files` are named by options of the points; what is in them counts too."""
        self._path = path
        self._step = fingerprint(step, schedules, files)
        self._file: TextIO | None = None

    def read(self) -> dict[str, dict[str, Any]]:
        """The documents of the points of this step that are finished, by the points' keys."""
        found: dict[str, dict[str, Any]] = {}
        for number, line in enumerate(self._whole_lines(), start=1):
            try:
                entry = json.loads(line)
                step, point, result = entry["step"], entry["point"], entry["result"]
                fine = isinstance(point, str) and isinstance(result, dict) and "finish_ns" in result
            except (ValueError, KeyError, TypeError, RecursionError):
                fine = False
            if not fine:
                raise InputError("no journal of a sweep", file=self._path, field=f"line {number}") from None
            if step == self._step:
                found[point] = result
        return found

    def add(self, point: str, result: dict[str, Any]) -> None:
        """Write a finished point down at once."""
        assert self._file is not None
        self._file.write(json.dumps({"step": self._step, "point": point, "result": result}) + "\n")
        self._file.flush()

    def __enter__(self) -> Journal:
        try:
            whole = sum(len(line) + 1 for line in self._whole_lines())
            self._file = self._path.open("a", encoding="utf-8")
            self._file.truncate(whole)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror or error}", file=self._path) from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()

    def _whole_lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=self._path) from None
        if len(content) > MAX_BYTES:
            raise InputError(f"at most {MAX_BYTES} bytes are read", file=self._path)
        return content.split(b"\n")[:-1]


def fingerprint(step: Step, schedules: Schedules, files: Iterable[str] = ()) -> str:
    """What tells inputs, and versions of this package, from others: the same in other places is the same."""
    digest = sha256()

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode())

    trace = step.trace
    add(__version__, step.system, trace.groups, [read_bytes(Path(file)) for file in sorted(set(files))])
    numbers = {graph: number for number, graph in enumerate(trace.graphs)}
    for graph in trace.graphs:
        add(graph.ids, graph.operations, graph.indegree, graph.children)
    for rank in trace.ranks:
        add(numbers[rank.graph], rank.partners, rank.tags)
    rows: dict[int, int] = {}

    def number_of(row: Row) -> int:
        if id(row) not in rows:
            rows[id(row)] = len(rows)
            add(row)
        return rows[id(row)]

    for topology in schedules.topologies:
        add([number_of(row) for row in topology])
    return digest.hexdigest()[:32]
