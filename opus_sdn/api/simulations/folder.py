"""Files of the controller's machine that simulations may read: those below one configured folder."""

from __future__ import annotations

from pathlib import Path

from opus_sdn.intent.errors import CoreError, Problem


def locate(folder: Path | None, path: str, field: str) -> Path:
    """The file, folder or prefix at `path` below `folder`, with all links followed.

    Raises CoreError where there is no such folder, and where the path, a link, or a trace in the folder or of
    the prefix leads out of it. What is not there is found out when it is read.
    """
    if folder is None:
        why = (
            "this controller has no traces_dir (OPUS_SDN_TRACES_DIR), so it reads no files: send the content"
        )
        raise _refused(field, path, why)
    try:
        root = folder.resolve()
        found = (root / path).resolve()
        traces = found.glob("*.et") if found.is_dir() else found.parent.glob(_literal(found.name) + ".*.et")
        inside = found.is_relative_to(root) and all(each.resolve().is_relative_to(root) for each in traces)
    except (OSError, RuntimeError, ValueError) as error:  # too long, a circle of links, a zero byte
        raise _refused(field, path, f"it is no path: {error}") from None
    if not inside:
        raise _refused(field, path, "it leads out of the folder of traces; use a path below it")
    return found


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _refused(field: str, path: str, why: str) -> CoreError:
    return CoreError(Problem.INVALID_REQUEST, f"{field}.path is {path!r}: {why}", field=f"{field}.path")
