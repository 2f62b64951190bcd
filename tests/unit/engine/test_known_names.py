"""A reader lists a log's directory only if neither the directory's times nor the writer tell what names it holds."""

from __future__ import annotations

import errno
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import kstore
from kstore.clock import SYSTEM_CLOCK
from kstore.engine.known_names import KnownNames, NamesLook, is_settled
from kstore.errors import LogNotFoundError
from kstore.files.fs import FileStat
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.record.crc import crc32c
from kstore.state.log_state import FILE_SIZE, StateFile, read_state
from kstore.state.roll_slot import BASES_KEPT, ROLLS_POSITION, ROLLS_SIZE, RollSlot
from kstore.types import Durability
from tests.crash.interrupted_life import InterruptAfterCode
from tests.support.fakes.fake_fs import Operation, RecordingFs, WatchedFs
from tests.support.fakes.meddling_fs import MeddlingFs
from tests.support.harness.evidence import Hung
from tests.support.harness.selection import tries
from tests.support.lives.log_cases import killed

Result = TypeVar("Result")

STATE = "kstore.state"
SECOND = 1_000_000_000
RECORD = b"x" * 400
PER_SEGMENT = 2
SETTINGS = {"segment_bytes": 1024, "file_delete_delay_ms": 0}
OPERATIONS_MAX = 500


class LaterClock:
    """Ten seconds ahead, so that whatever was just changed counts as settled."""

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + 10_000

    def monotonic(self) -> float:
        return SYSTEM_CLOCK.monotonic()


class StillClock(LaterClock):
    """Stands still, so that whatever is changed from now on counts as young, however slow the machine is."""

    def __init__(self) -> None:
        self._now_ms = SYSTEM_CLOCK.now_ms()

    def now_ms(self) -> int:
        return self._now_ms


