"""A Kafka for tests of programs that use one: pytest fixtures with a store, a door to it, and faults on demand.

A project's ``conftest.py`` names it, and nothing is loaded otherwise::

    pytest_plugins = ["kstore.testing"]

Each test that asks for ``kafka_bootstrap`` gets a Kafka of its own, in this process and on loopback: no container, no
Java, nothing left behind. ``kafka_faults`` makes it fail on demand. Where starting one for each test costs too much,
``kafka_session_bootstrap`` is one for all tests, whose topics and groups ``kafka_prefix`` keeps apart.

Rejected: an entry point in pytest's group ``pytest11``. It loads kstore at the start of every run of pytest in the
environment, and makes pytest rewrite, and so compile, each of kstore's files that is imported.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from kstore.door.door import Door
from kstore.door.faults import Faults
from kstore.store import Store

__all__ = [
    "Faults",
    "kafka_bootstrap",
    "kafka_door",
    "kafka_faults",
    "kafka_prefix",
    "kafka_session_bootstrap",
    "kafka_store",
]

_prefixes = count(1)
# Where Linux keeps files in memory, and what must be free there: containers may have very little.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 1 << 30


@pytest.fixture
def kafka_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty store, with durability "os": to create topics in, to fill, and to look at what clients wrote."""
    with _directory(tmp_path_factory) as path, _store(path) as store:
        yield store


@pytest.fixture
def kafka_door(kafka_store: Store) -> Iterator[Door]:
    """The door of ``kafka_store``, on a free port of 127.0.0.1."""
    with Door(kafka_store, port=0) as door:
        yield door


@pytest.fixture
def kafka_bootstrap(kafka_door: Door) -> str:
    """What a client takes as ``bootstrap.servers``: "127.0.0.1:41231"."""
    return kafka_door.bootstrap_servers


@pytest.fixture
def kafka_faults(kafka_door: Door) -> Iterator[Faults]:
    """What ``kafka_door`` does wrong: ``kafka_faults.fail_next("Produce", "NOT_LEADER_OR_FOLLOWER")``."""
    faults = kafka_door.faults
    yield faults
    faults.clear()


@pytest.fixture(scope="session")
def kafka_session_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Kafka for all tests of a run, or of a worker of pytest-xdist."""
    with _directory(tmp_path_factory) as path, _store(path) as store, Door(store, port=0) as door:
        yield door.bootstrap_servers


@pytest.fixture
def kafka_prefix() -> str:
    """A beginning for the names of topics and groups that no other test of the run has."""
    return f"test{next(_prefixes)}-"


@contextmanager
def _directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new directory, in memory if there is enough: on a disk, the first group alone syncs 50 directories."""
    if not _is_memory_free():
        yield tmp_path_factory.mktemp("kafka")
        return
    with tempfile.TemporaryDirectory(prefix="kstore-testing-", dir=MEMORY, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _is_memory_free() -> bool:
    try:
        return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN
    except OSError:
        return False


def _store(path: Path) -> Store:
    return Store(path, durability="os")
