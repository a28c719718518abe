"""Which GPU slot of its host a rank sits on: what it is told, else what its devices say.

The local rank is the slot only where a job uses all GPUs of a host in their order. CUDA_VISIBLE_DEVICES names
the GPUs that it uses; a map says which slot each GPU is by what never changes: PCI address, UUID, or the GUID
of the NIC that hangs on the slot's fibres.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opus_sdn.shim.errors import SettingsError
from opus_sdn.shim.link_settings import LinkSource

SLOT_MAX = 1023  # GPU slots of one host; far above any host that exists
MAP_BYTES_MAX = 1 << 20
PCI = re.compile(r"(?:[0-9a-f]{1,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
UUID = re.compile(r"(?:gpu|mig)-[0-9a-f-]{8,80}")
GUID = re.compile(r"(?:0x)?[0-9a-f]{16}|(?:[0-9a-f]{4}:){3}[0-9a-f]{4}")

# Names of a GPU that this process sees, by its index there; none where there is no such GPU.
GpuNames = Callable[[int], Sequence[str]]


def slot_in(
    env: Mapping[str, str],
    links: Sequence[tuple[int, LinkSource]] = (),
    sysfs: Path = Path("/sys"),
    gpu_names: GpuNames | None = None,
) -> int:
    """The slot, by OPUS_GPU_SLOT, else OPUS_GPU_SLOT_MAP, OPUS_GPU_MAP, CUDA_VISIBLE_DEVICES, LOCAL_RANK.

    Raises SettingsError.
    """
    if env.get("OPUS_GPU_SLOT", "").strip():
        return _number(env, "OPUS_GPU_SLOT", "use the GPU's slot in its host, 0 and up, as 3")
    text = env.get("OPUS_GPU_SLOT_MAP", "").strip()
    if text:
        local_rank = _local_rank(env)
        slots = _slot_map(text)
        if local_rank not in slots:
            raise _wrong(
                "OPUS_GPU_SLOT_MAP",
                text,
                f"it says nothing of LOCAL_RANK {local_rank}; add {local_rank}:SLOT",
            )
        return slots[local_rank]
    device = _visible_device(env)
    text = env.get("OPUS_GPU_MAP", "").strip()
    if text:
        index = 0 if device is not None and device[1] == 1 else _local_rank(env)
        names = [*_nic_guids(links, sysfs), *(gpu_names(index) if gpu_names is not None else ())]
        if device is not None and UUID.fullmatch(device[0].lower()):
            names.append(device[0])
        return _mapped(text, [normal(name) for name in names])
    if device is None:
        return _local_rank(env)
    if not device[0].isdecimal():
        raise SettingsError(
            f"CUDA_VISIBLE_DEVICES: names this rank's GPU as {device[0]!r}, which says nothing of its slot; "
            "set OPUS_GPU_MAP to a map of such names, as GPU-5f1c...=0, or OPUS_GPU_SLOT to the slot"
        )
    return int(device[0])


def normal(name: str) -> str:
    """One spelling for each name: PCI addresses with four digits of domain, GUIDs without separators."""
    name = name.strip().lower()
    if PCI.fullmatch(name):
        domain, _, rest = name.rpartition(":")[0].rpartition(":")
        return f"{int(domain or '0', 16):04x}:{rest}:{name.rpartition(':')[2]}"
    if GUID.fullmatch(name):
        return name.removeprefix("0x").replace(":", "")
    return name


def _visible_device(env: Mapping[str, str]) -> tuple[str, int] | None:
    """This rank's entry in CUDA_VISIBLE_DEVICES and how many there are; None where it says nothing."""
    text = env.get("CUDA_VISIBLE_DEVICES", "").strip()
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names or not (names[0].isdecimal() or UUID.fullmatch(names[0].lower())):
        return None  # unset, or no GPU at all: -1, NoDevFiles
    if len(names) == 1:  # each rank sees its own GPU alone
        return names[0], 1
    local_rank = _local_rank(env)
    if local_rank >= len(names):
        raise SettingsError(
            f"CUDA_VISIBLE_DEVICES: is {text!r}, which has no entry for LOCAL_RANK {local_rank}; start at "
            f"most {len(names)} ranks on this host, or set OPUS_GPU_SLOT"
        )
    return names[local_rank], len(names)


