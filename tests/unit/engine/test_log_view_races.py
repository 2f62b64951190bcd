"""A log opened for reading; its writer truncates and appends between any two operations of the reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import OffsetOutOfRangeError
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.types import ISOLATION_LEVELS, Durability, IsolationLevel
from tests.support.fakes.meddling_fs import MeddlingFs
from tests.support.harness.evidence import Hung

OPERATIONS_MAX = 500


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("durability", ["sync", "interval"])
@pytest.mark.parametrize("is_open", [True, False], ids=["refresh", "open"])
@pytest.mark.parametrize("size_new", [10, 400])
@pytest.mark.sampled(3)
def test_a_truncation_between_any_two_operations_of_a_reader_is_no_damage(
    durability: Durability, is_open: bool, size_new: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in range(OPERATIONS_MAX):
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with Log(path, durability=durability, index_interval_bytes=0) as writer:
            for count in range(3):
                writer.append(b"old %d" % count)
            view = Log(path, read_only=True, fs=fs) if is_open else None
            if view is not None:
                assert len(list(view.read())) == 3
            writer.append(b"old 3" * 20)

            def rewrite(writer: Log = writer) -> None:
                writer.truncate_to(2)
                writer.append_many([b"new".ljust(size_new), b"new"])

            fs.before(number, rewrite)
            view = view or Log(path, read_only=True, fs=fs)
            list(view.read())
            if not fs.is_past():
                view.close()
                tried("states", number)
                return
            expected = [b"old 0", b"old 1", b"new".ljust(size_new), b"new"]
            assert [record.value for record in view.read()] == expected, f"before operation {number}"
            assert view.end_offset == 4
            view.close()
    raise Hung(f"more than {OPERATIONS_MAX} operations")


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("is_beside", [True, False], ids=["view", "writer"])
def test_a_read_across_a_truncation_passes_over_no_offset(
    is_beside: bool, first: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in range(OPERATIONS_MAX):
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with Log(path, durability="os", index_interval_bytes=0, fs=fs) as writer:
            for _ in range(4):
                writer.append(b"o" * 27)

            def rewrite(writer: Log = writer) -> None:
                writer.truncate_to(1)
                # Two records in the bytes of the old one: offset 3 is where offset 2 was.
                writer.append_many([b"n" * 10, b"n" * 10])
                writer.append(b"n" * 27)
                writer.append(b"n" * 27)

            log = Log(path, read_only=True, fs=fs) if is_beside else writer
            reader = log.read(first)
            offsets = [next(reader).offset]
            fs.before(number, rewrite)
            offsets += [record.offset for record in reader]
            is_past = fs.is_past()
            if is_beside:
                log.close()
            assert offsets == list(range(first, max(offsets[-1] + 1, 4))), f"before operation {number}"
            if not is_past:
                tried("states", number)
                return
    raise Hung(f"more than {OPERATIONS_MAX} operations")


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
# With five, the end of the old history is within the new batch, which begins before the old ones.
@pytest.mark.parametrize(("count", "value"), [(3, b"n" * 300), (5, b"n")], ids=["three-long", "five-short"])
@pytest.mark.parametrize("is_beside", [True, False], ids=["view", "writer"])
def test_a_slice_across_a_truncation_meets_no_damage(
    is_beside: bool,
    count: int,
    value: bytes,
    isolation_level: IsolationLevel,
    tmp_path: Path,
    tried: Callable[[str, int], None],
) -> None:
    open_transaction = build_batch(
        [Record(0, 1, value=b"open")], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    for number in range(OPERATIONS_MAX):
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with Log(path, durability="os", index_interval_bytes=0, fs=fs) as writer:
            for _ in range(4):
                writer.append(b"o" * 27)
            # Committed reads end before it, within the file.
            writer.append_batches(open_transaction)

            def rewrite(writer: Log = writer) -> None:
                writer.truncate_to(1)
                writer.append_many([value] * count)

            log = Log(path, read_only=True, fs=fs) if is_beside else writer
            fs.before(number, rewrite)
            # A view may see the truncation but not the append yet.
            with contextlib.suppress(OffsetOutOfRangeError):
                assert log.fetch(2, isolation_level=isolation_level).size > 0
            is_past = fs.is_past()
            if is_past:
                assert next(log.fetch(2).records()).value == value
            if is_beside:
                log.close()
            if not is_past:
                tried("states", number)
                return
    raise Hung(f"more than {OPERATIONS_MAX} operations")


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("kept", [1, 3])
@pytest.mark.parametrize("is_beside", [True, False], ids=["view", "writer"])
def test_a_verification_across_a_truncation_finds_no_damage(
    is_beside: bool, kept: int, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in range(OPERATIONS_MAX):
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with Log(path, durability="os", index_interval_bytes=0, fs=fs) as writer:
            for _ in range(4):
                writer.append(b"o" * 27)

            def cut(writer: Log = writer) -> None:
                writer.truncate_to(kept)
                writer.append(b"n" * 100)

            log = Log(path, read_only=True, fs=fs) if is_beside else writer
            fs.before(number, cut)
            assert log.verify().corrupt == [], f"before operation {number}"
            is_past = fs.is_past()
            if is_beside:
                log.close()
            if not is_past:
                tried("states", number)
                return
    raise Hung(f"more than {OPERATIONS_MAX} operations")


def test_a_reader_of_a_log_restarted_within_a_batch_continues_there(tmp_path: Path) -> None:
    fs = MeddlingFs(frozenset({"unlink"}))
    path = tmp_path / "log"
    with Log(path, durability="sync", fs=fs) as writer, Log(path, read_only=True) as view:
        writer.append(b"0")
        reader = view.read(0, follow=True, timeout=0)
        found = [next(reader).value]
        writer.append_many([b"1", b"2", b"3 of old"])
        # At this moment the durable end is offset 3, and the old files are still there.
        fs.before(0, lambda: found.extend([next(reader).value, next(reader).value]))
        writer_of(writer).truncate_fully_and_start_at(3)
        assert fs.is_past()
        writer.append(b"3 anew")
        found.append(next(reader).value)
    assert found == [b"0", b"1", b"2", b"3 anew"]
