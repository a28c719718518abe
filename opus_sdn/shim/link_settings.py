"""What a rank's environment says of its NIC ports, and of what its transport does about a dark path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opus_sdn.intent.model import RetryBudget
from opus_sdn.shim.errors import SettingsError

SYSFS_DEFAULT = Path("/sys")
INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
RDMA_PORT = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]{0,63})/([1-9][0-9]?)")
RETRY_DEFAULT = 7  # NCCL's, and the most that InfiniBand has


@dataclass(frozen=True, slots=True)
class LinkSource:
    """Where the kernel shows whether a NIC port has its link: a network interface, or an RDMA port."""

    name: str
    path: str  # below the mount point of sysfs
    rdma: bool


def links_in(env: Mapping[str, str]) -> tuple[tuple[int, LinkSource], ...]:
    """Which NIC port of this GPU is which device of the kernel."""
    text = env.get("OPUS_LINKS", "").strip()
    remedy = (
        "use PORT=INTERFACE or PORT=rdma:DEVICE/PORT, each port index once, as 0=eth2,1=eth3 or "
        "0=rdma:mlx5_0/1,1=rdma:mlx5_1/1"
    )
    found: dict[int, LinkSource] = {}
    for item in text.split(",") if text else ():
        index, _, name = (part.strip() for part in item.partition("="))
        if index not in ("0", "1", "2", "3") or int(index) in found:
            raise SettingsError(f"OPUS_LINKS: is {text!r}; {remedy}")
        rdma = RDMA_PORT.fullmatch(name.removeprefix("rdma:")) if name.startswith("rdma:") else None
        if rdma is not None:
            source = LinkSource(name, f"class/infiniband/{rdma[1]}/ports/{rdma[2]}/state", rdma=True)
        elif INTERFACE.fullmatch(name) and not name.startswith("rdma:"):
            source = LinkSource(name, f"class/net/{name}/carrier", rdma=False)
        else:
            raise SettingsError(f"OPUS_LINKS: is {text!r}; {remedy}")
        found[int(index)] = source
    return tuple(sorted(found.items()))


def retry_budget_in(env: Mapping[str, str]) -> RetryBudget | None:
    """What NCCL was told, where it was told: its own timeout differs from version to version."""
    timeout = _small(env, "NCCL_IB_TIMEOUT", 31)
    retry = _small(env, "NCCL_IB_RETRY_CNT", RETRY_DEFAULT)
    if timeout is None:
        return None
    return RetryBudget(timeout, RETRY_DEFAULT if retry is None else retry)


def _small(env: Mapping[str, str], variable: str, most: int) -> int | None:
    """A whole number of somebody else's variable; what cannot be read is for its owner to complain of."""
    value = env.get(variable, "").strip()
    if not (value.isascii() and value.isdecimal()) or int(value) > most:
        return None
    return int(value)
