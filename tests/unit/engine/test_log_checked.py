"""Lookups in batches that were checked before: they give what an uncached lookup gives, and read less."""

from __future__ import annotations

import random
import shutil
import threading
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.config import CompressionType
from kstore.errors import CorruptBatchError, CorruptDataError, CorruptRecordError, OffsetOutOfRangeError
from kstore.files.local import OsFile
from kstore.log import Log, reads_of
from kstore.record._codec import Record
from kstore.record._runs import CheckedBatches, CheckedMemory
from kstore.record.batch import ATTRIBUTE_CODEC, BATCH_HEADER_BYTES, CODEC_NAMES, batch_crc
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS_BY_NAME
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import FIRST, marker
from tests.support.lives.log_helpers import TIME

ROUNDS = tries(200, quick=12)
FLIPS = tries(1000, quick=60)
PIECE_BYTES_MAX = 16 << 10
# A batch that a lookup keeps: 200 records, of which a piece holds 50.
LARGE = [b"%03d" % number + b"." * 300 for number in range(200)]
CODECS = [name for name in CODEC_NAMES if name != "none"]


def large_log(path: Path, batch_count: int = 4, **settings: Any) -> Log:
    log = Log(path, durability="os", **settings)
    for _ in range(batch_count):
        log.append_many(LARGE)
    return log


def kept(log: Log) -> CheckedBatches:
    checked = reads_of(log).source.context.checked
    assert checked is not None
    return checked


def plain_view(path: Path) -> Log:
    """A read-only log whose lookups keep nothing."""
    view = Log(path, read_only=True)
    source: Any = reads_of(view).source
    source.context = source.context._replace(checked=None)
    return view


def found(log: Log, offset: int) -> object:
    """The record, None, or the error's text."""
    try:
        return log.get(offset)
    except (CorruptDataError, OffsetOutOfRangeError) as error:
        return type(error), str(error)


