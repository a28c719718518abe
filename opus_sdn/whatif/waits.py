"""Who waits for whom, and the circle in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opus_sdn.whatif.errors import Wait

SHOWN_MAX = 64  # waits in one message


def circle(waits: Mapping[int, Sequence[Wait]]) -> tuple[Wait, ...]:
    """A circle among the waits of each rank; where there is none, a chain to where nothing can move."""
    done: set[int] = set()
    longest: list[Wait] = []
    for start in waits:
        path: list[Wait] = []
        walked = [start]
        branches = [] if start in done else [iter(waits[start])]
        while branches:
            wait = next(branches[-1], None)
            if wait is None:
                branches.pop()
                done.add(walked.pop())
                del path[-1:]
                continue
            whom = wait.waits_for
            if whom in walked:
                return tuple([*path, wait][walked.index(whom) :][:SHOWN_MAX])
            if whom is None or whom not in waits:
                longest = max(longest, [*path, wait], key=len)
            elif whom not in done:
                path.append(wait)
                walked.append(whom)
                branches.append(iter(waits[whom]))
    return tuple(longest[:SHOWN_MAX])
