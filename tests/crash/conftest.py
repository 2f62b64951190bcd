"""A directory in memory, for tests that try the order of operations and not the disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def directory() -> Iterator[Path]:
    """In memory where there is such a place."""
    shared_memory = Path("/dev/shm")
    parent = shared_memory if shared_memory.is_dir() else None
    path = Path(tempfile.mkdtemp(prefix="kstore-faults-", dir=parent))
    yield path
    shutil.rmtree(path)
