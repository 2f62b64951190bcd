"""The differences between Linux and macOS: one function for each, on plain descriptors and paths.

    thing                 Linux                        macOS
    sync                  fdatasync, fsync             fcntl F_FULLFSYNC (fsync leaves bytes in the drive's cache)
    write and sync        pwritev with RWF_DSYNC       a write, then the sync
    reserve blocks        fallocate, KEEP_SIZE         none: reports False
    fill with blocks      posix_fallocate              zeros written where bytes are missing or may be a hole
    advise                posix_fadvise                none
    find data             lseek with SEEK_DATA         the same; where it is missing, everything counts as data
    which boot            /proc/sys/.../boot_id        sysctl kern.bootsessionuuid
    which file system     /proc/self/mountinfo         none: unknown

An OSError of a descriptor passes through here unchanged; ``fs`` gives it its type.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

from kstore.errors import PathLike

# The flag that makes one pwritev durable; 0 if the system has none.
DSYNC_FLAG: int = getattr(os, "RWF_DSYNC", 0)

# On Linux, syncing shared memory syncs the file like fdatasync; macOS leaves it in the drive's cache.
MSYNC_REACHES_DISK = sys.platform == "linux"

# linux/falloc.h
FALLOC_FL_KEEP_SIZE = 1

# sys/fcntl.h of macOS; Python names it from 3.9 on, on macOS only.
F_FULLFSYNC: int = getattr(fcntl, "F_FULLFSYNC", 51)

UNSUPPORTED_ERRNOS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})

FILL_CHUNK_BYTES = 64 * 1024

ADVICE: dict[str, int] = {
    name: getattr(os, f"POSIX_FADV_{name.upper()}")
    for name in ("normal", "sequential", "random", "willneed", "dontneed")
    if hasattr(os, "posix_fadvise")
}


def _sync_full(fd: int) -> None:
    try:
        fcntl.fcntl(fd, F_FULLFSYNC)
    except OSError as error:
        # Some network and foreign file systems lack it; fsync is the strongest that they have.
        if error.errno not in UNSUPPORTED_ERRNOS and error.errno != errno.ENOTTY:
            raise
        os.fsync(fd)


sync_data: Callable[[int], None] = _sync_full if sys.platform == "darwin" else os.fdatasync
sync_all: Callable[[int], None] = _sync_full if sys.platform == "darwin" else os.fsync


def advise(fd: int, position: int, size: int, advice: str) -> None:
    """Best effort: an unsupported hint is dropped."""
    if advice in ADVICE:
        try:
            os.posix_fadvise(fd, position, size, ADVICE[advice])
        except OSError:
            pass


def seek_data(fd: int, position: int) -> int:
    """The first position at or after ``position`` that is not in a hole; at least the size if no data follows.

    Moves the descriptor's own position, which nothing uses.
    """
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return max(position, os.lseek(fd, 0, os.SEEK_END))
        if error.errno in UNSUPPORTED_ERRNOS:
            return position
        raise


def reserve(fd: int, position: int, size: int) -> bool:
    """Allocates blocks and keeps the file's size; returns whether it did."""
    global _fallocate
    if _fallocate is None:
        _fallocate = _load_fallocate()
    return _fallocate(fd, position, size)


def fill(fd: int, size: int) -> None:
    """Grows the file to at least ``size`` and gives every byte below it a block, keeping the contents."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size)
            return
        except OSError as error:
            # A C library that does not emulate what the file system lacks (musl, ZFS).
            if error.errno not in UNSUPPORTED_ERRNOS:
                raise
    fill_by_writing(fd, size)


def fill_by_writing(fd: int, size: int) -> None:
    """The substitute for ``posix_fallocate``: rewrites existing bytes, and writes missing ones as zeros."""
    for position in range(0, size, FILL_CHUNK_BYTES):
        chunk_size = min(FILL_CHUNK_BYTES, size - position)
        chunk = os.pread(fd, chunk_size, position).ljust(chunk_size, b"\0")
        while chunk:
            written = os.pwrite(fd, chunk, position)
            if written == 0:
                raise OSError(errno.EIO, f"a write at {position} took no byte")
            chunk = chunk[written:]
            position += written


_fallocate: Callable[[int, int, int], bool] | None = None


def _load_fallocate() -> Callable[[int, int, int], bool]:
    """Finds the C library's fallocate, once; imports ctypes here because it takes longer than the whole module."""
    import ctypes

    function = getattr(ctypes.CDLL(None), "fallocate", None) if sys.platform == "linux" else None
    # The plain name takes an off_t, which has 64 bits if a long has.
    if function is None or ctypes.sizeof(ctypes.c_long) != 8:
        return lambda fd, position, size: False
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)

    def fallocate(fd: int, position: int, size: int) -> bool:
        # ctypes would silently wrap a number beyond 63 bits.
        if fd < 0 or position < 0 or size <= 0 or position + size >= 1 << 63:
            return False
        return bool(function(fd, FALLOC_FL_KEEP_SIZE, position, size) == 0)

    return fallocate


# --- this machine -----------------------------------------------------------------------------------------------------

LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACOS_BOOT_ID = b"kern.bootsessionuuid"
UNKNOWN_BOOT = bytes(16)


@functools.cache
def boot_id() -> bytes:
    """16 bytes that stay the same until the machine restarts; zeros if the system does not provide them.

    After another boot, unsynced pages may be gone in any order.
    """
    try:
        text = _macos_boot_id() if sys.platform == "darwin" else LINUX_BOOT_ID.read_text(encoding="ascii")
        found = bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return UNKNOWN_BOOT
    return found if len(found) == len(UNKNOWN_BOOT) else UNKNOWN_BOOT


def _macos_boot_id() -> str:
    import ctypes
    import ctypes.util

    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    buffer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(buffer))
    if library.sysctlbyname(MACOS_BOOT_ID, buffer, ctypes.byref(size), None, 0):
        raise OSError(ctypes.get_errno(), "sysctlbyname kern.bootsessionuuid")
    return buffer.value.decode("ascii")


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
    """The type of a file system that others may write to past this machine's kernel, "" for every other one.

    Locks, shared mappings and inotify belong to the kernel. If another machine, or a program, has the files too, they
    cover at best this machine.
    """
    found = type_of(path)
    return found if found in FOREIGN_TYPES or found.startswith(FUSE_PREFIX) else ""
