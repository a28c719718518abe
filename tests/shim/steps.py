"""Steps of made-up programs, as the operation log has them.

`R`, `Q`: an operation of a ring; `m`, `k`: a message of a pair; `t`: an operation inside the host; each with
`!` if the program waits for it at once. `w3`: the program waits for the third-newest operation; `f`: it asks
for the newest one's future; `|`: its optimizer has made a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from opus_sdn.shim.operations import STEP, Operation, What

WHATS = {
    "R": What("allreduce", "dp-0", "mesh_dp", "dp", connection="dp-0"),
    "Q": What("all_gather_single", "ep-0", "mesh_ep", "ep", connection="ep-0"),
    "m": What("recv", "pp-0", "mesh_pp", "pp", connection="pp-0:0-1", source=0, destination=1),
    "k": What("send", "pp-0", "mesh_pp", "pp", connection="pp-0:1-2", source=1, destination=2),
    "t": What("allreduce", "tp-0", "mesh_tp", "tp"),
    "|": STEP,
}


class Clock:
    """Every moment is one later than the one before."""

    def __init__(self) -> None:
        self._moments: Iterator[int] = itertools.count(1)
        self.history: list[Operation] = []

    def run(self, program: str) -> list[Operation]:
        """The operations that these words add to the history."""
        begin = len(self.history)
        for word in program.split():
            if word[0] == "w":
                self.history[-int(word[1:])].wait_begin_ns = next(self._moments)
            elif word == "f":
                self.history[-1].has_future = True
            else:
                operation = Operation()
                operation.number, operation.what, operation.bytes = len(self.history), WHATS[word[0]], 8
                operation.called_ns = next(self._moments)
                self.history.append(operation)
                if word.endswith("!"):
                    operation.wait_begin_ns = next(self._moments)
        return self.history[begin:]


def history(program: str) -> list[Operation]:
    """A whole program."""
    return Clock().run(program)
