"""Which device steps may be under way at their devices, in a small file beside the database.

A step is on the disk before its device is told. After a crash the store alone cannot say of a step without an
end whether its command was sent; one that was must be waited for. A word of eight bytes, written to the file
before the command leaves, says so: what a process has written outlives it, however it is killed. It does not
outlive the machine, and need not: then nothing is known, and all steps are waited for.

The file counts only for the boot of the machine in which it was written, and only for the start number right
before the one that reads it. So a file that was lost, copied, or left by another database says nothing.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from opus_sdn.store.base import StoreError

logger = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # another one whenever the machine starts
_MAGIC = b"opus-steps-1"
_HEAD = struct.Struct("<12s36sQ")  # what it is, boot, start number
_STEP = struct.Struct("<Q")  # one step, 0 for none
READ_MAX = 1 << 20  # a file of ours is far smaller


class StepsUnderWay:
    """The record of one start. Implements `UnderWay`; used by one thread."""

    def __init__(self, path: Path, start: int, unsettled: Iterable[int], boot: str) -> None:
        """Take over from the start before: of the unsettled steps those that it had sent, else all."""
        self._path = path
        sent = _sent_by(path, start - 1, boot)
        left = sorted(unsettled if sent is None else sent.intersection(unsettled))
        self._slots = {step: slot for slot, step in enumerate(left)}
        self._free: list[int] = []
        self._file: int | None = None
        try:
            self._file = _write_anew(path, _HEAD.pack(_MAGIC, boot.encode(), start), left)
        except OSError as failed:
            self._give_up(failed)

    def may_be(self, step: int) -> bool:
        """Whether the command of an unsettled step may have left and have an effect yet."""
        return step in self._slots

    def begin(self, step: int) -> None:
        """The command is about to leave."""
        slot = self._free.pop() if self._free else len(self._slots)
        self._slots[step] = slot
        self._write(slot, step)

    def end(self, step: int) -> None:
        """The command can have no effect any more: it was answered, or its time is over."""
        slot = self._slots.pop(step, None)
        if slot is not None:
            self._free.append(slot)
            self._write(slot, 0)

    def close(self) -> None:
        """Let go of the file; it stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, slot: int, step: int) -> None:
        if self._file is not None:
            try:
                os.pwrite(self._file, _STEP.pack(step), _HEAD.size + slot * _STEP.size)
            except OSError as failed:
                self._give_up(failed)

    def _give_up(self, failed: OSError) -> None:
        """A file that misses a step would lie: without one the next start waits for all."""
        logger.warning("sent steps are not recorded", extra={"file": str(self._path), "detail": str(failed)})
        try:
            self._path.unlink(missing_ok=True)
        except OSError as stays:
            raise StoreError(
                f"{self._path} can be neither written nor removed: {stays.strerror}; the database needs a "
                "folder that this user may write to"
            ) from failed
        self.close()


def boot_id() -> str | None:
    """Which boot of the machine this is; None where it does not say."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _write_anew(path: Path, head: bytes, steps: Iterable[int]) -> int:
    """Replace the file as a whole; the open descriptor of the new one."""
    made = path.with_name(path.name + ".new")
    file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, head + b"".join(map(_STEP.pack, steps)))
        made.replace(path)
    except OSError:
        os.close(file)
        raise
    return file


def _sent_by(path: Path, start: int, boot: str) -> frozenset[int] | None:
    """What the given start had under way; None when the file does not say."""
    try:
        with path.open("rb") as file:
            content = file.read(READ_MAX)
    except OSError:
        return None
    if len(content) < _HEAD.size or _HEAD.unpack_from(content) != (_MAGIC, boot.encode(), start):
        return None
    whole = len(content) - (len(content) - _HEAD.size) % _STEP.size
    return frozenset(step for (step,) in _STEP.iter_unpack(content[_HEAD.size : whole]) if step)
