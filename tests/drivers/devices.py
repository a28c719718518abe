"""Emulated switches, fabrics and shorthand for the tests of drivers."""

from __future__ import annotations

from opus_sdn.drivers.emulated import EmulatedSwitch, Transition
from opus_sdn.intent.fabric import Attachment, CircuitKind, CrossConnect, Fabric, Port, Rail, Switch

Pairs = tuple[CrossConnect, ...]


def pairs(*ends: tuple[int, int]) -> Pairs:
    """Cross-connects from plain tuples."""
    return tuple(CrossConnect(*end) for end in ends)


def switch(size: int = 8, *, sided: bool = True, name: str = "ocs", **options: object) -> Switch:
    """A switch as the fabric file describes it."""
    return Switch(name, "emulated", size, sided, tuple(options.items()))


def device(
    *initial: tuple[int, int], size: int = 8, sided: bool = True, name: str = "ocs", **options: object
) -> EmulatedSwitch:
    """A device that holds these pairs."""
    return EmulatedSwitch(switch(size, sided=sided, name=name, initial=initial, **options))


def change(target: EmulatedSwitch, remove: Pairs = (), add: Pairs = (), epoch: int = 1) -> Transition:
    """Carry one whole change out."""
    transition = target.accept(remove, add, epoch)
    target.start(transition)
    target.finish(transition)
    return transition


def fabric(*, hosts: int = 4, kind: CircuitKind = CircuitKind.DUPLEX) -> Fabric:
    """Hosts h0, h1, ... with one GPU of two ports on switch `ocs`: port k of host i on position 2i + k."""
    names = tuple(f"h{i}" for i in range(hosts))
    sided = kind is not CircuitKind.BIDIRECTIONAL
    return Fabric(
        hosts=names,
        gpus_per_host=1,
        ports_per_gpu=2,
        circuit_kind=kind,
        switches=(switch(2 * hosts, sided=sided),),
        rails=(Rail("rail0", 0, "ocs", (0,)),),
        attachments=tuple(
            Attachment(Port(name, 0, k), "rail0", "ocs", 2 * i + k)
            for i, name in enumerate(names)
            for k in range(2)
        ),
    )
