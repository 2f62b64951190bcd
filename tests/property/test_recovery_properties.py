"""Recovery over runs is compared with recovery over single batches: the same files and reports for any log."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from kstore import Log
from kstore.engine.open import recovery
from kstore.files.paths import LEADER_EPOCHS
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.record.walk import walk
from kstore.types import RecoveryReport
from tests.support.fakes.crash_states import Image, Stored
from tests.support.fakes.memory_fs import MemoryFs, in_memory
from tests.support.harness.selection import tries
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.run_helpers import TIME, marker, small_batch
from tests.support.oracles.oracle_legacy import message

pytestmark = pytest.mark.promise("rebuilt", "torn tail", "unclean open")

ROOT = Path("/recovered")
LOGS = tries(600, quick=30)
# Only one byte in this many is tried in a quick run.
ONE_IN = tries(1, quick=23)
# An entry of a transaction index, left by an earlier life.
TXN_BYTES = bytes(6) + b"\0\x05" + bytes(26)


@pytest.fixture(autouse=True)
def _memory() -> Iterator[None]:
    with in_memory():
        yield


def one_batch_at_a_time(*arguments: Any, run_bytes: int, **bounds: Any) -> object:
    assert run_bytes
    return walk(*arguments, **bounds)


def recovered(image: Image, settings: dict[str, Any]) -> tuple[Image, RecoveryReport, Image]:
    """Recovers a log; returns its files after the open, the report, and its files after the close."""
    fs = MemoryFs(ROOT, image)
    log = Log(ROOT / "log", fs=fs, **settings)
    report, opened = log.recovery, contents(fs)
    log.check()
    assert not report.clean
    report.seconds = 0
    log.close()
    return opened, report, contents(fs)


def contents(fs: MemoryFs) -> Image:
    return {name: stored and stored._replace(mtime_ns=0) for name, stored in fs.image().items()}


def assert_alike(segments: dict[int, bytes], others: dict[str, bytes] | None = None, **settings: Any) -> RecoveryReport:
    named = {f"{base:020d}.log": data for base, data in segments.items()} | (others or {})
    image: Image = {"log": None}
    image |= {f"log/{name}": Stored(data, number + 1) for number, (name, data) in enumerate(named.items())}
    found = recovered(image, settings)
    with mock.patch.object(recovery, "walk_runs", one_batch_at_a_time):
        expected = recovered(image, settings)
    assert found == expected
    return found[1]


class Writers:
    """Idempotent and transactional producers that take turns, and what they write."""

    def __init__(self, generator: random.Random, offset: int) -> None:
        self._generator = generator
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self.offset = offset
        self.leader_epoch = generator.choice([0, 0, 3])

    def next(self) -> bytes:
        generator = self._generator
        kind = generator.randrange(14)
        count = generator.choice([1, 1, 1, 2, 7])
        producer = generator.randrange(4)
        if generator.random() < 0.1:
            self.offset += generator.choice([1, 5, 2**20])
        if generator.random() < 0.05:
            self.leader_epoch += 1
        if kind == 0:
            self._epochs[producer] = self._epochs.get(producer, 0) + generator.choice([1, 1, -1])
        epoch = max(self._epochs.get(producer, 0), 0)
        if kind == 1:
            count = 1
            batch = message(self.offset, b"old", magic=generator.randrange(2), timestamp=TIME)
        elif kind in (2, 3, 4):
            count = 1
            type_ = generator.choice(
                [ControlRecordType.ABORT, ControlRecordType.COMMIT, ControlRecordType.LEADER_CHANGE]
            )
            batch = marker(self.offset, producer, epoch, EndTransactionMarker(type_, generator.randrange(3)))
            if generator.random() < 0.1:
                batch = build_batch(
                    [],
                    base_offset=self.offset,
                    last_offset=self.offset,
                    producer_id=producer,
                    producer_epoch=epoch,
                    is_transactional=True,
                    is_control=True,
                )
        elif kind in (5, 6):
            batch = small_batch(self.offset, count, size=generator.choice([0, 300, 5000]))
        else:
            sequence = self._sequences.get(producer, generator.choice([0, 2**31 - 3]))
            self._sequences[producer] = (sequence + count) % 2**31
            batch = small_batch(
                self.offset,
                count,
                codec=generator.choice(["none"] * 6 + ["lz4"]),
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=sequence,
                is_transactional=generator.random() < 0.7,
            )
        if batch[16] == 2:
            batch = tampered(batch, leader_epoch=self.leader_epoch)
            if generator.random() < 0.1:
                batch = tampered(batch, max_timestamp=generator.choice([-1, TIME + 10**6, 2**62, -5]))
        self.offset += count
        return batch


def written(generator: random.Random) -> dict[int, bytes]:
    writers = Writers(generator, generator.choice([0, 0, 11, 2**33]))
    segments = {}
    for _ in range(generator.choice([1, 1, 2, 3])):
        base = writers.offset
        segments[base] = b"".join(writers.next() for _ in range(generator.choice([0, 1, 5, 30, 120])))
    return segments


def damage(segments: dict[int, bytes], generator: random.Random) -> None:
    base = generator.choice([*segments])
    changed = bytearray(segments[base])
    if not changed:
        return
    at = generator.randrange(len(changed))
    match generator.randrange(4):
        case 0:
            changed[at] ^= 1 << generator.randrange(8)
        case 1:
            changed[at:] = b""
        case 2:
            changed[at : at + 300] = bytes(len(changed[at : at + 300]))
        case _:
            del changed[at : at + generator.randrange(1, 80)]
    segments[base] = bytes(changed)


def test_random_logs(seed: int) -> None:
    generator = random.Random(seed)
    scanned = 0
    for _ in range(LOGS):
        segments = written(generator)
        for _ in range(generator.choice([0, 0, 1, 2])):
            damage(segments, generator)
        others = {LEADER_EPOCHS: b"0\n1\n0 0\n"} if generator.random() < 0.3 else {}
        if generator.random() < 0.3:
            others[f"{min(segments):020d}.txnindex"] = TXN_BYTES
        report = assert_alike(
            segments,
            others,
            index_interval_bytes=generator.choice([0, 100, 700, 4096]),
            segment_index_bytes=generator.choice([60, 240, 1 << 20]),
            durability=generator.choice(["sync", "os"]),
        )
        scanned += report.batches_scanned
    assert scanned > LOGS


def transactions() -> bytes:
    owned: dict[str, Any] = {"producer_epoch": 0, "is_transactional": True}
    return b"".join(
        (
            small_batch(0, 1, producer_id=7, base_sequence=0, **owned),
            small_batch(1, 2, producer_id=8, base_sequence=0, **owned),
            marker(3, 7, 0, EndTransactionMarker(ControlRecordType.ABORT, 0)),
            small_batch(4, 1, producer_id=8, base_sequence=2, **owned),
            marker(5, 8, 0, EndTransactionMarker(ControlRecordType.COMMIT, 0)),
        )
    )


def test_every_flipped_bit() -> None:
    data = bytearray(transactions())
    for position in range(0, len(data), ONE_IN):
        for bit in range(8):
            data[position] ^= 1 << bit
            assert_alike({0: bytes(data)}, index_interval_bytes=100)
            data[position] ^= 1 << bit


def test_every_cut() -> None:
    data = transactions()
    for size in range(0, len(data) + 1, ONE_IN):
        assert_alike({0: data[:size]}, index_interval_bytes=100)


def test_batches_of_one_fill_pages_of_the_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many entries are stored at once, and both indexes grow several times."""
    data = b"".join(small_batch(number, 1) for number in range(3_000))
    assert_alike({0: data}, index_interval_bytes=0)
    monkeypatch.setattr(recovery, "CHUNK_BYTES", 5_000)
    assert_alike({0: data}, index_interval_bytes=0)
    assert_alike({0: data[:9_000] + bytes(40) + data[9_000:]}, index_interval_bytes=0)


@pytest.mark.parametrize(
    "offsets", [lambda number: number, lambda number: 2**31 - 40 + 20 * number], ids=["near", "far"]
)
def test_offsets_that_indexes_cannot_hold(offsets: Callable[[int], int]) -> None:
    data = small_batch(0, 1) + b"".join(small_batch(1 + offsets(number), 1) for number in range(20))
    assert_alike({0: data}, index_interval_bytes=0)
