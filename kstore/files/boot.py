"""Identifies the boot of the machine: after another boot, unsynced pages may be gone in any order."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACOS_BOOT_ID = b"kern.bootsessionuuid"
UNKNOWN = bytes(16)


@functools.cache
def boot_id() -> bytes:
    """16 bytes that stay the same until the machine restarts; zeros if the system does not provide them."""
    try:
        text = _macos_boot_id() if sys.platform == "darwin" else LINUX_BOOT_ID.read_text(encoding="ascii")
        found = bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return UNKNOWN
    return found if len(found) == len(UNKNOWN) else UNKNOWN


def _macos_boot_id() -> str:
    import ctypes
    import ctypes.util

    library = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    buffer = ctypes.create_string_buffer(64)
    size = ctypes.c_size_t(len(buffer))
    if library.sysctlbyname(MACOS_BOOT_ID, buffer, ctypes.byref(size), None, 0):
        raise OSError(ctypes.get_errno(), "sysctlbyname kern.bootsessionuuid")
    return buffer.value.decode("ascii")