class ExactTimesFs(WatchedFs):
    """Gives a directory times that are as old as can be, and others after each change of a name."""

    def stat(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> FileStat:
        found = super().stat(path, follow_symlinks=follow_symlinks)
        if not found.is_dir:
            return found
        entries = sorted((entry.name, entry.inode()) for entry in os.scandir(path))
        return found._replace(mtime_ns=1, ctime_ns=1 + zlib.crc32(repr(entries).encode()))


class CoarseTimesFs(WatchedFs):
    """The time of every file and directory is that of the last tick of 10 ms."""

    def stat(self, path: str | os.PathLike[str], *, follow_symlinks: bool = False) -> FileStat:
        found = super().stat(path, follow_symlinks=follow_symlinks)
        tick = 10_000_000
        size = 0 if found.is_dir else found.size
        return found._replace(
            mtime_ns=found.mtime_ns // tick * tick + 1, ctime_ns=found.ctime_ns // tick * tick + 1, size=size
        )


def counted(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each look at names from now on, whether it listed them."""
    listed: list[bool] = []
    look = KnownNames.look

    def noted(names: KnownNames) -> NamesLook:
        found = look(names)
        listed.append(found.begun is None)
        return found

    monkeypatch.setattr(KnownNames, "look", noted)
    return listed


def roll(writer: Log) -> None:
    """Appends until the next segment has begun."""
    count = writer.metrics()["segments"]
    while writer.metrics()["segments"] == count:
        writer.append(RECORD, key=b"%d" % writer.end_offset)


def kinds(operations: list[Operation]) -> list[str]:
    return [operation.kind for operation in operations]


@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("segment_count", [3, 60])
def test_a_look_that_finds_nothing_new_takes_three_requests_at_any_number_of_segments(
    segment_count: int, closed: bool, durability: Durability, tmp_path: Path
) -> None:
    writer = Log(tmp_path / "log", durability=durability, **SETTINGS)  # type: ignore[arg-type]
    for _ in range(segment_count):
        roll(writer)
    # Not beside it: a flush in the background would store a record.
    path = tmp_path / "log" if closed else killed(writer, tmp_path / "killed")
    writer.close()
    fs = RecordingFs()
    view = Log(path, read_only=True, fs=fs, clock=LaterClock())
    end = view.end_offset
    del fs.operations[:]
    assert view.end_offset == end
    assert sorted(kinds(fs.operations)) == (["pread", "stat", "stat"] if closed else ["pread", "pread", "stat"])
    view.close()


def test_a_long_last_batch_takes_one_request_more(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as writer:
        writer.append_many([RECORD] * 100)
        fs = RecordingFs()
        with Log(tmp_path / "log", read_only=True, fs=fs, clock=LaterClock()) as view:
            assert view.end_offset == 100
            del fs.operations[:]
            assert view.end_offset == 100
            assert sorted(kinds(fs.operations)) == ["pread", "pread", "pread", "stat"]
            assert sum(operation.size for operation in fs.operations) < FILE_SIZE + 200


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_roll_that_the_writer_tells_of_needs_no_listing(
    durability: Durability, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "log", durability=durability, **SETTINGS) as writer:  # type: ignore[arg-type]
        roll(writer)
        with Log(tmp_path / "log", read_only=True, clock=StillClock()) as view:
            listed = counted(monkeypatch)
            for count in (1, 0, 3, BASES_KEPT):
                for _ in range(count):
                    roll(writer)
                assert view.end_offset == writer.end_offset
                assert view.get(writer.end_offset - 1) is not None
            assert view.metrics()["segments"] == writer.metrics()["segments"]
            assert len(list(view.read())) == writer.end_offset
            assert not any(listed)
            # More than it keeps.
            for _ in range(BASES_KEPT + 1):
                roll(writer)
            assert view.end_offset == writer.end_offset
            assert any(listed)
            assert len(list(view.read())) == writer.end_offset


def test_a_start_that_rises_within_a_segment_is_seen(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as writer:
        writer.append_many([RECORD] * 10)
        with Log(tmp_path / "log", read_only=True, clock=LaterClock()) as view:
            assert (view.start_offset, view.end_offset) == (0, 10)
            writer.delete_records(4)
            assert (view.end_offset, view.start_offset) == (10, 4)


def retain(writer: Log) -> None:
    writer.delete_records(writer.end_offset - PER_SEGMENT)


def truncate(writer: Log) -> None:
    writer.truncate_to(max(writer.end_offset - 3 * PER_SEGMENT, writer.start_offset))
    roll(writer)


def start_elsewhere(writer: Log) -> None:
    writer.truncate_to(writer.start_offset)
    roll(writer)


def compact(writer: Log) -> None:
    writer.append(RECORD, key=b"k")
    roll(writer)
    writer.compact()


CHANGES: list[Callable[[Log], object]] = [roll, retain, truncate, start_elsewhere, compact]


def agrees(view: Log, path: Path) -> None:
    """Compares a view that has looked before with one that has not."""
    with Log(path, read_only=True) as fresh:
        assert view.end_offset == fresh.end_offset
        assert (view.start_offset, view.high_watermark) == (fresh.start_offset, fresh.high_watermark)
        assert list(view.read()) == list(fresh.read())
        assert view.metrics()["segments"] == fresh.metrics()["segments"]


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("durability", ["sync", "os"])
@pytest.mark.parametrize("times", [MeddlingFs, type("Exact", (MeddlingFs, ExactTimesFs), {})], ids=["young", "settled"])
@pytest.mark.sampled(3)
def test_a_change_between_any_two_operations_of_a_look_is_seen_by_the_next(
    times: type[MeddlingFs],
    durability: Durability,
    change: Callable[[Log], object],
    tmp_path: Path,
    tried: Callable[[str, int], None],
) -> None:
    for number in range(OPERATIONS_MAX):
        fs, path = times(), tmp_path / str(number)
        settings = {**SETTINGS, "cleanup_policy": "compact,delete"}
        with Log(path, durability=durability, **settings) as writer:  # type: ignore[arg-type]
            for _ in range(4):
                roll(writer)
                writer.append(RECORD, key=b"k")
            view = Log(path, read_only=True, fs=fs)
            roll(writer)
            assert view.end_offset == writer.end_offset
            fs.before(number, lambda: change(writer))
            view.refresh()
            was_past = not fs.is_past()
            if was_past:
                change(writer)
            agrees(view, path)
            roll(writer)
            agrees(view, path)
            view.close()
        if was_past:
            tried("states", number)
            return
    raise Hung(f"more than {OPERATIONS_MAX} operations")


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("fs_type", [WatchedFs, ExactTimesFs, CoarseTimesFs])
def test_a_view_that_looks_on_agrees_with_a_new_one_after_random_changes(
    fs_type: type[WatchedFs], tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    path = tmp_path / "log"
    settings = {**SETTINGS, "cleanup_policy": "compact,delete"}
    writer = Log(path, durability="os", **settings)  # type: ignore[arg-type]
    roll(writer)
    view = Log(path, read_only=True, fs=fs_type())
    listed = counted(monkeypatch)
    for _ in range(60):
        step = draw.choice([*CHANGES, *[roll] * 6, "append", "append", "reopen", "kill"])
        if step == "append":
            writer.append(RECORD, key=b"k")
        elif step == "reopen":
            writer.close()
            writer = Log(path, durability="os", **settings)  # type: ignore[arg-type]
        elif step == "kill":
            copy = killed(writer, tmp_path / "copy")
            writer.close()
            # In place, as a process that died leaves them.
            for each in path.iterdir():
                if not (copy / each.name).exists():
                    each.unlink()
            for each in copy.iterdir():
                (path / each.name).write_bytes(each.read_bytes())
            shutil.rmtree(copy)
            writer = Log(path, durability="os", **settings)  # type: ignore[arg-type]
        else:
            step(writer)  # type: ignore[operator]
        agrees(view, path)
    assert not all(listed)
    view.close()
    writer.close()


@pytest.mark.parametrize("fs_type", [WatchedFs, CoarseTimesFs])
def test_a_segment_that_another_program_replaces_within_a_tick_is_seen(
    fs_type: type[WatchedFs], tmp_path: Path
) -> None:
    with Log(tmp_path / "log", **SETTINGS) as writer:  # type: ignore[arg-type]
        for _ in range(4):
            roll(writer)
    path = tmp_path / "log"
    (path / "0.tmp").touch()
    with Log(path, read_only=True, fs=fs_type()) as view:
        assert len(list(view.read())) == view.end_offset
        bases = sorted(int(each.name[:20]) for each in path.glob("*.log"))
        for base in bases[:-2]:
            for suffix in (".log", ".index", ".timeindex"):
                (path / f"{base:020d}{suffix}").unlink()
            assert view.end_offset
            assert view.metrics()["segments"] == len(list(path.glob("*.log")))


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("change", [roll, retain, truncate, compact])
def test_a_look_that_was_interrupted_anywhere_is_made_up_for(
    change: Callable[[Log], object], tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    draw = random.Random(seed)
    path = tmp_path / "log"
    settings = {**SETTINGS, "cleanup_policy": "compact,delete"}
    number = count = 0
    with Log(path, durability="os", **settings) as writer:  # type: ignore[arg-type]
        for _ in range(4):
            roll(writer)
            writer.append(RECORD, key=b"k")
        view = Log(path, read_only=True)
        roll(writer)
        while True:
            agrees(view, path)
            writer.delete_records(max(writer.end_offset - 6 * PER_SEGMENT, 0))
            roll(writer)
            change(writer)
            number += draw.randint(1, tries(4, quick=3000))
            count += 1
            with InterruptAfterCode(number) as interrupted:
                try:
                    view.refresh()
                except KeyboardInterrupt:
                    pass
            if not interrupted.struck:
                break
        agrees(view, path)
        view.close()
    tried("faults", count)


def test_another_directory_of_the_same_name_is_another_log(tmp_path: Path) -> None:
    with Log(tmp_path / "alive", durability="os", **SETTINGS) as writer:  # type: ignore[arg-type]
        roll(writer)
        early = killed(writer, tmp_path / "early")
        early_end = writer.end_offset
        roll(writer)
        path = killed(writer, tmp_path / "log")
        late_end = writer.end_offset
    with Log(path, read_only=True) as view:
        assert view.end_offset == late_end
        path.rename(tmp_path / "late")
        early.rename(path)
        assert view.end_offset == early_end
        agrees(view, path)
        path.rename(early)
        with pytest.raises(LogNotFoundError):
            view.refresh()
        (tmp_path / "late").rename(path)
        assert view.end_offset == late_end
        agrees(view, path)


def test_a_roll_that_failed_leaves_no_segment_with_a_reader(tmp_path: Path) -> None:
    class Full(WatchedFs):
        is_full = False

        def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
            if self.is_full and operation.kind == "create" and operation.path.endswith(".timeindex"):
                raise kstore.DiskFullError(errno.ENOSPC, "no space", operation.path)
            return action()

    fs, path = Full(), tmp_path / "log"
    with Log(path, durability="os", fs=fs, **SETTINGS) as writer, Log(path, read_only=True) as view:  # type: ignore[arg-type]
        roll(writer)
        agrees(view, path)
        fs.is_full = True
        with pytest.raises(kstore.DiskFullError):
            roll(writer)
        agrees(view, path)
        fs.is_full = False
        roll(writer)
        agrees(view, path)


def test_members_of_a_shared_log_tell_of_no_rolls(tmp_path: Path) -> None:
    path = tmp_path / "log"
    settings = {**SETTINGS, "durability": "os"}
    with Log(path, **settings) as alone:  # type: ignore[arg-type]
        roll(alone)
    with (
        Log(path, shared=True, **settings) as one,  # type: ignore[arg-type]
        Log(path, shared=True, **settings) as other,  # type: ignore[arg-type]
        Log(path, read_only=True) as view,
    ):
        for writer in (one, other, one, one, other):
            roll(writer)
            agrees(view, path)
        data = (path / STATE).read_bytes()
        assert not any(data[ROLLS_POSITION : ROLLS_POSITION + ROLLS_SIZE])


def test_an_open_for_writing_empties_what_a_killed_writer_told(tmp_path: Path) -> None:
    with Log(tmp_path / "alive", durability="os", **SETTINGS) as writer:  # type: ignore[arg-type]
        roll(writer)
        path = killed(writer, tmp_path / "log")
    assert any((path / STATE).read_bytes()[ROLLS_POSITION : ROLLS_POSITION + ROLLS_SIZE])
    StateFile.open(SYSTEM_FS, path / STATE, mode=0o600).close()
    assert not any((path / STATE).read_bytes()[ROLLS_POSITION : ROLLS_POSITION + ROLLS_SIZE])


@pytest.mark.promise("hostile file")
def test_no_byte_of_a_damaged_slot_is_believed(tmp_path: Path) -> None:
    slot = RollSlot(7, 4, 7, (10, 20, 30)).encode()
    assert len(slot) == ROLLS_SIZE
    assert RollSlot.decode(slot + b"more") == RollSlot(7, 4, 7, (10, 20, 30))
    for at in range(len(slot)):
        assert RollSlot.decode(slot[:at]) is None
        for bit in range(8):
            flipped = bytearray(slot)
            flipped[at] ^= 1 << bit
            assert RollSlot.decode(bytes(flipped)) is None
    assert RollSlot.decode(bytes(ROLLS_SIZE)) is None


def test_a_slot_tells_which_segments_were_begun_unless_anything_else_happened() -> None:
    first = RollSlot(7)
    later = first
    for base in range(1, BASES_KEPT + 3):
        later = later.rolled(base)
        expected = tuple(range(1, base + 1)) if base <= BASES_KEPT else None
        assert later.begun_since(first) == expected
        assert RollSlot.decode(later.encode()) == later
    assert later.begun_since(later) == ()
    assert first.begun_since(later) is None
    assert later._replace(session=8).begun_since(later) is None
    changing = later.changing()
    assert changing.begun_since(later) is None
    assert changing.begun_since(changing) is None
    assert changing.changing() == changing
    changed = changing.changed()
    assert changed.begun_since(later) is None
    assert changed.begun_since(changing) is None
    assert changed.begun_since(changed) == ()
    assert later.changed() == changed
    assert changed.rolled(99).begun_since(changed) == (99,)


def test_a_time_tells_a_later_change_only_if_it_is_old_and_exact() -> None:
    now = 1_700_000_000 * SECOND
    old = FileStat(0, now - 3 * SECOND + 1, 5, 1, False, True, now - 3 * SECOND + 2)
    assert is_settled(old, now)
    assert not is_settled(old, now - SECOND)
    for time_ns in (now - SECOND, now + 1, now - 2 * SECOND + 1, now - 5 * SECOND, 0):
        assert not is_settled(old._replace(mtime_ns=time_ns), now)
        assert not is_settled(old._replace(ctime_ns=time_ns), now)
    assert is_settled(old._replace(mtime_ns=now - 2 * SECOND - 1, ctime_ns=now - 2 * SECOND - 1), now)


def test_a_record_of_an_older_release_has_no_session(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os", **SETTINGS) as writer:  # type: ignore[arg-type]
        roll(writer)
        state = read_state(SYSTEM_FS, tmp_path / "log" / STATE)
        assert state is not None
        assert state.session
        old = bytearray(state.encode())
        size = len(old) - 8
        old[6:8] = size.to_bytes(2, "big")
        del old[-12:]
        old += crc32c(bytes(old)).to_bytes(4, "big")
        assert state.decode(bytes(old)) == state._replace(session=0)
