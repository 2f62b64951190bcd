"""What producers of one process leave to their backgrounds: see ``kstore.producer.background``."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.producer.background import _running
from kstore.producer.queue_writer import QueueWriter

SECONDS_MAX = 60


def test_producers_of_a_closing_store_are_delivered_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)
    write_ready: Callable[..., Any] = QueueWriter.write_ready

    def write_when_both_do(self: QueueWriter, *arguments: Any) -> None:
        both.wait(SECONDS_MAX)
        write_ready(self, *arguments)

    store = kstore.open(tmp_path, durability="os")
    for topic in ("a", "b"):
        store.topic(topic, partitions=1)
    producers = [store.producer(linger_ms=100_000) for _ in range(2)]
    deliveries = [producer.send(topic, b"v") for producer, topic in zip(producers, ("a", "b"), strict=True)]
    monkeypatch.setattr(QueueWriter, "write_ready", write_when_both_do)
    store.close()
    assert [delivery.result(0).offset for delivery in deliveries] == [0, 0]


@pytest.mark.filterwarnings("ignore:unclosed Producer:ResourceWarning")
def test_many_dropped_producers_deliver_and_leave_nothing_behind(tmp_path: Path) -> None:
    with kstore.open(tmp_path, durability="os") as store:
        store.topic("t", partitions=1)
        before = set(_running)
        threads = []
        for _ in range(100):
            producer = store.producer(linger_ms=0)
            producer.send("t", b"v")
            threads.append(producer._sender._thread)
            del producer
        gc.collect()
        for thread in threads:
            assert thread is not None
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        assert set(_running) <= before
        assert store.log("t").end_offset == 100
