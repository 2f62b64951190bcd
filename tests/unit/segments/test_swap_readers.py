"""Readers of a segment that a compaction or a split is replacing: none opens or keeps the wrong files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.engine.open.swap import complete_swap
from kstore.errors import FileMissingError
from kstore.files.handles import HandleCache
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.log import Log, reads_of
from kstore.segment import LogSegment
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.log_cases import offsets
from tests.support.lives.log_helpers import TIME, append, segment
from tests.support.lives.overflowing import overflowing_log

# More bytes than a search without an index covers.
COUNT = 200
OPENERS = ("log_file", "offset_index", "time_index")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """Three segments that one compaction merges; each key is there once, so every record stays."""
    settings: dict[str, Any] = {"durability": "os", "cleanup_policy": "compact", "index_interval_bytes": 100}
    with Log(tmp_path / "log", clock=ManualClock(TIME), segment_bytes=1 << 20, **settings) as made:
        for offset in range(3 * COUNT):
            made.append(b"v" * 50, key=b"k%d" % offset, timestamp=TIME)
            if offset % COUNT == COUNT - 1:
                made.roll()
        made.append(b"last", key=b"last", timestamp=TIME)
        yield made


@pytest.fixture
def retired(monkeypatch: pytest.MonkeyPatch) -> list[LogSegment]:
    """The segments that were retired."""
    found: list[LogSegment] = []
    real = LogSegment.retire

    def retire(segment: LogSegment) -> None:
        real(segment)
        found.append(segment)

    monkeypatch.setattr(LogSegment, "retire", retire)
    return found


def opens_nothing(segments: list[LogSegment]) -> None:
    """What any reader of these segments does first."""
    assert segments
    for old in segments:
        for opener in OPENERS:
            with pytest.raises(FileMissingError):
                getattr(old, opener)()


def between(when: str, replaces: Callable[..., None], reads: Callable[[], None]) -> Callable[..., None]:
    """``replaces``, with a reader before or after the new names are in place."""

    def hooked(*args: Any) -> None:
        if when == "before the names change":
            reads()
        replaces(*args)
        if when == "after the names change":
            reads()

    return hooked


def uses_its_own_file(log: Log, base_offset: int) -> bool:
    found = reads_of(log).segment_for(base_offset)
    assert found is not None
    path = found[0].path(LOG_SUFFIX)
    return found[0].log_file().stat().inode == path.stat().st_ino and found[0].size == path.stat().st_size


def holds_everything(log: Log) -> None:
    """Whichever reader comes first; also after the next compaction."""
    assert log.get(0) is not None, "the first reader after the swap"
    assert uses_its_own_file(log, 0)
    assert offsets(log) == list(range(3 * COUNT + 1))
    for offset in range(0, 3 * COUNT, 50):
        found = log.get(offset)
        assert found is not None
        assert found.key == b"k%d" % offset
    log.compact(whole=True)
    assert offsets(log) == list(range(3 * COUNT + 1))


@pytest.mark.parametrize("when", ["before the names change", "after the names change"])
def test_a_reader_within_a_swap_leaves_no_old_file_to_the_new_segment(
    when: str, log: Log, retired: list[LogSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    handles = reads_of(log).source.context.handles
    cached: list[int] = []

    def reads() -> None:
        cached.append(len(handles))
        opens_nothing(retired)
        assert len(handles) == cached[0], "a handle would keep a replaced segment's file alive"

    with monkeypatch.context() as patch:
        patch.setattr("kstore.engine.change.cuts.complete_swap", between(when, complete_swap, reads))
        log.compact()
    assert len(retired) == 3
    assert cached
    holds_everything(log)


@pytest.mark.parametrize("opener", OPENERS)
def test_a_file_that_was_opened_before_a_swap_is_not_kept_after_it(
    opener: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reads_of(log).segment_for(0)
    assert found is not None
    old, handles = found[0], reads_of(log).source.context.handles
    handles.clear()
    put = HandleCache._put

    def compacted_first(cache: HandleCache, *args: Any) -> Any:
        monkeypatch.undo()
        log.compact()
        cached.append(len(cache))
        return put(cache, *args)

    cached: list[int] = []
    monkeypatch.setattr(HandleCache, "_put", compacted_first)
    assert getattr(old, opener)() is not None, "its reader may finish"
    assert cached == [len(handles)]
    opens_nothing([old])
    holds_everything(log)


@pytest.mark.parametrize("when", ["before the names change", "after the names change"])
def test_a_reader_within_a_split_leaves_no_old_file_to_the_new_segments(
    when: str, tmp_path: Path, retired: list[LogSegment], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = overflowing_log(tmp_path / "log", SYSTEM_FS, size=200)
    count: list[int] = []

    def reads() -> None:
        count.append(1)
        opens_nothing(retired)

    monkeypatch.setattr("kstore.engine.open.split.complete_swap", between(when, complete_swap, reads))
    with Log(tmp_path / "log", index_interval_bytes=0) as log:
        assert len(count) == 2, "one for each part"
        assert uses_its_own_file(log, 0)
        assert offsets(log) == wanted


def test_a_size_that_is_asked_for_while_the_file_is_replaced_is_not_kept(tmp_path: Path) -> None:
    made = segment(tmp_path)
    append(made, 40, [b"a"])
    made.seal()
    sealed_bytes = made.size

    class ReplacedFile:
        """The writing process replaces the file after this one got its size."""

        def size(self) -> int:
            made.path(LOG_SUFFIX).write_bytes(b"another file")
            made.forget()
            return sealed_bytes

    made.forget()
    assert made.size_in(ReplacedFile()) == sealed_bytes  # type: ignore[arg-type]  # all that it asks for
    assert made.size == len(b"another file")
