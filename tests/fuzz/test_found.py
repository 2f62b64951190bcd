"""What fuzzing found, each reduced to its smallest case."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

from kstore.errors import CorruptRecordError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS_BY_NAME
from kstore.record.scan import BufferSource, find_next_batch, parse_batches
from kstore.record.walk import Damage, walk
from tests.support.oracles.oracle_legacy import message, wrapper

pytestmark = pytest.mark.promise("hostile file")

SEGMENT = "00000000000000000000.log"
LIMIT = 64 << 10


def batch(offset: int, count: int = 1, value: bytes = b"v") -> bytes:
    return build_batch([Record(offset + number, 1, value=value) for number in range(count)])


def directory(path: Path, **files: bytes) -> Path:
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def broken_set(offset: int) -> bytes:
    """A compressed message set with a good CRC and invalid content."""
    return wrapper([b"not a message"], offset=offset, codec="gzip")


def test_a_set_that_cannot_be_decompressed_costs_only_itself(tmp_path: Path) -> None:
    path = directory(tmp_path / "log", **{SEGMENT: message(0, b"a") + broken_set(3) + batch(4)})
    with Log(path, read_only=True) as log:
        reader = log.read(on_corrupt="skip")
        assert [record.offset for record in reader] == [0, 4]
        assert [(lost.first, lost.last) for lost in reader.corrupt] == [(1, 3)]
    with Log(path) as log:
        assert [record.offset for record in log.read(on_corrupt="skip")] == [0, 4]


def test_the_search_after_damage_may_meet_such_a_set() -> None:
    data = bytes(30) + broken_set(3) + batch(4)
    steps = list(walk(BufferSource(data), 0, len(data), next_offset=0))
    assert isinstance(steps[0], Damage)
    assert steps[0].next_offset == 3


def test_messages_of_a_set_do_not_take_the_offsets_of_others(tmp_path: Path) -> None:
    # Old producers write offset 0: the inner offsets count.
    inner = [message(offset, b"inner") for offset in (0, 1, 2**40)]
    path = directory(tmp_path / "log", **{SEGMENT: wrapper(inner, offset=0, codec="gzip") + batch(1, 2)})
    with Log(path, read_only=True) as log:
        assert [record.offset for record in log.read()] == [0, 1, 2]


def test_a_set_whose_messages_lie_after_its_end_hides_nothing(tmp_path: Path) -> None:
    data = wrapper([message(2**40, b"inner")], offset=0, codec="gzip") + batch(1, 2)
    path = directory(tmp_path / "log", **{SEGMENT: data})
    with Log(path, read_only=True) as log:
        assert [record.offset for record in log.read()] == [1, 2]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_after_its_sets_offset_is_damage(magic: int) -> None:
    (found,) = parse_batches(wrapper([message(9, b"v", magic=magic)], offset=3, codec="gzip", magic=magic))
    with pytest.raises(CorruptRecordError, match="wrapper offset of 3"):
        found.records()


def test_an_index_entry_after_the_end_is_no_hint(tmp_path: Path) -> None:
    data = batch(0) + bytes(40) + batch(2)
    path = directory(
        tmp_path / "log", **{SEGMENT: data, "00000000000000000000.index": struct.pack(">ii", 1, 2**31 - 1)}
    )
    with Log(path, read_only=True) as log:
        assert [record.offset for record in log.read(on_corrupt="skip")] == [0, 2]
    assert find_next_batch(BufferSource(data), 60, len(data), next_offset=1, hints=[10**9]) == len(data) - len(batch(2))


def test_a_batch_that_reaches_into_the_next_segment_is_not_served(tmp_path: Path) -> None:
    path = directory(tmp_path / "log", **{SEGMENT: batch(0, 9), "00000000000000000004.log": batch(4, 2, b"other")})
    with Log(path, read_only=True) as log:
        for start in (0, 4):
            found = {record.offset: record.value for record in log.read(start, on_corrupt="skip")}
            assert found == {4: b"other", 5: b"other"}


@pytest.mark.parametrize("bit", [31, 40, 61])
def test_an_offset_too_far_for_its_segment_is_damage(bit: int, tmp_path: Path) -> None:
    flipped = struct.pack(">q", 1 | 1 << bit) + batch(1)[8:]
    path = directory(tmp_path / "log", **{SEGMENT: batch(0) + flipped})
    with Log(path, read_only=True) as log:
        assert [record.offset for record in log.read(on_corrupt="skip")] == [0]
    with Log(path) as log:
        assert log.append(b"next") == 1


def test_a_file_named_by_the_greatest_offset_is_no_segment(tmp_path: Path) -> None:
    path = directory(tmp_path / "log", **{SEGMENT: batch(0), "09223372036854775807.log": batch(0)})
    with Log(path) as log:
        assert log.recovery.ignored == ["09223372036854775807.log"]
        assert log.append(b"next") == 1


def test_a_damaged_epoch_checkpoint_keeps_no_log_from_opening(tmp_path: Path) -> None:
    path = directory(tmp_path / "log", **{SEGMENT: batch(0), "leader-epoch-checkpoint": b"0\nmany\n"})
    with Log(path) as log:
        assert [record.offset for record in log.read()] == [0]
        assert any("leader-epoch-checkpoint" in note for note in log.recovery.notes)


def test_a_snapshot_of_another_version_is_passed_over(tmp_path: Path) -> None:
    path = directory(tmp_path / "log", **{SEGMENT: batch(0), "00000000000000000001.snapshot": b"\0\2" + bytes(8)})
    with Log(path, read_only=True) as log:
        assert log.last_stable_offset == 1


def test_a_time_is_looked_up_past_a_damaged_batch(tmp_path: Path) -> None:
    broken = wrapper([b"not a message"], offset=3, codec="gzip", timestamp=60)
    path = directory(tmp_path / "log", **{SEGMENT: broken + build_batch([Record(5, 99, value=b"late")])})
    with Log(path, read_only=True) as log:
        assert log.offset_for_time(50) == 5


@pytest.mark.parametrize("codec", ["lz4", "zstd", "gzip", "snappy"])
def test_a_bomb_takes_no_more_memory_than_the_limit(codec: str) -> None:
    row = CODECS_BY_NAME[codec]
    bomb = row.compress(bytes(8 << 20), None)
    if codec == "lz4":
        from lz4 import frame

        bomb = frame.compress(bytes(8 << 20), block_size=frame.BLOCKSIZE_MAX4MB, block_linked=False)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match=f"more than {LIMIT} bytes"):
            row.decompress(bomb, LIMIT, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) + 16 * LIMIT


@pytest.mark.parametrize(("at", "offsets"), [(8, [0]), (-1, [0, 2])], ids=["size", "record"])
def test_a_reader_that_looks_again_sees_the_same_end(tmp_path: Path, at: int, offsets: list[int]) -> None:
    # An index names a whole batch after damage, and what follows contradicts it. The damaged batch may confirm it.
    flipped = bytearray(batch(1))
    flipped[at] ^= 1
    data = batch(0) + bytes(flipped) + batch(2) + batch(0)
    index = struct.pack(">ii", 2, 2 * len(batch(0)))
    path = directory(tmp_path / "log", **{SEGMENT: data, "00000000000000000000.index": index})
    with Log(path, read_only=True) as log:
        first = [record.offset for record in log.read(on_corrupt="skip")]
        assert log.end_offset == offsets[-1] + 1
        assert [record.offset for record in log.read(on_corrupt="skip")] == first == offsets


def test_a_reader_finds_times_that_the_writer_has_not_indexed_yet(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", index_interval_bytes=4000) as writer:
        for number in range(9):
            writer.append_many([bytes(1500)], timestamps=[1_700_000_000_000 + number])
            with Log(tmp_path / "log", read_only=True) as log:
                assert log.offset_for_time(1_700_000_000_000 + number) == number
                assert log.offset_for_time("max_timestamp") == number
