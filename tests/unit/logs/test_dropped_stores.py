"""Stores that are dropped without ``close()``: they are released when they are garbage, and not before."""

from __future__ import annotations

import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore import store as store_module
from kstore.files.lock import is_held_here
from kstore.queue.queue import Queue
from kstore.store import Store

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def opened(path: Path) -> Store:
    store = kstore.open(path, durability="os")
    store.topic("orders")
    return store


def append(path: Path) -> None:
    opened(path).log("orders").append(b"x")


def send(path: Path) -> None:
    producer = opened(path).producer(linger_ms=60_000)
    producer.send("orders", b"x")


def put(path: Path) -> None:
    opened(path).queue("orders").put(b"x")


def consume(path: Path) -> None:
    store = opened(path)
    store.log("orders").append(b"x")
    consumer = store.consumer("orders", group="g")
    assert consumer.poll(0)
    consumer.commit()


def replicate(path: Path) -> None:
    store = opened(path)
    store.log("orders").append(b"x")
    store.replicator(path.with_name("copies"), every="1h")


@pytest.mark.parametrize("use", [append, send, put, consume, replicate])
def test_a_store_that_was_dropped_can_be_opened_again_with_all_that_it_had(
    use: Callable[[Path], None], path: Path
) -> None:
    use(path)
    with kstore.open(path) as store:
        assert [record.value for record in store.log("orders")] == [b"x"]
        if use is consume:
            assert store.consumer_offsets.committed("g") != {}


def test_a_store_that_was_dropped_is_released_by_the_collector_alone(path: Path) -> None:
    append(path)
    gc.collect()
    assert not is_held_here(path)


@pytest.mark.parametrize(
    "kept",
    [lambda store: store.log("orders"), lambda store: store.queue("orders"), lambda store: store.producer(linger_ms=0)],
    ids=["log", "queue", "producer"],
)
def test_what_a_program_still_has_of_a_store_that_was_dropped_works_on(
    kept: Callable[[Store], object], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = kept(opened(path))
    gc.collect()
    if isinstance(client, Queue):
        client.put(b"x")
        assert client.get_nowait().value == b"x"
    elif isinstance(client, kstore.Log):
        assert client.append(b"x") == 0
    else:
        assert isinstance(client, kstore.Producer)
        assert client.send("orders", b"x").result(300).offset == 0
    monkeypatch.setattr(store_module, "DROPPED_SECONDS", 0.05)
    with pytest.raises(kstore.LockedError, match="this process"):
        kstore.open(path)
    client.close()


def test_a_store_that_is_in_use_is_locked_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, sleep = threading.current_thread(), time.sleep

    def refused(seconds: float) -> None:
        # A thread that an earlier test has left, as Spark's, may sleep.
        if threading.current_thread() is here:
            pytest.fail("it waits for a store that is in use")
        sleep(seconds)

    monkeypatch.setattr("time.sleep", refused)
    with opened(path), pytest.raises(kstore.LockedError, match="this process"):
        kstore.open(path)
