"""The machine of a run, in words: no host name, no path."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import kstore

PEERS = ("lmdb", "rocksdict", "plyvel", "confluent-kafka", "persist-queue")


def machine_words(directory: Path) -> list[tuple[str, str]]:
    """(what, which) in display order; ``directory`` is where the benchmarks write."""
    return [
        ("processor", f"{cpu_model()}, {os.cpu_count()} cores"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}, {platform.machine()}"),
        ("file system", file_system(directory)),
        ("load before the run", f"{os.getloadavg()[0]:.1f} (of others: 0 is an idle machine)"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("kstore", kstore.__version__),
        ("peers", ", ".join([f"SQLite {sqlite3.sqlite_version}", *(f"{name} {_version(name)}" for name in PEERS)])),
    ]


def cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "unknown"


def file_system(directory: Path, mounts: str | None = None) -> str:
    """The type of the file system that ``directory`` is on; ``mounts`` is Linux's list of them."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text()
        except OSError:
            return "unknown"
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        before, _, behind = line.partition(" - ")
        point = before.split(" ")[4]
        # The last of several on one mount point hides the earlier ones.
        if directory.resolve().is_relative_to(point) and len(point) >= len(best):
            best, kind = point, behind.split(" ")[0]
    return kind


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
