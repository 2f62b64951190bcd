"""``append`` of one plain record, which takes a shorter way than ``append_many`` and must write the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.engine.group_commit import GroupCommit, Pending
from kstore.errors import DiskFullError, InvalidRecordError, RecordTooLargeError
from kstore.segments.tail import SegmentTail
from kstore.types import Durability
from tests.fake_clock import ManualClock
from tests.fake_fs import FailingFs, Fault

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")


def log_at(path: Path, **settings: Any) -> Log:
    return Log(path, clock=ManualClock(), **settings)


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in (".log", ".index", ".timeindex")}


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"index_interval_bytes": 200, "segment_bytes": 3000},
        {"message_timestamp_type": "LogAppendTime"},
        {"compression_type": "lz4"},
    ],
    ids=["plain", "small segments", "LogAppendTime", "lz4"],
)
def test_the_files_are_those_of_append_many(tmp_path: Path, settings: dict[str, Any], durability: Durability) -> None:
    records = [(b"x" * (7 * number % 300), None if number % 3 else b"key %d" % number) for number in range(100)]
    with log_at(tmp_path / "one", durability=durability, **settings) as log:
        assert [log.append(value, key=key) for value, key in records] == list(range(100))
    with log_at(tmp_path / "many", durability=durability, **settings) as log:
        for value, key in records:
            log.append_many([value], keys=[key])
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


def test_it_is_taken_where_the_record_is_plain(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os") as log:
        assert log.writer.appends.append_single(b"a", None) is None  # nothing is open for appending yet
        log.append(b"a")
        assert log.writer.appends.append_single(b"b", b"key") == (1, 1_700_000_000_000)
        assert log.writer.appends.append_single(bytearray(b"b"), None) is None  # type: ignore[arg-type]
        assert log.writer.appends.append_single(None, None) is None
        assert log.writer.appends.append_single(bytes(1 << 20), None) is None
        assert log.end_offset == 2
        assert log.metrics()["append_records"] == 2


def test_what_cannot_be_appended_is_refused_as_ever(tmp_path: Path) -> None:
    with log_at(tmp_path / "log", durability="os", cleanup_policy="compact", max_message_bytes=1000) as log:
        log.append(b"a", key=b"k")
        with pytest.raises(InvalidRecordError):
            log.append(b"no key")
        with pytest.raises(RecordTooLargeError):
            log.append(bytes(1000), key=b"k")
        with pytest.raises(TypeError):
            log.append("text", key=b"k")  # type: ignore[arg-type]
        assert log.end_offset == 1


def test_a_failed_one_leaves_nothing_and_the_next_goes_on(tmp_path: Path) -> None:
    fs = FailingFs()
    with Log(tmp_path / "log", durability="os", fs=fs) as log:
        log.append(b"a")
        fs.faults.append(Fault(1, 28, written=10, kinds=frozenset({"write_all"})))
        with pytest.raises(DiskFullError):
            log.append(b"b")
        assert log.append(b"c") == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]
        assert log.metrics()["append_errors"] == {"DiskFullError": 1}


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_interrupt_after_the_write_leaves_nothing(
    tmp_path: Path, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*mark: int) -> None:
        raise KeyboardInterrupt

    with Log(tmp_path / "log", durability=durability) as log:
        log.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(SegmentTail, "note", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.append(b"b")
        assert log.append(b"c") == 1
        assert [record.value for record in log.read()] == [b"a", b"c"]


def test_a_follower_is_woken(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        follower = iter(log.read(1, follow=True))
        found: list[bytes | None] = []
        thread = threading.Thread(target=lambda: found.append(next(follower).value))
        thread.start()
        while not log.metrics()["followers"]:
            pass
        log.append(b"b")
        thread.join(300)
        assert found == [b"b"]


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_threads_that_append_get_an_offset_each(tmp_path: Path, durability: Durability) -> None:
    with Log(tmp_path / "log", durability=durability) as log:
        given: list[tuple[int, bytes]] = []

        def work(name: int) -> None:
            given.extend((log.append(value), value) for value in [b"%d %d" % (name, at) for at in range(100)])

        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(given) == [(record.offset, record.value) for record in log.read()]
        assert len(given) == 800


class Heard(Pending[str]):
    pass


def test_an_append_that_arrives_during_a_lone_commit_is_committed_after_it() -> None:
    groups: list[list[Heard]] = []

    def commit(group: Any) -> None:
        groups.append(list(group))
        for item in group:
            item.result = "done"

    group: GroupCommit[Heard] = GroupCommit(commit, ManualClock())
    others = [Heard() for _ in range(3)]
    threads = [threading.Thread(target=group.submit, args=(other,)) for other in others]

    def alone() -> str:
        for thread in threads:
            thread.start()
        while len(group._queue) < 3:
            pass
        assert group.alone(lambda: "me too") is None  # another thread commits
        assert not groups
        return "alone"

    assert group.alone(alone) == "alone"
    for thread in threads:
        thread.join(300)
    assert [other.result for other in others] == ["done"] * 3
    assert sum(map(len, groups)) == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_lone_commit_that_fails_lets_the_next_one_lead(error: type[BaseException]) -> None:
    group: GroupCommit[Heard] = GroupCommit(lambda items: None, ManualClock())

    def fails() -> str:
        raise error

    with pytest.raises(error):
        group.alone(fails)
    assert group.alone(lambda: "again") == "again"
