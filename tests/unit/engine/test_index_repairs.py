"""Lost and damaged indexes of an open log: the first lookup that needs them rebuilds them once, to the same bytes."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kstore.engine import index_repairs
from kstore.engine.index_repairs import ScannedSegment, scan_segment
from kstore.errors import CorruptBatchError, OffsetOutOfRangeError, PathLike
from kstore.files.local import SYSTEM_FS
from kstore.indexes.rebuild import IndexBuilder, RebuiltIndexes
from kstore.log import Log, reads_of, writer_of
from kstore.record.parse import parse_batch
from kstore.record.walk import Damage
from kstore.segment import LogSegment
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs
from tests.support.harness.golden_data import copy_partition, golden_root
from tests.support.lives import log_cases
from tests.support.lives.log_cases import edit, files, offsets, segment_bases
from tests.support.lives.log_helpers import TIME, append, context, segment

INDEXES = (".index", ".timeindex")
SETTINGS: dict[str, Any] = {"segment_bytes": 48 << 10, "index_interval_bytes": 1024}

Spoil = Callable[[bytes], bytes | None]
Found = TypeVar("Found")
SPOILED: dict[str, Spoil] = {
    "lost": lambda data: None,
    "empty": lambda data: b"",
    "zeros": lambda data: bytes(len(data)),
    "junk": lambda data: bytes(255 - byte for byte in data),
    "half": lambda data: data[: len(data) // 24 * 12],
    "beyond-the-end": lambda data: b"\x00\x00\x00\x01\x7f\xff\xff\xf0" * (len(data) // 8),
}


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Four sealed segments and an active one, closed cleanly."""
    path = tmp_path / "log"
    with Log(path, durability="os", clock=ManualClock(TIME), **SETTINGS) as log:
        number = 0
        while len(segment_bases(path)) < 5:
            log.append_many([b"x" * 90] * 3, timestamps=[TIME + number, TIME + number + 1, TIME + number + 2])
            number += 3
    return path


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The base offset of each segment that is scanned."""
    scanned: list[int] = []

    def noted(segment: LogSegment, offset_stop: int) -> ScannedSegment:
        scanned.append(segment.base_offset)
        return scan_segment(segment, offset_stop)

    monkeypatch.setattr(index_repairs, "scan_segment", noted)
    return scanned


def opened(path: Path, durability: Durability = "os", **options: object) -> Log:
    return Log(path, durability=durability, clock=ManualClock(TIME), **{**SETTINGS, **options})


def spoil(path: Path, spoiled: Spoil, *suffixes: str, base: int | None = None) -> dict[str, bytes]:
    """Damages the indexes of the sealed segments, or of one; returns their contents."""
    wanted = segment_bases(path)[:-1] if base is None else [base]
    good = {name: data for name, data in files(path, *(suffixes or INDEXES)).items() if int(name[:20]) in wanted}
    for name, data in good.items():
        content = spoiled(data)
        if content is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(content)
    return good


def middle(path: Path, number: int = 1) -> int:
    """An offset late in segment ``number``, but not its last."""
    bases = segment_bases(path)
    return bases[number] + (bases[number + 1] - bases[number]) * 7 // 8


def look_up(log: Log, offset: int) -> int:
    return next(iter(log.read(offset, offset + 1))).offset


# --- what a rebuild writes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval", [0, 100, 1024, 4096])
def test_a_rebuild_writes_the_bytes_that_appending_wrote(interval: int, tmp_path: Path) -> None:
    made = segment(tmp_path, index_interval_bytes=interval)
    offset = 40
    for number in range(200):
        size = 1 + number * 37 % 1500
        append(made, offset, [b"x" * size] * (1 + number % 3), timestamp=TIME + (number * 7919) % 1000)
        offset += 1 + number % 3 + (number % 10 == 0)
    made.seal()
    wanted = files(tmp_path, *INDEXES)
    rebuilt = scan_segment(LogSegment(context(tmp_path, index_interval_bytes=interval), 40), 2**63 - 1)
    assert not rebuilt.replaced
    assert [rebuilt.rebuilt.offsets, rebuilt.rebuilt.times] == list(wanted.values())


@pytest.mark.parametrize("tree", ["clean", "old"])
def test_every_index_that_a_broker_closed_is_sound(tree: str) -> None:
    for path in sorted(golden_root().joinpath(tree).iterdir()):
        bases = segment_bases(path) if path.is_dir() else []
        for base, stop in zip(bases, [*bases[1:], 2**63 - 1], strict=False):
            assert not scan_segment(LogSegment(context(path, index_interval_bytes=4096), base), stop).replaced, path


def test_an_entry_into_damage_is_no_finding() -> None:
    builder = IndexBuilder(0, index_interval_bytes=10, old_offsets=bytes.fromhex("0000000100000064"), old_times=b"")
    builder.note(0, parse_batch(log_cases.data(0)))
    builder.note_damage(Damage(100, 200, 1, 2, "damaged", torn=False))
    builder.note(200, parse_batch(log_cases.data(2)))
    assert builder.finish().has_sound_offsets


# --- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("rebuilt")
@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("kinds", [INDEXES, (".index",)], ids=["both", "offsets"])
@pytest.mark.sampled(5)
def test_the_first_lookup_of_an_offset_rebuilds_and_the_next_opens_find_the_files(
    what: str, kinds: tuple[str, ...], closed: Path, scans: list[int]
) -> None:
    base = segment_bases(closed)[1]
    good = spoil(closed, SPOILED[what], *kinds, base=base)
    with opened(closed) as log:
        assert not scans
        for _ in range(3):
            assert look_up(log, middle(closed)) == middle(closed)
        assert scans == [base]
        assert {name: (closed / name).read_bytes() for name in good} == good
        log.check()
    with opened(closed) as log:
        assert look_up(log, middle(closed)) == middle(closed)
        assert scans == [base]


@pytest.mark.parametrize("way", ["fetch", "read", "values"])
def test_every_way_to_an_offset_rebuilds(way: str, closed: Path, scans: list[int]) -> None:
    good = spoil(closed, SPOILED["lost"])
    offset = middle(closed)
    with opened(closed) as log:
        if way == "fetch":
            assert log.fetch(offset).base_offset == segment_bases(closed)[1]
        elif way == "read":
            assert offsets(log, offset)[0] == offset
        else:
            assert len(list(log.read_values(offset, offset + 5))) == 5
        assert scans == [segment_bases(closed)[1]]
        name = f"{segment_bases(closed)[1]:020d}.index"
        assert (closed / name).read_bytes() == good[name]


def test_a_read_from_segment_to_segment_waits_for_no_rebuild(closed: Path, scans: list[int]) -> None:
    spoil(closed, SPOILED["lost"])
    with opened(closed) as log:
        assert offsets(log) == list(range(log.end_offset))
    assert scans == [0]


def test_a_sound_index_stays_as_it_is_beside_one_that_is_rebuilt(closed: Path) -> None:
    # Each close adds a time entry to the log.
    number = 10_000
    while len(segment_bases(closed)) < 6:
        with opened(closed) as log:
            log.append_many([b"x" * 90] * 30, timestamps=list(range(TIME + number, TIME + number + 30)))
        number += 30
    base = segment_bases(closed)[4]
    good = spoil(closed, SPOILED["lost"], ".index", base=base)
    times = files(closed, ".timeindex")
    with opened(closed) as log:
        assert look_up(log, middle(closed, 4)) == middle(closed, 4)
    assert files(closed, ".timeindex") == times
    assert {name: (closed / name).read_bytes() for name in good} == good


def test_a_lost_index_of_a_small_segment_is_rebuilt_too(tmp_path: Path, scans: list[int]) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for _ in range(3):
            log.append_many([b"x"] * 5)
            log.append_many([b"x"] * 5)
            log.roll()
    good = spoil(tmp_path / "log", SPOILED["lost"])
    with Log(tmp_path / "log", durability="os") as log:
        for offset in (3, 12, 27):
            look_up(log, offset)
    assert scans == [0, 10, 20]
    assert {name: (tmp_path / "log" / name).read_bytes() for name in good} == good


def test_opening_tells_of_indexes_that_are_missing_and_asks_for_no_file(closed: Path) -> None:
    spoil(closed, SPOILED["lost"], ".timeindex")
    watched = RecordingFs()
    with opened(closed, fs=watched) as log:
        assert "4 segments lack an index: the first lookup in each rebuilds it" in log.recovery.notes
        asked = [operation for operation in watched.operations if str(operation.path).endswith(INDEXES)]
        assert not asked


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("rebuilt")
@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("kinds", [INDEXES, (".timeindex",)], ids=["both", "times"])
@pytest.mark.sampled(5)
def test_the_first_lookup_of_a_time_rebuilds(what: str, kinds: tuple[str, ...], closed: Path, scans: list[int]) -> None:
    base = segment_bases(closed)[0]
    good = spoil(closed, SPOILED[what], *kinds, base=base)
    wanted = segment_bases(closed)[1] - 20
    with opened(closed) as log:
        for _ in range(3):
            assert log.offset_for_time(TIME + wanted) == wanted
        assert scans == [base]
        assert {name: (closed / name).read_bytes() for name in good} == good


def test_times_without_an_index_are_found_once_and_then_remembered(closed: Path, scans: list[int]) -> None:
    spoil(closed, SPOILED["lost"])
    with opened(closed, read_only=True) as log:
        for _ in range(3):
            assert log.offset_for_time("max_timestamp") == log.end_offset - 1
    assert sorted(scans) == segment_bases(closed)[:-1]


def test_version_0_has_no_times_and_keeps_an_empty_index(tmp_path: Path, scans: list[int]) -> None:
    path = copy_partition("old", "v0-rolled-0", tmp_path)
    good = spoil(path, SPOILED["lost"])
    times = {name: data for name, data in good.items() if name.endswith(".timeindex")}
    with Log(path) as log:
        everything = offsets(log)
        for offset in everything:
            assert look_up(log, offset) == offset
        assert log.offset_for_time(TIME) is None
    assert {name: (path / name).read_bytes() for name in times} == times
    assert len(scans) == len(set(scans))


@pytest.mark.parametrize("name", ["v1-none-0", "v1-rolled-0", "v1-lz4-0", "v0-none-0", "upgraded-0"])
@pytest.mark.sampled(1)
def test_old_versions_are_found_as_with_the_broker_s_indexes(name: str, tmp_path: Path) -> None:
    if not golden_root().joinpath("old", name).is_dir():
        pytest.skip("no such log")
    path = copy_partition("old", name, tmp_path)
    with Log(path, read_only=True) as log:
        records = list(log.read())
        times = {record.timestamp: log.offset_for_time(record.timestamp) for record in records if record.timestamp > 0}
    spoil(path, SPOILED["lost"])
    with Log(path) as log:
        assert [look_up(log, record.offset) for record in records] == [record.offset for record in records]
        assert {timestamp: log.offset_for_time(timestamp) for timestamp in times} == times


# --- read-only --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("rebuilt")
@pytest.mark.parametrize("what", SPOILED)
def test_a_read_only_log_rebuilds_in_memory_and_writes_nothing(what: str, closed: Path, scans: list[int]) -> None:
    spoil(closed, SPOILED[what])
    before = files(closed, ".log", ".state", *INDEXES)
    with opened(closed, read_only=True) as log:
        for _ in range(3):
            for number in range(4):
                assert look_up(log, middle(closed, number)) == middle(closed, number)
    assert scans == segment_bases(closed)[:-1]
    assert files(closed, ".log", ".state", *INDEXES) == before


def test_a_read_only_log_keeps_a_bounded_amount_of_rebuilt_indexes(
    closed: Path, scans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = spoil(closed, SPOILED["lost"])
    sizes = [len(data) for data in good.values()]
    monkeypatch.setattr(index_repairs, "KEPT_BYTES_MAX", sum(sizes[:4]))
    with opened(closed, read_only=True, open_files_max=1) as log:
        for number in range(4):
            look_up(log, middle(closed, number))
        assert 0 < reads_of(log).segment_for(0)[0].context.repairs.kept_bytes <= sum(sizes[:4])  # type: ignore[index,union-attr]
        look_up(log, middle(closed, 3))
        assert len(scans) == 4
        look_up(log, middle(closed, 0))
        assert len(scans) == 5


# --- beside others ----------------------------------------------------------------------------------------------------


def test_threads_that_look_up_at_the_same_time_share_one_scan(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(closed, SPOILED["lost"])
    scanned: list[int] = []
    both = threading.Event()

    def slow(segment: LogSegment, offset_stop: int) -> ScannedSegment:
        scanned.append(segment.base_offset)
        assert both.wait(300)
        return scan_segment(segment, offset_stop)

    monkeypatch.setattr(index_repairs, "scan_segment", slow)
    asked: list[int] = []
    entered = LogSegment._repair

    def noted(self: LogSegment) -> bool:
        asked.append(self.base_offset)
        if len(asked) == 2:
            both.set()
        return entered(self)

    monkeypatch.setattr(LogSegment, "_repair", noted)
    with opened(closed) as log:
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(log.fetch(middle(closed)).fetch_offset)) for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert found == [middle(closed)] * 2
    assert scanned == [segment_bases(closed)[1]]


def followed_by(change: Callable[[], object], step: Callable[..., Found]) -> Callable[..., Found]:
    """``step``, with a change of the log after its first call."""
    changes = [change]

    def call(*arguments: object) -> Found:
        found = step(*arguments)
        if changes:
            changes.pop()()
        return found

    return call


def test_indexes_that_another_program_is_replacing_are_not_called_lost(
    closed: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker's cleaner renames a segment's files one by one."""
    renamed = spoil(closed, SPOILED["lost"])

    def complete() -> None:
        for name, content in renamed.items():
            (closed / name).write_bytes(content)

    with Log(closed, read_only=True) as log:
        monkeypatch.setattr(index_repairs, "scan_segment", followed_by(complete, scan_segment))
        assert look_up(log, middle(closed)) == middle(closed)
        assert look_up(log, middle(closed)) == middle(closed)
    assert caplog.messages == []


