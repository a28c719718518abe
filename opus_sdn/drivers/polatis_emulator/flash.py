"""What survives a loss of power: in memory for one emulator's life, in a file for longer."""

from __future__ import annotations

import json
import os
from collections import deque
from pathlib import Path

from pydantic import Field, ValidationError

from opus_sdn.drivers.polatis_emulator.spec import EmulatorSpec, PortNumber, StartupMode, Strict

TABLES_KEPT = 8


class FlashError(ValueError):
    """The state file cannot be used; the message names it and says what would be right."""


class _Document(Strict):
    """The state file."""

    size: str
    table: list[tuple[PortNumber, PortNumber]] = Field(max_length=4096)
    startup_mode: StartupMode
    labels: dict[PortNumber, str] = Field(default_factory=dict)
    peers: dict[PortNumber, str] = Field(default_factory=dict)
    disabled: list[PortNumber] = Field(default_factory=list)


class Flash:
    """The saved configuration. `table` is the newest saved one, `older` those before it, oldest first."""

    def __init__(self, spec: EmulatorSpec, path: Path | None = None) -> None:
        self.table: dict[int, int] = {min(pair): max(pair) for pair in spec.initial}
        self.older: deque[dict[int, int]] = deque(maxlen=TABLES_KEPT)
        self.startup_mode = spec.startup_mode
        self.labels: dict[int, str] = {}
        self.peers: dict[int, str] = {}
        self.disabled: frozenset[int] = frozenset()
        self._size = spec.size_text
        self._path = path
        if path is not None and path.exists():
            self._load(path)

    def save_table(self, table: dict[int, int]) -> None:
        """Keep this table; whether it ever comes back is for the mode to say then."""
        if table != self.table:
            self.older.append(self.table)
            self.table = dict(table)
        self.save()

    def save(self) -> None:
        """Write the file, if there is one, whole or not at all."""
        if self._path is None:
            return
        document = _Document(
            size=self._size,
            table=list(self.table.items()),
            startup_mode=self.startup_mode,
            labels=self.labels,
            peers=self.peers,
            disabled=sorted(self.disabled),
        )
        beside = self._path.with_name(self._path.name + ".new")
        beside.write_text(json.dumps(document.model_dump(mode="json")), encoding="utf-8")
        os.replace(beside, self._path)  # noqa: PTH105 - says what it does: one atomic act

    def restored(self) -> dict[int, int]:
        """The table after a loss of power."""
        return dict(self.table) if self.startup_mode is StartupMode.PRESERVE else {}

    def _load(self, path: Path) -> None:
        try:
            document = _Document.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise FlashError(
                f"state file {path} cannot be read ({str(error).splitlines()[0]}); "
                "name a file that the emulator wrote, or one that does not exist"
            ) from None
        if document.size != self._size:
            raise FlashError(
                f"state file {path} is of a switch of size {document.size}, this one is {self._size}; "
                "name another file"
            )
        self.startup_mode = document.startup_mode
        self.table = dict(document.table)
        self.table = self.restored()
        self.labels, self.peers = dict(document.labels), dict(document.peers)
        self.disabled = frozenset(document.disabled)
