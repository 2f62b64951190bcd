"""Finds the Pythons of this machine that can build kstore."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MINOR_MIN = 11
# Prints the version, if this is a CPython with its C headers, with pip's venv and with the GIL.
PROBE = """
import ensurepip, pathlib, sys, sysconfig, venv
if sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED"):
    if pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists():
        print(*sys.version_info[:3])
"""


class Python(NamedTuple):
    """An interpreter, after its version: the newest is the greatest."""

    version: tuple[int, int, int]
    path: Path

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


def candidates() -> Iterator[Path]:
    """Where Pythons usually lie: this one, those on the PATH, pyenv's, and those of macOS's installer."""
    yield Path(sys.executable).resolve()
    for directory in os.get_exec_path():
        yield from Path(directory).glob("python3.[0-9]*")
    yield from (Path.home() / ".pyenv" / "versions").glob("*/bin/python3")
    yield from Path("/Library/Frameworks/Python.framework/Versions").glob("*/bin/python3")


def found() -> list[Python]:
    """The Pythons that can build kstore, one for each full version, the oldest first."""
    usable: dict[tuple[int, int, int], Python] = {}
    for path in candidates():
        # Beside them lie python3.11-config and python3.11-gdb.py.
        if not re.fullmatch(r"python3(\.\d+)?", path.name):
            continue
        try:
            done = subprocess.run([path, "-c", PROBE], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        numbers = done.stdout.split()
        # A shim of pyenv fails, or prints its own words, unless its version is chosen.
        if done.returncode == 0 and len(numbers) == 3 and all(map(str.isdigit, numbers)):
            version = (int(numbers[0]), int(numbers[1]), int(numbers[2]))
            if version >= (3, MINOR_MIN, 0):
                usable.setdefault(version, Python(version, path))
    return sorted(usable.values())


def one_of_each_minor(pythons: list[Python]) -> list[Python]:
    """The oldest of each minor version: what it builds, the later ones load."""
    return [python for at, python in enumerate(pythons) if not at or pythons[at - 1].version[:2] != python.version[:2]]
