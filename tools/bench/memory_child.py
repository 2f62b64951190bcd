"""Reads a log in its own process, and prints the peak growth of its memory in bytes.

usage: python -m tools.bench.memory_child PATH read|read_values COUNT
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import kstore

PROC = Path("/proc/self")


def reset_peak() -> bool:
    """Resets the peak to the process's present memory; False if the system cannot (not Linux)."""
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def status_bytes(field: str) -> int:
    line = next(line for line in (PROC / "status").read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


def greatest_bytes() -> int:
    # macOS counts bytes, the others KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    path, method, count = sys.argv[1:]
    is_exact = reset_peak()
    before = status_bytes("VmRSS") if is_exact else greatest_bytes()
    read = 0
    with kstore.Log(path, read_only=True) as log:
        for _ in getattr(log, method)():
            read += 1
    assert read == int(count), f"{read} records, expected {count}"
    print((status_bytes("VmHWM") if is_exact else greatest_bytes()) - before)


if __name__ == "__main__":
    main()
