"""Which file system a folder is on, and whether SQLite may be kept there.

Over a network SQLite is not safe: locks are not what they are on a local disk, and its log is shared memory.
So the kinds of file system that are known to reach over a network are refused by their number.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

# As in Linux's statfs(2) and the sources of the file systems.
NETWORK = {
    0x00006969: "NFS",
    0x0000517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0xAAD7AAEA: "PanFS",
    0x7461636F: "OCFS2",
    0x01161970: "GFS2",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x0000564C: "NCP",
    0xBACBACBC: "HGFS",
    0x786F4256: "vboxsf",
}
FUSE = 0x65735546
# A FUSE file system may be anything. These are local; of the others nobody can say.
LOCAL_FUSE = {"fuseblk", "fuse.fuse-overlayfs", "fuse.mergerfs", "fuse.ntfs-3g"}
STATFS_BYTES = 1024  # more than any system's struct statfs


def network_kind(path: Path) -> str | None:
    """What kind of network file system the folder is on; None when it is local, or cannot be asked."""
    number = kind_number(path)
    if number == FUSE:
        kind = _fuse_kind(path)
        return None if kind in LOCAL_FUSE else kind
    return NETWORK.get(number)


def kind_number(path: Path) -> int:
    """The kernel's number for the kind of file system, 0 when it does not tell."""
    library = ctypes.CDLL(None, use_errno=True)
    if not sys.platform.startswith("linux"):
        return 0  # elsewhere it is another field, and other numbers
    found = ctypes.create_string_buffer(STATFS_BYTES)
    if library.statfs(os.fsencode(path), found) != 0:
        return 0
    return int.from_bytes(found.raw[:4], sys.byteorder)  # the first field, and no number is longer


def _fuse_kind(path: Path) -> str:
    """The mounted kind, as `fuse.sshfs`."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "fuse"
    for line in lines:
        fields = line.split()
        if fields[2] == wanted and "-" in fields:
            return fields[fields.index("-") + 1]
    return "fuse"
