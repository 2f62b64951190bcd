"""Readers that found the active segment's indexes just before it was sealed, deleted or reopened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ClosedError, OffsetOutOfRangeError
from kstore.indexes.entry_index import EntryIndex
from kstore.log import Log, reads_of
from kstore.segment import LogSegment
from kstore.segments.tail import SegmentTail
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.log_cases import offsets
from tests.support.lives.log_helpers import TIME

# More bytes than a search without an index covers.
COUNT = 200


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    settings: dict[str, Any] = {"durability": "os", "index_interval_bytes": 100, "segment_bytes": 1 << 20}
    with Log(tmp_path / "log", clock=ManualClock(TIME), **settings) as made:
        for offset in range(COUNT):
            made.append(b"v" * 50, timestamp=TIME + offset)
        yield made


def active(log: Log) -> LogSegment:
    found = reads_of(log).segment_for(log.end_offset - 1)
    assert found is not None
    return found[0]


def once_found(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[[], object]) -> list[str]:
    """Does ``change`` after a reader gets the active segment's index and before it uses it; lists each time."""
    real = getattr(LogSegment, name)
    done: list[str] = []

    def found(segment: LogSegment) -> Any:
        index = real(segment)
        if segment.tail is not None and not done:
            done.append(name)
            change()
        return index

    monkeypatch.setattr(LogSegment, name, found)
    return done


READS: dict[str, Callable[[Log], object]] = {
    "get": lambda log: getattr(log.get(100), "offset", None),
    "the first of a read": lambda log: next(iter(log.read(100))).offset,
    "the first of a following read": lambda log: next(iter(log.read(100, follow=True, timeout=0))).offset,
    "fetch": lambda log: next(iter(log.fetch(100, 1).records())).offset,
}


@pytest.mark.parametrize("name", READS)
def test_a_roll_after_a_reader_found_the_offset_index_disturbs_no_lookup(
    name: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = once_found(monkeypatch, "offset_index", log.roll)
    assert READS[name](log) == 100
    assert done


def test_a_following_read_goes_on_after_a_roll_in_its_lookup(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    done = once_found(monkeypatch, "offset_index", log.roll)
    read = log.read(100, follow=True, timeout=0)
    assert [record.offset for record in read] == list(range(100, COUNT))
    assert done


def test_a_roll_after_a_reader_found_the_time_index_disturbs_no_lookup(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = once_found(monkeypatch, "time_index", log.roll)
    assert log.offset_for_time(TIME + 100) == 100
    assert done


@pytest.mark.parametrize("name", ["offset_index", "time_index"])
def test_an_index_is_readable_at_every_step_of_a_roll(name: str, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    index = getattr(active(log), name)()
    wanted = list(index.entries())
    assert len(wanted) > COUNT // 2
    steps: list[str] = []

    def watched(of: type, step: str) -> None:
        real = getattr(of, step)

        def observed(*args: Any, **options: Any) -> Any:
            looks(f"before {step}")
            result = real(*args, **options)
            looks(f"after {step}")
            return result

        monkeypatch.setattr(of, step, observed)

    def looks(step: str) -> None:
        steps.append(step)
        assert list(index.entries())[: len(wanted)] == wanted, step
        assert index.last_entry >= wanted[-1], step
        assert log.get(100) is not None, step

    for of, step in ((EntryIndex, "seal"), (SegmentTail, "sync_indexes"), (SegmentTail, "seal")):
        watched(of, step)
    log.roll()
    log.flush()
    looks("after the flush")
    assert steps.count("before seal") == 3, "both indexes, and the tail"
    assert "after sync_indexes" in steps


@pytest.mark.parametrize("name", ["offset_index", "time_index", "size", "has_damage"])
def test_a_roll_between_two_looks_at_the_tail_disturbs_no_reader(
    name: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = active(log)
    size = segment.size
    slot: Any = LogSegment.__dict__["tail"]
    rolled: list[bool] = []

    def tail(of: LogSegment) -> Any:
        found = slot.__get__(of)
        if of is segment and not rolled:
            rolled.append(True)
            log.roll()
        return found

    monkeypatch.setattr(LogSegment, "tail", property(tail, slot.__set__))
    found = getattr(segment, name)
    if callable(found):
        assert found().entry_count > COUNT // 2
    else:
        assert found == {"size": size, "has_damage": False}[name]
    assert rolled


def test_a_segment_that_is_cut_off_after_a_reader_found_its_index_is_out_of_range(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.roll()
    for offset in range(COUNT, 2 * COUNT):
        log.append(b"v" * 50, timestamp=TIME + offset)
    index = active(log).offset_index()
    done = once_found(monkeypatch, "offset_index", lambda: log.truncate_to(50))
    with pytest.raises(OffsetOutOfRangeError):
        log.get(COUNT + 100)
    assert done
    with pytest.raises(ClosedError):
        index.lookup(COUNT + 100)
    assert offsets(log) == list(range(50))


def test_a_following_read_of_an_open_log_does_not_end_silently(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object, **__: object) -> None:
        raise ClosedError("part of the log is closed")

    monkeypatch.setattr(LogSegment, "runs_from", closed)
    with pytest.raises(ClosedError, match="part of the log"):
        list(log.read(0, follow=True, timeout=0, isolation_level="read_committed"))
