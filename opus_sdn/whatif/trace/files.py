"""Where the files of a trace set come from: a prefix, a folder or an archive. One file is held at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from opus_sdn.whatif.errors import InputError

MAX_FILE_BYTES = 1 << 28  # 256 MiB a rank: two thousand times a large model's
MAX_RANKS = 65_536

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
            if path.stat().st_size > MAX_FILE_BYTES:
                raise InputError(f"a rank's trace may have {MAX_FILE_BYTES} bytes", file=path)
            content = path.read_bytes()
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
        with tarfile.open(where, "r:*") as archive:
            for member in archive:
                if not member.name.endswith(".et") or not member.isfile():
                    continue
                name = f"{where}({member.name})"
                rank = seen.rank_of(Path(member.name).name, name)
                if member.size > MAX_FILE_BYTES:
                    raise InputError(f"a rank's trace may have {MAX_FILE_BYTES} bytes", file=name)
                stream = archive.extractfile(member)
                assert stream is not None  # it is a file
                yield rank, name, stream.read()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=where) from None
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise InputError(f"no readable archive: {error}", file=where) from None
    seen.end()


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