def _mapped(text: str, names: Sequence[str]) -> int:
    """The one slot that the map gives these names, of which not all need be in it."""
    slots = _gpu_map(text)
    found = {slots[name] for name in names if name in slots}
    if len(found) == 1:
        return found.pop()
    known = ", ".join(names) or "none that this process can see"
    if not found:
        raise _wrong(
            "OPUS_GPU_MAP", text, f"none of the names of this rank's GPU and NICs is in it ({known}); add one"
        )
    raise _wrong("OPUS_GPU_MAP", text, f"this rank's GPU and NICs ({known}) are in it with different slots")


def _gpu_map(text: str) -> dict[str, int]:
    """NAME=SLOT pairs between commas, or the path of a file with one in a line."""
    remedy = (
        "use NAME=SLOT pairs, each name once, with a GPU's PCI address or UUID or a NIC's GUID as name, as "
        "0000:17:00.0=0,0000:3d:00.0=1; or the path of a file with one pair in a line"
    )
    items = text.split(",")
    if "=" not in text:
        try:
            with Path(text).open(encoding="utf-8") as file:
                content = file.read(MAP_BYTES_MAX + 1)
        except (OSError, UnicodeDecodeError) as failed:
            raise _wrong("OPUS_GPU_MAP", text, f"no such file can be read ({failed}); {remedy}") from None
        if len(content) > MAP_BYTES_MAX:
            raise _wrong("OPUS_GPU_MAP", text, f"the file is larger than {MAP_BYTES_MAX} bytes; {remedy}")
        items = [line.partition("#")[0] for line in content.splitlines()]
    slots: dict[str, int] = {}
    for item in items:
        name, equals, slot = (part.strip() for part in item.rpartition("="))
        if not item.strip():
            continue
        known = any(pattern.fullmatch(name.lower()) for pattern in (PCI, UUID, GUID))
        if not equals or not known or not slot.isdecimal() or int(slot) > SLOT_MAX or normal(name) in slots:
            raise _wrong("OPUS_GPU_MAP", text, f"{item.strip()!r} cannot be used; {remedy}")
        slots[normal(name)] = int(slot)
    return slots


def _nic_guids(links: Sequence[tuple[int, LinkSource]], sysfs: Path) -> list[str]:
    """GUIDs of the RDMA devices that OPUS_LINKS names; those that cannot be read are left out."""
    found = []
    for _, link in links:
        if link.rdma:
            device = link.path.split("/")[2]
            try:
                found.append((sysfs / "class/infiniband" / device / "node_guid").read_text().strip())
            except OSError:
                continue
    return found


def _local_rank(env: Mapping[str, str]) -> int:
    if not env.get("LOCAL_RANK", "").strip():
        raise SettingsError(
            "LOCAL_RANK: is not set, so the GPU slot of this rank is unknown; start with torchrun, "
            "or set OPUS_GPU_SLOT to the slot, as 0"
        )
    return _number(env, "LOCAL_RANK", "use the rank's index on its host, 0 and up, or set OPUS_GPU_SLOT")


def _slot_map(text: str) -> dict[int, int]:
    remedy = "use LOCAL_RANK:SLOT pairs with each local rank and each slot once, as 0:0,1:3"
    slots: dict[int, int] = {}
    for item in text.split(","):
        rank, _, slot = item.strip().partition(":")
        if not (rank.isdecimal() and slot.isdecimal()) or int(slot) > SLOT_MAX or int(rank) in slots:
            raise _wrong("OPUS_GPU_SLOT_MAP", text, remedy)
        slots[int(rank)] = int(slot)
    if len(set(slots.values())) < len(slots):
        raise _wrong("OPUS_GPU_SLOT_MAP", text, remedy)
    return slots


def _number(env: Mapping[str, str], variable: str, remedy: str) -> int:
    value = env[variable].strip()
    if not (value.isascii() and value.isdecimal()) or int(value) > SLOT_MAX:
        raise _wrong(variable, value, remedy)
    return int(value)


def _wrong(variable: str, value: str, remedy: str) -> SettingsError:
    return SettingsError(f"{variable}: is {value!r}; {remedy}")
