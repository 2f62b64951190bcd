"""Header keys are bytes: whatever takes a record, and whatever copies one, keeps those that are not UTF-8."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.odd_batches import LATIN

TEXT = "gr\ufffd\ufffde"
# As given, with the same keys as text and as bytes.
GIVEN: list[tuple[str | bytes, bytes | None]] = [
    (LATIN, b"1"),
    ("größe", None),
    ("größe".encode(), b"2"),
    (b"", b"\xff"),
    (b"\xed\xa0\x80\0", b"3"),
]
AS_TEXT = ((TEXT, b"1"), ("größe", None), ("größe", b"2"), ("", b"\xff"), ("\ufffd\0", b"3"))
AS_BYTES = tuple([(key.encode() if isinstance(key, str) else key, value) for key, value in GIVEN])


def check(records: list[Any]) -> None:
    assert records
    for record in records:
        assert record.header_bytes == AS_BYTES
        assert record.headers == AS_TEXT


def test_a_log_takes_them(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0") as log:
        log.append(b"v", headers=GIVEN)
        log.append(b"v", headers=AS_BYTES, key=b"k")
        log.append_many([b"v"] * 2, headers=[GIVEN, tuple(AS_BYTES)])
        log.append(b"v", headers={LATIN: b"1"})
        *records, last = log.read(0)
        check(records)
        assert last.header_bytes == ((LATIN, b"1"),)


@pytest.mark.parametrize("linger_ms", [0, 60_000])
def test_a_producer_sends_them_and_a_consumer_gives_them(tmp_path: Path, linger_ms: int) -> None:
    with kstore.open(tmp_path, durability="os") as store:
        store.create_topic("t")
        with store.producer(linger_ms=linger_ms) as producer:
            producer.send("t", b"v", headers=GIVEN)
            producer.send("t", b"v", headers=AS_BYTES)
            producer.send_many("t", [b"v"] * 2, headers=[GIVEN, AS_BYTES])
            producer.flush()
        with store.consumer("t", group="g", auto_offset_reset="earliest") as consumer:
            found = [record for records in consumer.poll().values() for record in records]
            check(found)
            check([record.deserialized("k", "v") for record in found])


def test_a_batch_that_is_split_keeps_them(tmp_path: Path) -> None:
    with kstore.open(tmp_path, durability="os", background=False) as store:
        store.create_topic("t", max_message_bytes=500)
        with store.producer(linger_ms=60_000) as producer:
            for _ in range(20):
                producer.send("t", b"v" * 100, headers=GIVEN)
            producer.flush()
            assert producer._counters.splits
        check(list(store.log("t").read(0)))


def test_the_asynchronous_interface_takes_them(tmp_path: Path) -> None:
    async def run() -> None:
        async with kstore.aio.open(tmp_path, durability="os") as store:
            await store.create_topic("t")
            log = await store.log("t")
            await asyncio.gather(*[log.append(b"v", headers=GIVEN) for _ in range(3)])
            check([record async for record in log.read(0)])

    asyncio.run(run())


def test_a_queue_s_dead_letters_and_those_put_back_keep_them(tmp_path: Path) -> None:
    with kstore.open(tmp_path, durability="os") as store:
        queue = store.queue("jobs", max_deliveries=1)
        queue.put(b"v", headers=GIVEN)
        queue.put_many([b"v"], headers=[AS_BYTES])
        for job in queue.get_many(2):
            assert job.headers == AS_TEXT
            check([job.record])
            job.nack()
        with pytest.raises(kstore.Empty):
            queue.get_nowait()
        for job in queue.dead_letters.get_many(2):
            assert job.headers == AS_TEXT
            assert job.record.header_bytes[: len(AS_BYTES)] == AS_BYTES
            job.nack()
        assert queue.retry_dead() == 2
        check([job.record for job in queue.get_many(2)])


def test_an_item_with_a_delay_keeps_them(tmp_path: Path) -> None:
    clock = ManualClock()
    with kstore.Store(tmp_path, clock=clock, background=False, durability="os") as store:
        queue = store.queue("jobs")
        queue.put(b"v", delay=5, headers=GIVEN)
        clock.advance(5001)
        job = queue.get_nowait()
        assert job.headers == AS_TEXT
        assert job.record.header_bytes[: len(AS_BYTES)] == AS_BYTES


@pytest.mark.parametrize("headers_type", ["list", "map"])
@pytest.mark.parametrize("binary_type", ["binary", "large_binary"])
def test_columns_of_binary_keys_can_be_appended_again(tmp_path: Path, headers_type: Any, binary_type: Any) -> None:
    pytest.importorskip("pyarrow")
    with kstore.Log(tmp_path / "t-0") as log, kstore.Log(tmp_path / "u-0") as copy:
        log.append_many([b"a", b"b", b"c"], headers=[GIVEN, None, AS_BYTES])
        options: dict[str, Any] = {"headers_type": headers_type, "binary_type": binary_type}
        copy.append_arrow(log.to_arrow(header_keys="binary", **options))
        assert [r.header_bytes for r in copy.read(0)] == [AS_BYTES, (), AS_BYTES]
        # As text they become what is shown.
        copy.append_arrow(log.to_arrow(**options))
        assert [r.headers for r in copy.read(3)] == [AS_TEXT, (), AS_TEXT]
        assert [r.header_bytes[0] for r in copy.read(3) if r.headers] == [(TEXT.encode(), b"1")] * 2


def test_chunks_of_columns_keep_their_limit_though_text_is_larger(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with kstore.Log(tmp_path / "t-0") as log:
        log.append_many([b""] * 100, headers=[[(b"\xff" * 1000, b"")]] * 100)
        for header_keys, count in (("binary", 9), ("string", 3)):
            batches = list(log.to_arrow_batches(header_keys=header_keys, max_bytes=10_000))  # type: ignore[arg-type]
            assert max(batch.num_rows for batch in batches) == count
            assert all(batch.nbytes <= 10_000 for batch in batches)
            for batch in batches:
                batch.validate(full=True)
            assert sum(batch.num_rows for batch in batches) == 100


def test_an_unknown_kind_of_keys_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with kstore.Log(tmp_path / "t-0") as log, pytest.raises(kstore.ConfigError, match="header_keys is 'text'"):
        log.to_arrow(header_keys="text")  # type: ignore[arg-type]
