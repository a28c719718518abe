"""Writing a fabric file for a regular cluster, to start from or to run as it is."""

from __future__ import annotations

from opus_sdn.fabric_file.hosts import HOSTS_MAX
from opus_sdn.fabric_file.read import FabricFileError, parse_fabric
from opus_sdn.fabric_file.spec import KNOWN_DRIVERS
from opus_sdn.fabric_file.wiring import LAYOUT_OF
from opus_sdn.intent.fabric import CircuitKind

SWITCH_CHOICES = ("per-rail", "shared")

_HEAD = """\
# Opus fabric: which NIC port of which GPU sits on which switch position. All counting is from 0.
version: 1

# Names as the ranks know them (OPUS_HOST, else SLURMD_NODENAME, else the host name); ranges as gpu[000-127].
hosts:
  - {hosts}
gpus_per_host: {gpus_per_host}
ports_per_gpu: {ports_per_gpu}  # 1, 2 or 4; with two, port 0 is left and port 1 is right

# duplex: two cross-connects per circuit on a sided switch; bidirectional: one, on an any_to_any switch;
# directed: transmit side to one port, receive side from another, where switch and NICs declare it.
circuit: {circuit}
"""

_OPTIONS = {
    "emulated": "    options: {{delay_ms: {delay_ms:g}, control_ms: {control_ms:g}}}\n",
    "polatis": "    # name or address of the switch, and a file with the password of its user\n"
    "    options: {{host: ocs{number}, user: admin, password_file: ocs{number}.password}}\n",
}

_RAILS_HEAD = """
# The ports of a rail fill the positions of its switch from first_port on: host by host, slot by slot, port by
# port. `ports: {"host:slot:port": position}` places single ports elsewhere. `drift: observe` reports what
# somebody else changes on the rail's ports, and repairs nothing; without it what we own is repaired.
rails:
"""


def generate_fabric(
    *,
    hosts: int = 4,
    gpus_per_host: int = 2,
    ports_per_gpu: int = 2,
    rails: int | None = None,
    switches: str = "per-rail",
    driver: str = "emulated",
    delay_ms: float = 50,
    control_ms: float = 0,
    circuit: str = "duplex",
    size: int | None = None,
    host_prefix: str = "host",
) -> str:
    """The text of a fabric file; the same arguments give the same text.

    `rails`: None makes one rail per GPU slot; fewer put several neighbouring slots on each. `switches`:
    `per-rail` gives each rail a switch of its own, `shared` puts all on one. `size` is the number of
    positions of a switch; None makes it just large enough. `delay_ms` (optics) and `control_ms` (the device's
    own control) are what an emulated switch takes for a change. The address of a real switch and where its
    password is are to be filled in.

    Raises ValueError that names the argument, its value and what would be right.
    """
    rails = gpus_per_host if rails is None else rails
    _check_choice("circuit", circuit, tuple(CircuitKind))
    _check_choice("switches", switches, SWITCH_CHOICES)
    _check_choice("driver", driver, tuple(sorted(KNOWN_DRIVERS)))
    _check_range("hosts", hosts, 1, HOSTS_MAX)
    _check_range("gpus-per-host", gpus_per_host, 1, 64)
    _check_range("rails", rails, 1, gpus_per_host)
    _check_range("delay-ms", delay_ms, 0, 600_000)
    _check_range("control-ms", control_ms, 0, 600_000)
    if ports_per_gpu not in (1, 2, 4):
        raise ValueError(f"ports-per-gpu is {ports_per_gpu}; a GPU has 1, 2 or 4 NIC ports on its rail")
    if gpus_per_host % rails:
        raise ValueError(
            f"rails is {rails}, which does not divide gpus-per-host {gpus_per_host}; use a divisor of it"
        )
    directed = circuit == CircuitKind.DIRECTED
    slots_per_rail = gpus_per_host // rails
    ports_per_rail = hosts * slots_per_rail * ports_per_gpu
    needed = max(2, ports_per_rail * (rails if switches == "shared" else 1))

    text = _HEAD.format(
        hosts=f"{host_prefix}[0-{hosts - 1}]" if hosts > 1 else f"{host_prefix}0",
        gpus_per_host=gpus_per_host,
        ports_per_gpu=ports_per_gpu,
        circuit=circuit,
    )
    text += "nics_directed: true\n" if directed else ""
    text += "\nswitches:\n"
    for number in range(1 if switches == "shared" else rails):
        text += (
            f"  - name: ocs{number}\n    driver: {driver}\n    size: {size if size is not None else needed}\n"
        )
        text += f"    layout: {LAYOUT_OF[CircuitKind(circuit)]}\n" + (
            "    directed: true\n" if directed else ""
        )
        text += _OPTIONS[driver].format(number=number, delay_ms=delay_ms, control_ms=control_ms)
    text += _RAILS_HEAD
    for number in range(rails):
        slots = ", ".join(str(number * slots_per_rail + slot) for slot in range(slots_per_rail))
        switch, first = (0, number * ports_per_rail) if switches == "shared" else (number, 0)
        text += f"  - {{name: rail{number}, slots: [{slots}], switch: ocs{switch}, first_port: {first}}}\n"
    try:
        parse_fabric(text, "generated fabric")
    except FabricFileError as refused:
        raise ValueError(str(refused)) from None
    return text


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; use {' or '.join(known)}")


def _check_range(name: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value:g}; use {least} to {most}")
