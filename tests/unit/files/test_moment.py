"""What one listing says is not asked for again, until it is contradicted; nothing wrong is read because of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import FileMissingError, OffsetOutOfRangeError
from kstore.files.fs import FileStat
from kstore.files.moment import Moment, is_telling
from kstore.files.remote import RemoteFiles, RemoteReading, open_remote
from kstore.log import Log
from tests.support.fakes.fake_clock import ManualClock

SECOND = 1_000_000_000
NOW = 1_000 * SECOND
OLD = NOW - 3 * SECOND + 1
Requests = Callable[[], list[str]]


def stat(size: int = 5, mtime_ns: int = OLD, tag: str = "") -> FileStat:
    return FileStat(size, mtime_ns, 0, 0, True, False, tag=tag)


@pytest.mark.parametrize(
    ("mtime_ns", "tag", "tells"),
    [
        (OLD, "", True),
        (NOW - 2 * SECOND + 1, "", False),  # another change may have the same time
        (NOW + SECOND + 1, "", False),
        (NOW - 9 * SECOND, "", False),  # of whole seconds
        (0, "", False),
        (NOW, "etag", True),
        (0, "etag", True),
    ],
)
def test_a_stat_tells_of_each_change_only_by_a_tag_or_a_time_that_has_passed(
    mtime_ns: int, tag: str, tells: bool
) -> None:
    assert is_telling(stat(mtime_ns=mtime_ns, tag=tag), NOW) is tells


def test_a_directory_that_has_not_changed_keeps_its_listing_and_any_other_gets_a_new_one() -> None:
    clock = ManualClock(NOW // 1_000_000)
    moment = Moment(clock=clock)
    for directory, entries in {
        "/same": {"a": stat(), "sub": FileStat(0, 0, 0, 0, False, True)},
        "/grown": {"a": stat()},
        "/young": {"a": stat(mtime_ns=NOW - 1)},
        "/gone": {"a": stat()},
        "/forgotten": {"a": stat()},
    }.items():
        moment.note(directory, entries)
    first = {name: moment.listing(name) for name in ("/same", "/grown", "/young", "/gone", "/forgotten")}
    moment.begin()
    assert moment.listing("/same") is None, "each moment lists"
    moment.note("/same/", dict(first["/same"] or {}))
    moment.note("/grown", {"a": stat(6)})
    moment.note("/young", dict(first["/young"] or {}))
    moment.forget("/forgotten")
    moment.note("/forgotten", dict(first["/forgotten"] or {}))
    assert moment.listing("/same") is first["/same"]
    assert moment.listing("/grown") == {"a": stat(6)}
    assert moment.listing("/young") is not first["/young"], "it may have changed in the same step of its clock"
    assert moment.listing("/forgotten") is not first["/forgotten"]
    assert moment.listing("/gone") is None


def test_a_listed_directory_answers_for_its_names_and_for_those_that_it_lacks() -> None:
    moment = Moment()
    assert moment.stat("/logs/a-0/x") is None, "not listed"
    moment.note_tree("/logs", {"a-0/x": stat(1), "a-0/deep/down/y": stat(2), "top": stat(3)})
    assert moment.stat("/logs/a-0/x") == stat(1)
    assert moment.stat("/logs/a-0/deep/down/y") == stat(2)
    assert moment.stat("/logs/top") == stat(3)
    assert moment.listing("/logs/a-0/deep") == {"down": FileStat(0, 0, 0, 0, False, True)}
    for directory in ("/logs", "/logs/a-0", "/logs/a-0/deep/down"):
        found = moment.stat(directory)
        assert found is not None
        assert found.is_dir
    for missing in ("/logs/b-0", "/logs/a-0/z"):
        with pytest.raises(FileMissingError):
            moment.stat(missing)
    assert moment.stat("/elsewhere/z") is None


def test_only_small_files_whose_stat_tells_are_kept() -> None:
    moment = Moment(clock=ManualClock(NOW // 1_000_000))
    moment.keep("/small", stat(5), b"12345")
    moment.keep("/young", stat(5, mtime_ns=NOW), b"12345")
    moment.keep("/short", stat(5), b"123")
    moment.keep("/large", stat(5_000), b"x" * 5_000)
    assert moment.content("/small", stat(5)) == b"12345"
    assert moment.content("/small", stat(5, mtime_ns=OLD + 1)) is None
    for path, size in (("/young", 5), ("/short", 5), ("/large", 5_000)):
        assert moment.content(path, stat(size)) is None


# --- a log that changes between its listing and the look --------------------------------------------------------------


def copied(source: Path, fs: Any, target: Path) -> None:
    """As a mirror does: every file whole, and what is gone is deleted."""
    names = {file.name for file in source.iterdir() if file.is_file()} - {".lock"}
    for name in sorted(names):
        fs.put(target / name, [(source / name).read_bytes()])
    for name in set(fs.list(target)) - names:
        fs.unlink(target / name)


@pytest.fixture
def far(tmp_path: Path, memory: str) -> tuple[Path, RemoteFiles, RemoteFiles, Path]:
    """A log of 30 records in several segments, its copy far away, and two ways there: a writer's, and one with a
    moment in which the directory was listed."""
    source = tmp_path / "a-0"
    with Log(source, segment_bytes=2_000) as log:
        for _ in range(3):
            log.append_many([b"v" * 100] * 10)
    at = open_remote(memory) / "a-0"
    copied(source, at.fs, at.path)
    moment = open_remote(memory, reading=RemoteReading(Moment()))
    assert isinstance(moment.fs, RemoteFiles)
    assert isinstance(at.fs, RemoteFiles)
    moment.fs.list(at.path)
    return source, at.fs, moment.fs, at.path


def test_records_appended_after_the_listing_are_not_taken_for_lost(
    far: tuple[Path, RemoteFiles, RemoteFiles, Path],
) -> None:
    source, writer, reader, path = far
    with Log(source) as log:
        log.append_many([b"later"] * 5)
    copied(source, writer, path)
    with Log(path, read_only=True, fs=reader) as log:
        assert log.end_offset == 35
        assert list(log.read(30))[-1].value == b"later"


def test_a_log_that_rolled_after_the_listing_is_read_whole(far: tuple[Path, RemoteFiles, RemoteFiles, Path]) -> None:
    source, writer, reader, path = far
    with Log(source, segment_bytes=2_000) as log:
        for _ in range(4):
            log.append_many([b"v" * 100] * 10)
    copied(source, writer, path)
    with Log(path, read_only=True, fs=reader) as log:
        assert log.end_offset == 70
        assert len(list(log.read(0, 70))) == 70


def test_segments_deleted_after_the_listing_are_found_missing(
    far: tuple[Path, RemoteFiles, RemoteFiles, Path],
) -> None:
    source, writer, reader, path = far
    with Log(path, read_only=True, fs=reader) as log:
        assert log.start_offset == 0
        with Log(source) as log_here:
            log_here.delete_records(20)
        copied(source, writer, path)
        with pytest.raises(OffsetOutOfRangeError):
            list(log.read(0))
        assert log.start_offset == 20


def test_within_a_moment_a_log_is_looked_at_once(
    far: tuple[Path, RemoteFiles, RemoteFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, reader, path = far
    with Log(path, read_only=True, fs=reader) as log:
        assert log.end_offset == 30
        asked: list[str] = []
        monkeypatch.setattr(reader, "_do", lambda where, *_, **__: asked.append(str(where)))
        assert (log.end_offset, log.start_offset, log.high_watermark) == (30, 0, 30)
        assert asked == []


# --- an end that is known ---------------------------------------------------------------------------------------------


def test_up_to_a_known_end_a_log_is_read_without_a_search_of_its_last_segment(
    far: tuple[Path, RemoteFiles, RemoteFiles, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, writer, _, path = far
    last = str(path / max(name for name in writer.list(path) if name.endswith(".log")))
    asked: list[str] = []
    read_range = writer.read_range

    def recorded(path: str, start: int, stop: int) -> bytes:
        asked.append(path)
        return read_range(path, start, stop)

    monkeypatch.setattr(writer, "read_range", recorded)
    for known_end, is_searched in ((5, False), (20, False), (21, True), (30, True)):
        asked.clear()
        with Log(path, read_only=True, fs=writer, _known_end=known_end) as log:
            assert log.end_offset == (30 if is_searched else 20)
            assert [record.offset for record in log.read(0, known_end)] == list(range(known_end))
        assert (last in asked) is is_searched


@pytest.mark.parametrize("cut_at", [25, 15])
def test_a_known_end_that_no_longer_holds_is_given_up(
    cut_at: int, far: tuple[Path, RemoteFiles, RemoteFiles, Path], tmp_path: Path
) -> None:
    """What was cut since is not read, and the end shows it."""
    source, writer, reader, path = far
    shutil.copytree(source, tmp_path / "cut")
    with Log(tmp_path / "cut") as log:
        log.truncate_to(cut_at)
    with Log(path, read_only=True, fs=reader, _known_end=20) as log:
        assert log.end_offset == 20
        copied(tmp_path / "cut", writer, path)
        assert [record.offset for record in log.read(0, 20)] == list(range(min(cut_at // 10 * 10, 20)))
        assert log.end_offset == min(cut_at, 20)
    with Log(path, read_only=True, fs=writer, _known_end=20) as log:
        assert log.end_offset == cut_at
