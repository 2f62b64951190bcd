"""Members of a group in threads of one process come and go: every record is read, none again after its commit."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import pytest

import kstore
from kstore import TopicPartition
from tests.crash.test_group_kills import check

PARTITIONS, THREADS, RECORDS = 4, 4, 3000
KINDS = [
    pytest.param(False, id="one process"),
    pytest.param(True, id="files", marks=pytest.mark.skipif(sys.platform != "linux", reason="shared on Linux only")),
]


@pytest.mark.parametrize("shared", KINDS)
def test_members_in_threads_share_without_overlap(tmp_path: Path, seed: int, shared: bool) -> None:
    journal: list[str] = []
    failures: list[BaseException] = []
    ends = [RECORDS // PARTITIONS] * PARTITIONS
    with kstore.open(tmp_path / "s", shared=shared, durability="os") as store:
        store.create_topic("t", partitions=PARTITIONS)
        for number, count in enumerate(ends):
            for _ in range(count // 10):
                store.log("t", number).append_many([b"x"] * 10)

        def is_done() -> bool:
            found = store.consumer_offsets.committed("g")
            wanted = {TopicPartition("t", number): count for number, count in enumerate(ends)}
            return all(owner in found and found[owner].offset == count for owner, count in wanted.items())

        def work(number: int) -> None:
            draw = random.Random(seed + number)
            try:
                while not is_done() and not failures:
                    live(draw)
            except BaseException as error:
                failures.append(error)

        def live(draw: random.Random) -> None:
            with store.consumer("t", group="g", heartbeat_interval_ms=20) as consumer:
                for _ in range(draw.randrange(1, 12)):
                    found = consumer.poll(timeout=0.02, max_records=draw.randrange(1, 60))
                    for (_, number), records in found.items():
                        journal.extend(f"R {number} {record.offset}" for record in records)
                    consumer.commit()
                    journal.extend(f"C {number} {offset}" for (_, number), offset in consumer.positions().items())

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
            assert not thread.is_alive()
        if failures:
            raise failures[0]
        assert store.group_members("g") == {}
    check("\n".join(journal), ends)
