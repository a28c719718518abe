"""The links of a fabric whose circuits are made when needed."""

from __future__ import annotations

from opus_sdn.whatif.errors import InputError
from opus_sdn.whatif.inputs.schedules import Schedules


class Network:
    """The union of a fabric's topologies: every link has the bandwidth that it has in its best topology."""

    def __init__(self, schedules: Schedules) -> None:
        self._rows = schedules.collapsed().topologies[0]

    def bandwidth(self, source: int, destination: int) -> float:
        """GB/s (of 2^30 bytes) of a link when it is up. InputError for one that no topology has."""
        found = self._rows[source][destination]
        if found <= 0:
            why = f"ranks {source} and {destination} exchange data, but no topology joins them"
            raise InputError(why, file="schedules", field=f"row {source} column {destination}", value=found)
        return found
