"""How each fault of one moment is done to the world, and to which jobs it may rightly be the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from opus_sdn.intent.fabric import CrossConnect
from tests.sim.faults import Kind
from tests.sim.fleet import Question

if TYPE_CHECKING:
    from tests.sim.device import SimDevice
    from tests.sim.world import World

HARMLESS_S = 4.0  # a silence that no fence minds
DRAINED_S_MAX = 5.0


def strike(world: World, kind: Kind) -> None:
    """Something goes wrong now."""
    world.met.note(kind.value)
    world.log("fault", kind.value)
    _DEEDS[kind](world)


def kill(world: World, *, power: bool = False, at_once: bool = False) -> None:
    """The controller dies; with `power` the machine does, and what was not on the disk is gone.

    `at_once`: what waits for its commit is not written; else some of it just was.
    """
    process = world.process
    if process is None or not process.alive:
        return
    process.kill(at_once=at_once)
    world.process = None
    lost = world.disk.lose_power() if power else 0
    world.log("killed", process.number, lost)
    world.after(world.rng.uniform(0.02, 1.0), world.start_if_down)


def stop(world: World) -> None:
    """The controller is stopped in order, and started again."""
    process = world.process
    if process is None or not process.listens or process.paused:
        return

    def ended() -> None:
        if world.process is process:
            world.process = None
            world.log("stopped", process.number)
            world.after(world.rng.uniform(0.02, 1.0), world.start_if_down)

    process.stop(ended)


def lose_store(world: World) -> None:
    """The database is gone for a while; the process stays."""
    world.disk.broken_until_mended = True
    if world.process is not None and world.process.store is not None:
        world.process.store.fail("the database is gone")
    world.after(world.rng.uniform(0.05, 2.0), lambda: mend_store(world))


def mend_store(world: World) -> None:
    """The database is back."""
    world.disk.broken_until_mended = False


def pause(world: World) -> None:
    """The controller stands still: SIGSTOP, or a machine that has lost its breath."""
    process = world.process
    if process is None or not process.alive or process.paused:
        return
    pause_s = world.rng.choice((0.05, 1.0, HARMLESS_S, 40.0))
    if pause_s > HARMLESS_S:
        for run in world.fleet.runs:
            run.lethal = run.lethal or "the controller was paused for long"
    process.pause()
    world.after(pause_s, lambda: process.resume() if process.alive else None)


def jump(world: World) -> None:
    """Somebody sets the machine's clock."""
    world.wall_offset += world.rng.choice((-3600.0, -1.0, 1.0, 3600.0))


def drop_wake_ups(world: World) -> None:
    """The next requests that wait are not told that there is news."""
    world.wake_ups_to_drop += world.rng.randint(1, 3)


def send_away(world: World) -> None:
    """A switch answers nobody for a while; its light stays."""
    device = _some_device(world)
    device.away = True
    world.after(world.rng.uniform(0.1, 8.0), lambda: setattr(device, "away", False))


def break_port(world: World) -> None:
    """A port of a switch fails for good, and its light goes."""
    device = _some_device(world)
    positions = sorted(at.position for at in world.scenario.fabric.attachments if at.switch == device.name)
    position = world.rng.choice(positions)
    device.dead.add(position)
    _lethal_at(world, device, {position}, "one of its ports has failed")
    device.lose({position})


def meddle(world: World) -> None:
    """Somebody else writes to a switch."""
    device = _some_device(world)
    table = sorted(device.core.table)
    if table and world.rng.random() < 0.6:
        pair = world.rng.choice(table)
        _lethal_at(world, device, set(pair), "somebody else has changed its circuits")
        gone = device.lose(set(pair) if world.rng.random() < 0.5 else {pair.ingress})
        world.log("foreign remove", device.name, gone)
    else:
        i, j = sorted(world.rng.sample(range(device.core.switch.size), 2))
        _lethal_at(world, device, {i, j}, "somebody else has taken its ports")
        world.log("foreign add", device.name, i, j, device.make(CrossConnect(i, j)))


def kill_rank(world: World) -> None:
    """A process of a job dies."""
    if choice := world.fleet.alive:
        run, rank = world.rng.choice(choice)
        run.lethal = f"rank {rank.rank} has died"
        world.fleet.kill(run, rank)


def cut_off(world: World) -> None:
    """A rank lives, and neither hears nor is heard."""
    fleet = world.fleet
    if choice := fleet.alive:
        run, rank = world.rng.choice(choice)
        pause_s = world.rng.choice((0.5, HARMLESS_S, 20.0, 60.0))
        if pause_s > 1.0 or world.faults.lost or rank in fleet.unheard:
            run.lethal = f"rank {rank.rank} was cut off for {pause_s:g} s"
        fleet.unheard.add(rank)
        world.after(pause_s, lambda: fleet.unheard.discard(rank))


def drain(world: World) -> None:
    """An operator drains a port, and opens it again after a while; refused while somebody holds it."""
    ports = sorted(str(at.port) for at in world.scenario.fabric.attachments)
    path = f"/api/v1/ports/{world.rng.choice(ports)}"
    pause_s = world.rng.uniform(0.1, DRAINED_S_MAX)

    def opened(_: object) -> None:
        world.log("undrained", path)

    def drained(_: object) -> None:
        world.after(pause_s, lambda: ask("undrain", opened))

    def ask(what: str, done: Callable[[object], None]) -> None:
        Question(world, "POST", f"{path}/{what}", {"by": "ann"}, done, done, sure=True)

    ask("drain", drained)


def _some_device(world: World) -> SimDevice:
    return world.devices[world.rng.choice(sorted(world.devices))]


def _lethal_at(world: World, device: SimDevice, positions: set[int], why: str) -> None:
    for run in world.fleet.runs:
        if positions & run.cabling.positions.get(device.name, set()):
            run.lethal = run.lethal or why


_DEEDS = {
    Kind.KILL: kill,
    Kind.POWER_CUT: lambda world: kill(world, power=True),
    Kind.STOP: stop,
    Kind.STORE_LOST: lose_store,
    Kind.PAUSE: pause,
    Kind.CLOCK_JUMP: jump,
    Kind.WAKE_UP_DROPPED: drop_wake_ups,
    Kind.AWAY: send_away,
    Kind.PORT_DEATH: break_port,
    Kind.FOREIGN: meddle,
    Kind.DEATH: kill_rank,
    Kind.CUT_OFF: cut_off,
    Kind.DRAIN: drain,
}
