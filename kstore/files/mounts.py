"""Which file system a directory is on, and whether others write to it past this machine's kernel.

Locks, shared mappings and inotify belong to the kernel. If another machine, or a program, has the files too, they cover
at best this machine. Linux only; elsewhere, and without ``/proc``, nothing is known.
"""

from __future__ import annotations

import os

from kstore.errors import PathLike

MOUNTS = "/proc/self/mountinfo"

# The names that ``mount`` uses.
NETWORKS = {"afs", "cifs", "coda", "davfs", "ncpfs", "nfs", "nfs4", "smb3", "smbfs"}
CLUSTERS = {"acfs", "beegfs", "ceph", "gfs", "gfs2", "glusterfs", "gpfs", "lustre", "ocfs2", "orangefs", "panfs",
            "pvfs2", "wekafs"}  # fmt: skip
HOSTS_OF_VIRTUAL_MACHINES = {"9p", "prl_fs", "vboxsf", "virtiofs", "vmhgfs"}
FOREIGN_TYPES = NETWORKS | CLUSTERS | HOSTS_OF_VIRTUAL_MACHINES | {"fuse"}
# A user-space file system: ``fuse.sshfs``. One on its own block device is ``fuseblk``.
FUSE_PREFIX = "fuse."


def type_of(path: PathLike) -> str:
    """The type of the file system of the file or directory ``path``, "" if unknown."""
    try:
        device = os.stat(path).st_dev
        with open(MOUNTS, encoding="utf-8", errors="replace") as mounts:
            # 36 35 98:0 /root /where options [fields...] - type source options; spaces in names are escaped
            wanted = f"{os.major(device)}:{os.minor(device)}"
            for line in mounts:
                left, _, right = line.partition(" - ")
                if left.split(" ", 3)[2:3] == [wanted]:
                    return right.split(" ", 1)[0]
    except OSError:
        pass
    return ""


def foreign_type(path: PathLike) -> str:
    """The type of a file system that others may write to past this machine's kernel, "" for every other one."""
    found = type_of(path)
    return found if found in FOREIGN_TYPES or found.startswith(FUSE_PREFIX) else ""
