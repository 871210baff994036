"""Where a store lies: on a local or on a network file system, and on which host."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

#: Types of /proc/mounts whose files other hosts can open too: there, SQLite's WAL (shared memory) does not work.
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs",
})  # fmt: skip
#: FUSE file systems of one machine; all others (sshfs, s3fs, gcsfuse, …) are taken for remote.
LOCAL_FUSE = frozenset({
    "fuse.ext2", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.mergerfs", "fuse.ntfs", "fuse.ntfs-3g", "fuse.unionfs",
})  # fmt: skip


def is_network(path: Path, mounts: str | None = None) -> bool:
    """Whether `path` (it need not exist) lies on a network file system.

    Args:
        mounts: the text of /proc/mounts; read where not given. On systems without it the answer is no.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return False  # not Linux; put TUNESMITH_CACHE_DIR on a local disk there
    target = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split()
        if len(parts) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), parts[1])
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts on one point the later one is seen
            best, kind = point, parts[2]
    return kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def host() -> str:
    """This host's name, fit for a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()) or "localhost"


def file_name(network: bool) -> str:
    """The name of one's own file: on a network file system each host has its own."""
    return f"store-{host()}.sqlite" if network else "store.sqlite"
