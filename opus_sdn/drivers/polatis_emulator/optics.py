"""The optical module: where each port points, which ports carry light, how long each was dark.

It knows neither protocols nor users. A port is dark from the moment its optics begin to move until they
stand, while it or its partner is shut or has failed, and while nothing is joined to it.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from opus_sdn.drivers.polatis_emulator.spec import EmulatorSpec, Monitors

DARK_DBM = -60.0
MOMENTS_KEPT = 1024
VOA_MAXIMUM_DB = 30.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A time without light, in seconds of the emulator's clock. `end` None: dark still."""

    begin: float
    end: float | None


class LightLog:
    """Every moment at which a port gained or lost its light; the newest `MOMENTS_KEPT` of each port."""

    def __init__(self, ports: Iterable[int], clock: Callable[[], float]) -> None:
        self._clock = clock
        now = clock()
        self._moments: dict[int, deque[tuple[float, bool]]] = {
            port: deque([(now, False)], maxlen=MOMENTS_KEPT) for port in ports
        }

    def note(self, port: int, *, lit: bool) -> bool:
        """Record the state of a port; whether it is news."""
        moments = self._moments[port]
        if moments[-1][1] is lit:
            return False
        moments.append((self._clock(), lit))
        return True

    def dark(self, port: int, since: float = float("-inf")) -> tuple[Interval, ...]:
        """The times without light that had not ended by `since`, oldest first."""
        moments = list(self._moments[port])
        found = []
        for (begin, lit), after in zip(moments, [*moments[1:], None], strict=True):
            end = after[0] if after is not None else None
            if not lit and (end is None or end > since):
                found.append(Interval(begin, end))
        return tuple(found)

    def dark_ms(self, port: int, since: float) -> float:
        """For how many milliseconds the port was dark from `since` until now."""
        now = self._clock()
        return (
            sum(
                (now if gap.end is None else gap.end) - max(gap.begin, since)
                for gap in self.dark(port, since)
            )
            * 1e3
        )


@dataclass(frozen=True, slots=True)
class Attenuation:
    """What a port's variable attenuator is set to; `level` in dBm, or dB for relative and fixed."""

    mode: str = "NONE"
    level: float = 0.0
    reference: int = 0


class Optics:
    """Mirrors, shutters and detectors. `listeners` are called with the ports whose light came or went."""

    def __init__(self, spec: EmulatorSpec, clock: Callable[[], float]) -> None:
        self.ports = spec.layout.ports
        self.log = LightLog(self.ports, clock)
        self.listeners: list[Callable[[Collection[int]], None]] = []
        self.failed: frozenset[int] = frozenset()
        self.disabled: frozenset[int] = frozenset()
        self.source_dbm: Mapping[int, float] = {}
        self.extra_loss_db: Mapping[int, float] = {}
        self.attenuation: dict[int, Attenuation] = {}
        self.offset_db: dict[int, float] = {}
        self._spec = spec
        self._layout = spec.layout
        self._peer: dict[int, int] = {}
        self._moving: dict[int, int] = {}  # port -> number of its newest motion
        self._motions = 0

    @property
    def moving(self) -> frozenset[int]:
        """Ports whose optics are on their way."""
        return frozenset(self._moving)

    def point(self, table: Mapping[int, int], moved: Collection[int]) -> int:
        """Begin to move these ports to where the table says; returns the number of the motion."""
        self._motions += 1
        self._peer = {a: b for pair in table.items() for a, b in (pair, pair[::-1])}
        for port in moved:
            self._moving[port] = self._motions
        self.refresh(moved)
        return self._motions

    def stand(self, ports: Collection[int], motion: int) -> None:
        """These ports have arrived, unless another motion has begun since."""
        arrived = [port for port in ports if self._moving.get(port) == motion]
        for port in arrived:
            del self._moving[port]
        self.refresh(arrived)

    def refresh(self, ports: Iterable[int]) -> None:
        """Write down what became of the light of these ports and their partners."""
        touched = set(ports)
        touched |= {self._peer[port] for port in touched if port in self._peer}
        news = [port for port in sorted(touched) if self.log.note(port, lit=self.is_lit(port))]
        if news:
            self.tell(news)

    def tell(self, ports: Collection[int]) -> None:
        """Have everybody look at these ports, whose light may be another one."""
        for listen in self.listeners:
            listen(ports)

    def peer(self, port: int) -> int | None:
        """Where a port points or is moving to."""
        return self._peer.get(port)

    def is_lit(self, port: int) -> bool:
        """Whether light passes through this port now."""
        peer = self._peer.get(port)
        return peer is not None and self._passes(port) and self._passes(peer)

    def measures(self, port: int) -> bool:
        """Whether a detector sits at this port."""
        monitored = self._spec.monitored
        return monitored is Monitors.ALL or (
            monitored is Monitors.EGRESS and port in self._layout.egress_ports
        )

    def power_dbm(self, port: int) -> float:
        """What a detector at this port reads: light coming out, or at an ingress port light going in."""
        if port not in self._layout.egress_ports:
            return self._read(port, self._source(port))
        peer = self._peer.get(port)
        if peer is None or not self.is_lit(port):
            return DARK_DBM
        passed = self._source(peer) - self._loss_db(port, peer)
        return self._read(port, self._attenuate(port, peer, passed))

    def _passes(self, port: int) -> bool:
        return port not in self._moving and port not in self.disabled and port not in self.failed

    def _source(self, port: int) -> float:
        return self.source_dbm.get(port, self._spec.source_dbm)

    def _loss_db(self, port: int, peer: int) -> float:
        # A path's loss is its own and stays the same, as that of a real one does.
        low, high = min(port, peer), max(port, peer)
        chance = zlib.crc32(f"{self._spec.serial}:{low}:{high}".encode()) / 2**32
        spread = self._spec.loss_spread_db * (2 * chance - 1)
        extra = self.extra_loss_db.get(port, 0.0) + self.extra_loss_db.get(peer, 0.0)
        return max(0.0, self._spec.loss_db + spread) + extra

    def _attenuate(self, port: int, peer: int, power: float) -> float:
        voa = self.attenuation.get(port, Attenuation())
        match voa.mode:
            case "ABSOLUTE" | "CONVERGED":
                return min(power, voa.level)
            case "RELATIVE":
                return min(power, self._source(voa.reference or peer) + voa.level)
            case "FIXED":
                return power - abs(voa.level)
            case "MAXIMUM":
                return power - VOA_MAXIMUM_DB
        return power

    def _read(self, port: int, power: float) -> float:
        return round(max(DARK_DBM, power + self.offset_db.get(port, 0.0)), 2)