def test_indexes_of_a_segment_that_is_deleted_meanwhile_do_not_come_back(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(closed, SPOILED["lost"])
    bases, offset = segment_bases(closed), middle(closed)
    with opened(closed) as log:
        monkeypatch.setattr(
            index_repairs, "scan_segment", followed_by(lambda: log.delete_records(bases[2]), scan_segment)
        )
        with suppress(OffsetOutOfRangeError):
            assert look_up(log, offset) == offset
        assert sorted({int(name[:20]) for name in files(closed, ".log", *INDEXES)}) == bases[2:]


def test_indexes_of_a_segment_that_is_cut_meanwhile_are_those_of_what_is_left(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(closed, SPOILED["lost"])
    bases = segment_bases(closed)
    offset = middle(closed)
    with opened(closed) as log:

        def cut() -> None:
            log.truncate_to(offset + 3)
            while len(segment_bases(closed)) < 3:
                log.append_many([b"y" * 200] * 2)

        monkeypatch.setattr(index_repairs, "scan_segment", followed_by(cut, scan_segment))
        assert look_up(log, offset) == offset
        assert segment_bases(closed)[:2] == bases[:2]
        for wanted in offsets(log):
            assert look_up(log, wanted) == wanted
        log.check()
        assert log.verify().clean


@pytest.mark.parametrize("after", ["scan_segment", "_has_same_files"])
def test_indexes_of_a_segment_that_is_compacted_meanwhile_are_the_new_one_s(
    after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    with Log(path, durability="os", **SETTINGS) as log:
        while len(segment_bases(path)) < 4:
            log.append_many([b"x" * 90] * 3, keys=[b"%d" % (log.end_offset % 100)] * 3)
    spoil(path, SPOILED["lost"])
    with Log(path, durability="os", cleanup_policy="compact", **SETTINGS) as log:
        monkeypatch.setattr(index_repairs, after, followed_by(log.compact, getattr(index_repairs, after)))
        log.fetch(middle(path, 0))
        compacted = files(path, *INDEXES)
        kept = offsets(log)
        for offset in kept:
            assert look_up(log, offset) == offset
        log.check()
        assert files(path, *INDEXES) == compacted


def test_members_of_a_shared_log_each_find_what_one_has_rebuilt(closed: Path, scans: list[int]) -> None:
    good = spoil(closed, SPOILED["lost"])
    base = segment_bases(closed)[1]
    with opened(closed, shared=True) as one, opened(closed, shared=True) as two:
        one.append(b"one")
        assert look_up(one, middle(closed)) == middle(closed)
        assert look_up(two, middle(closed)) == middle(closed)
        assert scans.count(base) <= 2
        assert all((closed / name).read_bytes() == data for name, data in good.items() if int(name[:20]) == base)
        two.append(b"two")
        assert one.end_offset == two.end_offset
        assert look_up(two, middle(closed, 2)) == middle(closed, 2)


def test_a_member_never_replaces_an_index_that_others_write_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    settings: dict[str, Any] = {"segment_bytes": 1 << 20, "index_interval_bytes": 0}
    with (
        Log(path, durability="os", shared=True, **settings) as one,
        Log(path, durability="os", shared=True, **settings) as two,
    ):
        for _ in range(100):
            one.append_many([b"x" * 90] * 3)
        name = path / f"{0:020d}.index"
        inode = name.stat().st_ino
        edit(name, lambda data: data.__setitem__(slice(None), bytes(len(data))))
        assert look_up(two, 250) == 250
        assert name.stat().st_ino == inode


def test_what_looks_up_under_the_lock_rebuilds_nothing(closed: Path, scans: list[int]) -> None:
    spoil(closed, SPOILED["lost"])
    with opened(closed, retention_ms=10**12) as log:
        assert log.last_stable_offset == log.end_offset
        offset = middle(closed, 2)
        log.truncate_to(offset)
        assert log.end_offset == offset
    assert not scans


def test_retention_by_time_rebuilds_before_it_takes_the_lock(
    closed: Path, scans: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = spoil(closed, SPOILED["lost"])
    with opened(closed, retention_ms=10**12) as log:
        log.apply_retention()
        name = f"{0:020d}.timeindex"
        assert (closed / name).read_bytes() == good[name]
    assert scans == segment_bases(closed)[:2]


# --- what can go wrong ------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_rebuilt_index_in_memory(closed: Path, scans: list[int]) -> None:
    spoil(closed, SPOILED["lost"])
    full = FailingFs(SYSTEM_FS, Fault(1, errno=errno.ENOSPC, sticky=True, suffix=".tmp"))
    with opened(closed, fs=full) as log:
        for _ in range(3):
            assert look_up(log, middle(closed)) == middle(closed)
        assert scans == [segment_bases(closed)[1]]
        assert log.metrics()["index_failures"] == 1
        log.append(b"goes on")
    assert not list(closed.glob("*.tmp"))


def test_a_crash_between_the_two_files_leaves_each_old_or_new(closed: Path, tmp_path: Path) -> None:
    good = spoil(closed, SPOILED["half"], base=segment_bases(closed)[1])
    half = files(closed, *INDEXES)
    states: list[Path] = []

    class Copying(RecordingFs):
        def rename(self, source: PathLike, target: PathLike) -> None:
            self._copy()
            super().rename(source, target)
            self._copy()

        def _copy(self) -> None:
            states.append(tmp_path / f"state-{len(states)}")
            shutil.copytree(closed, states[-1], ignore=shutil.ignore_patterns(".lock"))

    with opened(closed, fs=Copying()) as log:
        look_up(log, middle(closed))
    assert len(states) >= 4
    for state in states:
        for name in good:
            assert (state / name).read_bytes() in (good[name], half[name])
        with opened(state) as log:
            assert not list(state.glob("*.tmp"))
            assert look_up(log, middle(state)) == middle(state)
            assert log.offset_for_time(TIME + middle(state)) == middle(state)
        assert {name: (state / name).read_bytes() for name in good} == good


def test_damage_in_the_segment_is_what_it_was_and_is_scanned_once(closed: Path, scans: list[int]) -> None:
    base, offset = segment_bases(closed)[1], middle(closed)
    with opened(closed, read_only=True) as log:
        damaged = log.fetch(offset - 60)
        place = damaged.position
        lost = next(iter(damaged.batches()))
    edit(closed / f"{base:020d}.log", lambda data: data.__setitem__(place + 70, data[place + 70] ^ 1))
    with opened(closed, read_only=True) as log:
        wanted = [record.offset for record in log.read(on_corrupt="skip")]
    spoil(closed, SPOILED["lost"], base=base)
    with opened(closed) as log:
        assert [record.offset for record in log.read(on_corrupt="skip")] == wanted
        for _ in range(3):
            assert look_up(log, offset) == offset
            with pytest.raises(CorruptBatchError):
                look_up(log, lost.base_offset)
    assert scans.count(base) == 1


def test_an_interrupt_just_before_a_rebuilt_index_is_kept_does_not_lose_it(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = spoil(closed, SPOILED["lost"], ".index")
    examined = LogSegment.examined
    interrupts: Iterator[BaseException] = iter([KeyboardInterrupt()])

    def interrupted(segment: LogSegment, rebuilt: RebuiltIndexes, size: int) -> None:
        examined(segment, rebuilt, size)
        for error in interrupts:
            raise error

    monkeypatch.setattr(LogSegment, "examined", interrupted)
    with opened(closed) as log:
        wanted = middle(closed)
        with pytest.raises(KeyboardInterrupt):
            look_up(log, wanted)
        assert look_up(log, wanted) == wanted
        found = writer_of(log).files.segments.floor(wanted)
        assert found is not None
        assert found.offset_index().size == len(good[found.path(".index").name])


def test_an_interrupt_in_a_scan_leaves_the_next_lookup_to_rebuild(
    closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = spoil(closed, SPOILED["lost"], base=segment_bases(closed)[1])
    interrupts: Iterator[BaseException] = iter([KeyboardInterrupt()])

    def interrupted(segment: LogSegment, offset_stop: int) -> ScannedSegment:
        for error in interrupts:
            raise error
        return scan_segment(segment, offset_stop)

    monkeypatch.setattr(index_repairs, "scan_segment", interrupted)
    with opened(closed) as log:
        with pytest.raises(KeyboardInterrupt):
            look_up(log, middle(closed))
        assert look_up(log, middle(closed)) == middle(closed)
    assert {name: (closed / name).read_bytes() for name in good} == good


def test_an_active_segment_with_a_lost_or_short_index_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path, durability="os", index_interval_bytes=1024) as log:
        for _ in range(200):
            log.append_many([b"x" * 90] * 3)
    name = path / f"{0:020d}.index"
    wanted = name.read_bytes()
    for content in (b"", wanted[: len(wanted) // 16 * 8]):
        name.write_bytes(content)
        with Log(path, durability="os", index_interval_bytes=1024) as log:
            log.append(b"x")
            log.truncate_to(600)
        assert name.read_bytes() == wanted
    name.unlink()
    with Log(path, durability="os", index_interval_bytes=1024) as log:
        log.append(b"x")
    assert name.read_bytes()[: len(wanted)] == wanted
