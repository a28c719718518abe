"""Exclusive use of a database by one process, across all processes of this machine.

The lock is `flock` on a file beside the database: the kernel drops it when its holder dies, however it dies,
so it is never stale. The file itself stays and must not be deleted while the holder lives.

`flock` belongs to the *open file*, which a forked child shares: a child that lived on would keep the lock
after its parent has died, and one that unlocked would take it from its parent. So a child closes its copy
right after the fork and does not unlock: closing one of two copies leaves the lock with the other. A child
that executes another program loses the copy by close-on-exec. (A fork that bypasses Python keeps the copy
until it ends.)
"""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path

from opus_sdn.store.base import StoreError

_held: weakref.WeakSet[ExclusiveLock] = weakref.WeakSet()


class ExclusiveLock:
    """Holds `<database>.lock` from construction to `release`. StoreError naming the holder when taken."""

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".lock")
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as failed:
            raise StoreError(
                f"lock file {self.path} cannot be opened: {failed.strerror}; "
                "the database needs an existing folder that this user may write to"
            ) from failed
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as failed:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if not isinstance(failed, BlockingIOError):
                raise StoreError(
                    f"lock file {self.path} cannot be locked: {failed.strerror}; use a local file system"
                ) from failed
            raise StoreError(
                f"database {database} is in use by process {holder or 'unknown'}: one process at a time may "
                "have it; stop that one first, or name another database"
            ) from failed
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as failed:
            os.close(descriptor)
            raise StoreError(
                f"lock file {self.path} cannot be written: {failed.strerror}; "
                "the database needs a disk with free space that this user may write to"
            ) from failed
        self._descriptor: int | None = descriptor
        _held.add(self)

    @property
    def held(self) -> bool:
        """False after `release`, and in a forked child."""
        return self._descriptor is not None

    def release(self) -> None:
        """Let the next process have the database; once is enough."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
