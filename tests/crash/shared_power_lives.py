"""Lives of a log with several writing processes, to be ended by power cuts; the result is opened alone and shared.

The processes are real ones, with the system's locks and mappings, in a program of their own (``shared_processes``),
which records their operations. Only the state after a power cut is opened in memory.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kstore.files.fs import FileSystem
from kstore.log import Log
from kstore.types import Durability
from tests.conftest import MEMORY
from tests.crash.power_cut_lives import PATH, SETTINGS, LogLife
from tests.crash.shared_processes import LIVES, Lived
from tests.support.fakes.fake_fs import Operation
from tests.support.harness.evidence import Crashed

REPOSITORY = Path(__file__).parents[2]
SHARED_LIVES = tuple(LIVES)


class SharedLife(LogLife):
    """A life that other processes lived. One process alone opens the result, shared or not."""

    def __init__(self, durability: Durability, lived: Lived) -> None:
        super().__init__(durability)
        self._operations = lived.operations
        self.tried, self.promises = lived.tried, lived.promises
        self.holes, self.gone, self.has_groups = lived.holes, lived.gone, lived.has_groups
        self._opened = 0

    @property
    def operations(self) -> Sequence[Operation]:
        return self._operations

    def _open(self, fs: FileSystem) -> Log:
        self._opened += 1
        # Each state is opened twice: alone and shared, or the other way round, or both the same.
        shared = self._opened % 3 == 0 or self._opened % 4 == 1
        return Log(PATH, fs=fs, clock=self.clock, durability=self.durability, shared=shared, **SETTINGS)


def shared_lived(name: str, durability: Durability, variant: int = 0) -> SharedLife:
    """The life of this name, to its end."""
    with TemporaryDirectory(prefix="kstore-shared-", dir=MEMORY if MEMORY.is_dir() else None) as directory:
        command = [sys.executable, "-W", "ignore", "-m", "tests.crash.shared_processes"]
        ended = subprocess.run(
            [*command, directory, name, durability, str(variant)], cwd=REPOSITORY, capture_output=True, timeout=120
        )
    if ended.returncode:
        raise Crashed(ended.stderr.decode())
    return SharedLife(durability, Lived(*pickle.loads(ended.stdout)))