def some_batch(chance: random.Random, base_offset: int) -> bytes:
    """A batch of any kind, at least as large as one that is kept, or empty."""
    count = chance.choice([1, 3, 200, 900])
    size_max = chance.choice([60, 400, 3000]) if count > 3 else 60_000
    wanted = range(base_offset, base_offset + count)
    if chance.random() < 0.4:
        wanted = [at for at in wanted if chance.random() < 0.6]  # type: ignore[assignment]  # as after a compaction
    headers = chance.choice([[], [], [("h", b"x" * 20), ("", None)]])
    records = [
        Record(
            at,
            TIME + at % 7,
            key=chance.choice([None, b"k%d" % at]),
            value=chance.choice([None, b"v" * size_max, chance.randbytes(chance.randrange(size_max))]),
            headers=headers,
        )
        for at in wanted
    ]
    fields: dict[str, Any] = {"leader_epoch": chance.randrange(3)}
    if chance.random() < 0.2:
        fields["log_append_time"] = TIME + 5
    if chance.random() < 0.2:
        fields["delete_horizon_ms"] = TIME + 9
    if chance.random() < 0.3:
        fields |= {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    return build_batch(
        records,
        base_offset=base_offset,
        last_offset=base_offset + count - 1,
        codec=chance.choice(["none", *CODEC_NAMES]),
        **fields,
    )


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of each read of a ``.log``."""
    noted: list[int] = []
    pread = OsFile.pread

    def note(self: OsFile, size: int, position: int) -> bytes:
        if self.path.endswith(".log"):
            noted.append(size)
        return pread(self, size, position)

    monkeypatch.setattr(OsFile, "pread", note)
    return noted


# --- the same records ---------------------------------------------------------------------------------------------


def test_lookups_of_any_batches_give_what_uncached_lookups_give(tmp_path: Path, seed: int) -> None:
    kept_count = 0
    for number in range(ROUNDS):
        chance = random.Random(f"{seed} {number}")
        path = tmp_path / f"{number}"
        interval = chance.choice([0, 4096, 1 << 20])
        memory = CheckedMemory(chance.choice([8 << 20, 300_000, 20_000]), chance.random() < 0.7)
        with Log(path, durability="os", index_interval_bytes=interval, _checked=memory) as log:
            for _ in range(chance.randrange(1, 8)):
                log.append_batches(some_batch(chance, log.end_offset + chance.choice([0, 0, 3])), assign_offsets=False)
                if chance.random() < 0.2:
                    log.append_batches(marker(5, log.end_offset, commit=False), assign_offsets=False)
                if chance.random() < 0.2:
                    log.roll()
            with plain_view(path) as plain, Log(path, read_only=True) as view:
                offsets = chance.choices(range(log.end_offset), k=60)
                expected = {offset: found(plain, offset) for offset in offsets}
                for offset in offsets:
                    assert found(log, offset) == found(view, offset) == expected[offset]
                    memory.check()
                assert dict(log.metrics())["reads"] == len(offsets)
                assert dict(log.metrics())["read_bytes"] == dict(view.metrics())["read_bytes"]
            kept_count += len(kept(log))
        shutil.rmtree(path)
    assert kept_count > ROUNDS // 2


@pytest.mark.parametrize("has_instruction", [True, False])
def test_a_batch_that_is_larger_than_a_checksum_without_the_interpreters_lock_is_divided(
    has_instruction: bool, tmp_path: Path
) -> None:
    memory = CheckedMemory(8 << 20, has_instruction)
    values = [b"%d" % number + b"." * (number % 2000) for number in range(1500)]
    values[700] = b"x" * 100_000
    with Log(tmp_path / "log", durability="os", max_message_bytes=4 << 20, _checked=memory) as log:
        log.append_many(values)
        log.append_many(values)
        for offset in [0, 3000 - 1, 700, 699, 701, 1499, 1500, *range(0, 3000, 77)] * 2:
            record = log.get(offset)
            assert record is not None
            assert record.value == values[offset % 1500]
        assert len(kept(log)) == 2


def test_pieces_hold_whole_records_and_cover_the_batch() -> None:
    values = [b"." * size for size in (10, 20_000, 30, 15_400, 100, *range(0, 3000, 7))]
    data = build_batch([Record(at, TIME, value=value) for at, value in enumerate(values)])
    memory = CheckedMemory(1 << 20)
    checked = CheckedBatches(memory)
    tally = array("q", [0, 0, 0])
    contents = object()
    assert checked.record_at(data, 0, 3, tally, contents, 77, 99) is not None
    assert checked.find(object(), 77) is None
    assert checked.find(contents, 78) is None
    batch = checked.find(contents, 77)
    assert batch is not None
    assert (batch.position, batch.size, batch.last_offset) == (99, len(data), len(values) - 1)
    assert sum(batch.piece_sizes) == len(data) - BATCH_HEADER_BYTES
    (largest,) = [size for size in batch.piece_sizes if size > PIECE_BYTES_MAX]
    assert largest < 20_020
    # Nearly as few as there can be.
    assert len(batch.piece_sizes) <= 3 + len(data) // 15_000 + 2


# --- fewer bytes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("size", [100, 1000])
def test_a_second_lookup_reads_a_header_and_a_piece(
    read_only: bool, size: int, tmp_path: Path, reads: list[int]
) -> None:
    with Log(tmp_path / "log", durability="os") as log, Log(log.path, read_only=True) as view:
        for _ in range(4):
            log.append_many([b"x" * size] * 1000)
        reader = view if read_only else log
        for offset in range(0, 4000, 1000):
            assert reader.get(offset + 5) is not None
        for offset in range(0, 4000, 31):
            reads.clear()
            assert reader.get(offset) is not None
            assert len(reads) <= 2
            assert sum(reads) <= PIECE_BYTES_MAX + BATCH_HEADER_BYTES


def test_a_second_lookup_of_a_batch_between_small_ones_reads_a_piece(tmp_path: Path, reads: list[int]) -> None:
    """There is no index entry that leads to it."""
    with Log(tmp_path / "log", durability="os", index_interval_bytes=1 << 20) as log:
        log.append(b"small")
        log.append_many([b"x" * 1000] * 100)
        log.append(b"small")
        for _ in range(2):
            reads.clear()
            assert [log.get(offset) for offset in range(102)] == list(log.read())
        assert max(reads[:200]) <= PIECE_BYTES_MAX + BATCH_HEADER_BYTES
        assert len(kept(log)) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_batch_is_decompressed_once(codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with large_log(tmp_path / "log", compression_type=codec) as log:
        expected = list(log.read())
        for offset in (3, 203, 403, 603):
            log.get(offset)
        monkeypatch.setattr("kstore.record.batch.RecordBatch.payload", None)
        assert [log.get(offset) for offset in range(800)] == expected


def test_scans_neither_fill_nor_use_it(tmp_path: Path, reads: list[int]) -> None:
    with large_log(tmp_path / "log", 2) as log:
        assert len(list(log.read())) == 400
        assert len(list(log.read(5, 6))) == 1
        assert len(list(log.read_values())) == 400
        assert len(log.tail(5)) == 5
        assert len(kept(log)) == 0
        log.get(5)
        assert len(kept(log)) == 1
        reads.clear()
        assert len(list(log.read(5, 6))) == 1
        assert max(reads) > 200 * 300


def test_a_small_plain_batch_is_not_kept(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many([b"x" * 100] * 100)
        assert log.get(5) == log.get(5)
        assert len(kept(log)) == 0


# --- what changes between two lookups -------------------------------------------------------------------------------


def poke(path: Path, position: int, mask: int) -> None:
    """Flips bits of one byte, in place."""
    with path.open("r+b", buffering=0) as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ mask]))


@pytest.mark.promise("damage below")
@pytest.mark.parametrize("codec", ["uncompressed", *CODECS])
def test_a_byte_flipped_between_two_lookups_is_told_as_an_uncached_lookup_tells_it(
    codec: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(f"{seed} {codec}")
    # A read-only log may take damage in its last batch for an end: that one stays whole.
    with large_log(tmp_path / "log", 4, compression_type=codec):
        pass
    path = tmp_path / "log" / FIRST
    content = path.read_bytes()
    size = len(content) // 4
    with Log(path.parent, read_only=True) as log, plain_view(path.parent) as plain:
        for number in range(FLIPS):
            first, at = 200 * chance.randrange(3), chance.randrange(200)
            start = size * first // 200
            if number % 3 == 0:
                position = start + chance.randrange(BATCH_HEADER_BYTES)
            elif codec == "uncompressed":
                position = content.index(LARGE[at], start) + chance.randrange(300)
            else:
                position = start + chance.randrange(size)
            assert isinstance(found(log, first), Record)
            poke(path, position, mask := 1 << chance.randrange(8))
            for offset in (first + at, *chance.sample(range(600), 5)):
                given, expected = found(log, offset), found(plain, offset)
                if codec != "uncompressed" or number % 3 == 0 or offset == first + at:
                    assert given == expected
                    is_in_header = position < start + BATCH_HEADER_BYTES
                    assert isinstance(given, tuple) or is_in_header or not first <= offset < first + 200
                else:
                    # Another piece may have it: then this one is read and checked without the damage.
                    assert given == expected or (isinstance(given, Record) and given.value == LARGE[offset % 200])
            poke(path, position, mask)


def test_a_flip_in_a_large_compressed_batch_is_never_served(tmp_path: Path, seed: int) -> None:
    """Of its bytes only the header is read again."""
    values = [random.Random(number).randbytes(500) for number in range(200)]
    with Log(tmp_path / "log", durability="os", compression_type="lz4") as log:
        log.append_many(values)
        plain = plain_view(log.path)
        path, record = log.path / FIRST, log.get(7)
        assert record is not None
        assert path.stat().st_size > 90_000
        poke(path, 50_000, 1)
        assert log.get(7) == record
        with pytest.raises(CorruptBatchError):
            plain.get(7)
        poke(path, 30, 1)
        with pytest.raises(CorruptBatchError):
            log.get(7)
        # It is no longer kept, so that all of it is read.
        poke(path, 30, 1)
        with pytest.raises(CorruptBatchError):
            log.get(7)
        poke(path, 50_000, 1)
        assert log.get(7) == record


def rewrite(chance: random.Random, count: int) -> list[bytes]:
    """Values as long as those of LARGE, of other bytes."""
    return [chance.randbytes(303) for _ in range(count)]


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_lookups_after_a_truncation_find_what_was_written_since(codec: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with large_log(tmp_path / "log", 3, compression_type=codec) as log, Log(log.path, read_only=True) as view:
        for offset in range(0, 600, 50):
            assert log.get(offset) == view.get(offset)
        for cut in (450, 200, 0):
            log.truncate_to(cut)
            with pytest.raises(OffsetOutOfRangeError):
                log.get(cut)
            while log.end_offset < 600:
                log.append_many(rewrite(chance, 200))
            for offset in range(0, 600, 50):
                assert log.get(offset) == next(log.read(offset, offset + 1), None) == found(view, offset)


def test_lookups_after_a_compaction_find_what_it_left(tmp_path: Path) -> None:
    with large_log(tmp_path / "log", 0, cleanup_policy="compact") as log, Log(log.path, read_only=True) as view:
        for number in range(3):
            log.append_many(LARGE, keys=[b"%d" % (at % (50 + 70 * number)) for at in range(200)])
        log.roll()
        log.append(b"last", key=b"last")
        for _ in range(2):
            for offset in range(600):
                assert log.get(offset) == view.get(offset) == next(log.read(offset, offset + 1), None)
            log.compact()
        assert log.get(5) is None
        log.delete_records(250)
        for reader in (log, view):
            with pytest.raises(OffsetOutOfRangeError):
                reader.get(249)


def test_lookups_in_a_segment_that_another_program_replaced_find_the_new_one(tmp_path: Path) -> None:
    """A broker's cleaner gives the name to another file."""
    with large_log(tmp_path / "log", 2) as log:
        log.roll()
        log.append(b"last")
    with Log(log.path, read_only=True) as view:
        first = view.get(5)
        new = build_batch([Record(at, TIME, value=b"new" + value) for at, value in enumerate(LARGE)])
        path = log.path / FIRST
        path.with_suffix(".new").write_bytes(new + path.read_bytes()[len(new) :])
        old = path.read_bytes()
        for content in (new + old[len(old) // 2 :], old):
            path.with_suffix(".new").write_bytes(content)
            path.with_suffix(".new").replace(path)
            record = view.get(5)
            assert record is not None
            assert record.value == (LARGE[5] if content == old else b"new" + LARGE[5])
        assert view.get(5) == first


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_lookups_in_a_file_that_was_overwritten_find_what_it_has_now(codec: str, tmp_path: Path, seed: int) -> None:
    """As a broker that truncates and continues: nothing tells a reader but the bytes."""
    chance = random.Random(seed)
    with large_log(tmp_path / "log", 2, compression_type="uncompressed") as log:
        pass
    path = log.path / FIRST
    with Log(log.path, read_only=True) as view, plain_view(log.path) as plain:
        for number in range(6):
            for offset in chance.sample(range(400), 10):
                assert found(view, offset) == found(plain, offset)
            first = build_batch(
                [Record(at, TIME, value=value) for at, value in enumerate(rewrite(chance, 200))],
                codec=codec if number % 2 else "none",
            )
            path.write_bytes(first + path.read_bytes()[len(first) :])


def test_a_reopened_log_checks_again(tmp_path: Path, reads: list[int]) -> None:
    with large_log(tmp_path / "log") as log:
        log.get(5)
    with Log(log.path) as log:
        reads.clear()
        log.get(5)
        assert max(reads) > 200 * 300


def test_a_batch_whose_records_do_not_fit_together_is_as_without_the_cache(tmp_path: Path) -> None:
    """Its CRC is right: a faulty program wrote it so."""
    records = [Record(at, TIME, value=value) for at, value in enumerate(LARGE)]
    sound = build_batch(records)
    records_of_it = sound[BATCH_HEADER_BYTES:]
    for codec in ("none", "lz4"):
        for payload in (records_of_it[:-1], records_of_it + b"x", b"\x7f" + records_of_it[1:]):
            path = tmp_path / f"{codec}-{len(list(tmp_path.iterdir()))}"
            with Log(path, durability="os") as log:
                log.append(b"")
            (path / FIRST).write_bytes(batch_with(sound, payload, codec))
            for suffix in (".index", ".timeindex"):
                (path / FIRST).with_suffix(suffix).unlink(missing_ok=True)
            (path / "kstore.state").unlink()
            with Log(path, read_only=True) as view, plain_view(path) as plain:
                for offset in (0, 0, 150, 199, 199):
                    assert found(view, offset) == found(plain, offset)


def batch_with(header: bytes, payload: bytes, codec: str) -> bytes:
    """A batch of these records, however they are, with a right CRC."""
    known = CODECS_BY_NAME[codec]
    data = bytearray(header[:BATCH_HEADER_BYTES] + known.compress(payload, None))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[22] = data[22] & ~ATTRIBUTE_CODEC | known.id
    data[17:21] = batch_crc(memoryview(data)[21:]).to_bytes(4, "big")
    return bytes(data)


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_what_is_kept_stays_within_its_bound(codec: CompressionType, tmp_path: Path) -> None:
    memory = CheckedMemory(400_000)
    with Log(tmp_path / "log", durability="os", compression_type=codec, _checked=memory) as log:
        count = 1000 if codec == "uncompressed" else 20
        for _ in range(count):
            log.append_many(LARGE)
        log.get(0)
        tracemalloc.start()
        try:
            for offset in range(0, 200 * count, 200):
                log.get(offset)
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        memory.check()
        assert 200_000 < memory.size <= 400_000
        assert taken < 500_000


def test_the_batch_that_was_used_last_stays(tmp_path: Path, reads: list[int]) -> None:
    memory = CheckedMemory(3 * 1000)
    with large_log(tmp_path / "log", 30, _checked=memory) as log:
        for offset in range(0, 6000, 200):
            log.get(7)
            log.get(offset)
        reads.clear()
        log.get(7)
        assert sum(reads) <= PIECE_BYTES_MAX + BATCH_HEADER_BYTES
        assert 1 < len(kept(log)) < 6


def test_a_batch_that_would_take_most_of_the_memory_is_not_kept(tmp_path: Path) -> None:
    memory = CheckedMemory(100_000)
    with large_log(tmp_path / "log", 1, compression_type="lz4", _checked=memory) as log:
        assert log.get(5) == log.get(5) == next(log.read(5))
        assert memory.size == 0


def test_a_closed_log_keeps_nothing(tmp_path: Path) -> None:
    memory = CheckedMemory(1 << 20)
    with large_log(tmp_path / "a", _checked=memory) as one, large_log(tmp_path / "b", _checked=memory) as other:
        one.get(5)
        other.get(5)
        checked, held = kept(one), memory.size
        one.close()
        assert len(checked) == 0
        assert memory.size == held // 2
        memory.check()
        # A lookup that is under way.
        data = build_batch([Record(at, TIME, value=value) for at, value in enumerate(LARGE)])
        assert checked.record_at(data, 0, 5, array("q", [0, 0, 0]), object(), 0, 0) is not None
        assert len(checked) == 0
    assert memory.size == 0


def test_a_dropped_log_keeps_nothing() -> None:
    memory = CheckedMemory(1 << 20)
    checked = CheckedBatches(memory)
    data = build_batch([Record(at, TIME, value=value) for at, value in enumerate(LARGE)])
    checked.record_at(data, 0, 5, array("q", [0, 0, 0]), object(), 0, 0)
    assert memory.size
    del checked
    assert memory.size == 0
    memory.check()


@pytest.mark.parametrize("read_only", [False, True])
def test_the_logs_of_a_store_share_the_memory(read_only: bool, tmp_path: Path) -> None:
    with kstore.open(tmp_path / "store", durability="os") as store:
        store.create_topic("orders", 3)
        for partition in range(3):
            store.log("orders", partition).append_many(LARGE)
    with kstore.open(tmp_path / "store", read_only=read_only, durability="os") as store:
        logs = [store.log("orders", partition) for partition in range(3)]
        for log in logs:
            log.get(5)
        memory = store._topics.logs._checked
        assert memory.size_max == 8 << 20
        assert memory.size == sum(3 * [memory.size // 3]) > 0
        memory.check()
    assert memory.size == 0


# --- threads --------------------------------------------------------------------------------------------------------


def test_lookups_of_many_threads_find_their_records(tmp_path: Path, seed: int) -> None:
    """While batches are kept, evicted, and cut."""
    memory = CheckedMemory(12_000)
    with large_log(tmp_path / "log", 40, segment_bytes=500_000, _checked=memory) as log:
        failures: list[object] = []

        def look_up(number: int) -> None:
            chance = random.Random(f"{seed} {number}")
            for _ in range(tries(5000, quick=400)):
                offset = chance.randrange(6000)
                record = log.get(offset)
                if record is None or record.offset != offset or record.value != LARGE[offset % 200]:
                    failures.append((offset, record))

        threads = [threading.Thread(target=look_up, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            log.truncate_to(7000)
            log.append_many(LARGE)
            memory.check()
        for thread in threads:
            thread.join()
        assert failures == []
        memory.check()


# --- the compiled part alone ----------------------------------------------------------------------------------------


class Bytes:
    """Bytes as a file, which may change between two reads."""

    def __init__(self, data: bytes, then: bytes | None = None) -> None:
        self._data, self._then = data, data if then is None else then

    def pread(self, size: int, position: int) -> bytes:
        got, self._data = self._data[position : position + size], self._then
        return got


@pytest.mark.promise("hostile file")
def test_bytes_that_are_not_those_that_were_checked_are_refused(seed: int) -> None:
    """Whatever they are: other ones, fewer, or changed between the reads of header and piece."""
    chance = random.Random(seed)
    tally = array("q", [0, 0, 0])
    for codec in ("none", "lz4"):
        data = build_batch([Record(at, TIME, value=value) for at, value in enumerate(LARGE)], codec=codec)
        checked, contents = CheckedBatches(CheckedMemory(1 << 20)), object()
        if codec == "none":
            checked.record_at(data, 0, 0, tally, contents, 0, 0)
        else:
            payload = build_batch([Record(at, TIME, value=value) for at, value in enumerate(LARGE)])[61:]
            checked.keep_payload(data, 0, payload, contents, 0, 0)
        batch = checked.find(contents, 0)
        assert batch is not None
        for _ in range(tries(20_000, quick=1_500)):
            offset = chance.randrange(200)
            position, mask = chance.randrange(len(data)), 1 << chance.randrange(8)
            changed = data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
            source = chance.choice([
                Bytes(changed), Bytes(data[:position]), Bytes(data, changed), Bytes(data),
            ])  # fmt: skip
            try:
                record = batch.record(source, offset, tally)
            except CorruptRecordError:
                continue
            assert record is not None
            assert (record.offset, record.value) == (offset, LARGE[offset])
        with pytest.raises(CorruptRecordError):
            batch.record(Bytes(data), 200, tally)
        with pytest.raises(CorruptRecordError):
            batch.record(Bytes(data), -1, tally)
    with pytest.raises(TypeError):
        CheckedBatches(CheckedMemory(1)).drop(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no header at byte 5"):
        checked.keep_payload(b"short", 5, b"", None, 0, 0)
