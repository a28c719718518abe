"""Where the files of a trace set come from: a prefix, a folder or an archive. One file is held at a time."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.network import MAX_RANKS

if TYPE_CHECKING:
    from gzip import GzipFile

MAX_FILE_BYTES = 1 << 28  # 256 MiB a rank: two thousand times a large model's
MAX_ARCHIVE_BYTES = 1 << 34  # unpacked
MAX_HEADER_BYTES = 1 << 16  # of one member
MAX_MEMBERS = 1 << 18

_RANK_FILE = re.compile(r"(?P<prefix>.*)\.(?P<rank>[0-9]{1,9})\.et")
_ARCHIVES = (".tar", ".tar.xz", ".txz", ".tar.gz", ".tgz", ".tar.bz2")

RankFile = tuple[int, str, bytes]


def rank_files(where: Path) -> Iterator[RankFile]:
    """Rank, name and content of each file `<prefix>.<rank>.et` of the set, in no particular order.

    `where` is a folder with one set, an archive with one, or the prefix itself. Raises InputError.
    """
    if where.is_dir():
        yield from _from_paths(where, list(where.glob("*.et")))
    elif where.name.endswith(_ARCHIVES):
        yield from _from_archive(where)
    else:
        named = [path for path in where.parent.glob("*.et") if path.name.startswith(where.name + ".")]
        yield from _from_paths(where, named)


def _from_paths(where: Path, paths: list[Path]) -> Iterator[RankFile]:
    seen = _Seen(where)
    for path in sorted(paths):
        rank = seen.rank_of(path.name, str(path))
        try:
            if not stat.S_ISREG(path.stat().st_mode):
                raise InputError("a rank's trace is a plain file", file=path)  # a pipe may never end
            with path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
            if len(content) > MAX_FILE_BYTES:
                raise InputError(f"a rank's trace may have {MAX_FILE_BYTES} bytes", file=path)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", file=path) from None
        yield rank, str(path), content
    seen.end()


def _from_archive(where: Path) -> Iterator[RankFile]:
    import lzma
    import tarfile
    import zlib

    seen = _Seen(where)
    try:
        with _unpacked(where) as unpacked:
            content = _Limited(unpacked, where)
            content.allow(MAX_HEADER_BYTES)
            with tarfile.open(fileobj=cast("IO[bytes]", content), mode="r:") as archive:
                for count, member in enumerate(archive):
                    archive.members = []  # type: ignore[attr-defined] # what it knows of each adds up
                    archive.pax_headers.clear()  # type: ignore[attr-defined]
                    if count >= MAX_MEMBERS:
                        raise InputError(f"an archive may have {MAX_MEMBERS} members", file=where)
                    if member.name.endswith(".et") and member.isfile():
                        name = f"{where}({member.name})"
                        rank = seen.rank_of(Path(member.name).name, name)
                        if not 0 <= member.size <= MAX_FILE_BYTES:
                            raise InputError(f"a rank's trace may have {MAX_FILE_BYTES} bytes", file=name)
                        stream = archive.extractfile(member)
                        assert stream is not None  # it is a file
                        content.allow(member.size)
                        yield rank, name, stream.read()
                    content.allow(MAX_HEADER_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=where) from None
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise InputError(f"no readable archive: {error}", file=where) from None
    seen.end()


def _unpacked(where: Path) -> IO[bytes] | GzipFile:
    """The archive without its compression, whatever the name says."""
    import bz2
    import gzip
    import lzma

    with where.open("rb") as file:
        begin = file.read(6)
    if begin == b"\xfd7zXZ\x00":
        return lzma.open(where)
    if begin.startswith(b"\x1f\x8b"):
        return gzip.open(where)
    return bz2.open(where) if begin.startswith(b"BZh") else where.open("rb")


class _Limited:
    """An unpacked archive of which no more is read than was allowed: headers are as long as they say."""

    def __init__(self, content: IO[bytes] | GzipFile, where: Path) -> None:
        self._content, self._where = content, where
        self._left = 0

    def allow(self, count: int) -> None:
        """So many bytes may be read from now on."""
        self._left = count

    def read(self, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            why = f"the headers of a member may have {MAX_HEADER_BYTES} bytes"
            raise InputError(why, file=self._where)
        return self._content.read(size)

    def tell(self) -> int:
        return self._content.tell()

    def seek(self, to: int) -> int:
        if to > MAX_ARCHIVE_BYTES:
            raise InputError(f"an archive may have {MAX_ARCHIVE_BYTES} bytes, unpacked", file=self._where)
        return self._content.seek(to)


class _Seen:
    """The ranks that were found: one set only, each rank once, none missing."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self._prefix: str | None = None
        self._ranks: set[int] = set()

    def rank_of(self, name: str, file: str) -> int:
        match = _RANK_FILE.fullmatch(name)
        if match is None:
            raise InputError("trace files are named <prefix>.<rank>.et", file=file)
        rank = int(match["rank"])
        if self._prefix is None:
            self._prefix = match["prefix"]
        elif self._prefix != match["prefix"]:
            why = f"two sets, {self._prefix!r} and {match['prefix']!r}: name one by its prefix"
            raise InputError(why, file=self._where)
        if rank in self._ranks:
            raise InputError(f"rank {rank} occurs twice", file=file)
        if rank >= MAX_RANKS:
            raise InputError(f"at most {MAX_RANKS} ranks are read", file=file)
        self._ranks.add(rank)
        return rank

    def end(self) -> None:
        if not self._ranks:
            raise InputError("no trace files <prefix>.<rank>.et", file=self._where)
        missing = set(range(max(self._ranks) + 1)) - self._ranks
        if missing:
            few = ", ".join(str(rank) for rank in sorted(missing)[:8])
            raise InputError(f"the trace of rank {few} is missing (ranks count from 0)", file=self._where)
