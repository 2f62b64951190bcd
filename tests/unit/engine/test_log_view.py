"""A log opened for reading beside a live writer, or after one: it sees what exists and touches nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kstore.engine import index_repairs, view
from kstore.engine.index_repairs import ScannedSegment, scan_segment
from kstore.errors import OffsetOutOfRangeError
from kstore.log import Log
from kstore.segment import LogSegment
from tests.support.lives.log_cases import killed


def snapshot(path: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        each.name: (each.read_bytes(), each.stat().st_mtime_ns, each.stat().st_ino) for each in sorted(path.iterdir())
    }


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "live"])
def test_reading_changes_nothing(closed: bool, tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = Log(path, segment_bytes=1024)
    for number in range(20):
        writer.append(b"%d" % number * 50)
    if closed:
        writer.close()
    before = snapshot(path)
    with Log(path, read_only=True) as log:
        assert len(list(log.read())) == 20
        assert log.offset_for_time("max_timestamp") is not None
        assert (log.start_offset, log.end_offset, log.high_watermark, log.last_stable_offset) == (0, 20, 20, 20)
        assert log.verify().clean
        log.check()
    assert snapshot(path) == before
    writer.close()


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_a_view_sees_each_append_roll_and_deletion(durability: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with (
        Log(path, durability=durability, segment_bytes=1024) as writer,  # type: ignore[arg-type]
        Log(path, read_only=True) as view,
    ):
        for number in range(20):
            assert view.end_offset == number
            writer.append(b"x" * 200)
            assert view.end_offset == number + 1
            assert next(view.read(number)).offset == number
        writer.delete_records(10)
        assert view.end_offset == 20
        assert view.start_offset == 10
        with pytest.raises(OffsetOutOfRangeError):
            view.read(3)
        writer.truncate_to(15)
        writer.append(b"new")
        assert (view.end_offset, [record.value for record in view.read(15)]) == (16, [b"new"])


def test_a_torn_tail_is_not_yet_there(tmp_path: Path) -> None:
    with Log(tmp_path / "alive", durability="os") as writer:
        writer.append(b"one")
        writer.append(b"two")
        path = killed(writer, tmp_path / "log")
    log_file = next(path.glob("*.log"))
    whole = log_file.read_bytes()
    for size in range(len(whole) // 2, len(whole)):
        log_file.write_bytes(whole[:size])
        with Log(path, read_only=True) as view:
            assert [record.value for record in view.read()] == [b"one"]
    assert len(log_file.read_bytes()) == len(whole) - 1


def test_a_view_follows_a_writer_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Log(path).close()
    program = (
        "import kstore, sys\n"
        "with kstore.Log(sys.argv[1], segment_bytes=2048) as log:\n"
        "    for number in range(300): log.append(b'%d' % number)"
    )
    got: list[bytes | None] = []

    def follow() -> None:
        with Log(path, read_only=True) as view:
            for record in view.read(follow=True, timeout=300):
                got.append(record.value)
                if len(got) == 300:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    thread.join(300)
    assert got == [b"%d" % number for number in range(300)]


def test_a_copied_log_file_without_its_indexes_is_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, copied = tmp_path / "log", tmp_path / "copied"
    with Log(path, durability="os") as log:
        for number in range(300):
            log.append(b"%d" % number * 50)
    copied.mkdir()
    name = f"{0:020d}.log"
    data = (path / name).read_bytes()
    scanned: list[int] = []

    def noted(segment: LogSegment, offset_stop: int) -> ScannedSegment:
        scanned.append(segment.size)
        return scan_segment(segment, offset_stop)

    monkeypatch.setattr(index_repairs, "scan_segment", noted)
    (copied / name).write_bytes(data[:-1000])
    with Log(copied, read_only=True) as log:
        record = log.get(200)
        assert record is not None
        assert not scanned  # it may be a broker's active segment, whose index comes with the next batch
    monkeypatch.setattr(view, "ACTIVE_UNINDEXED_BYTES_MAX", 4096)
    with Log(copied, read_only=True) as log:
        assert next(iter(log.read())).value == b"0" * 50
        assert not scanned  # the first record needs no index
        for number in (200, 7, 150):
            record = log.get(number)
            assert record is not None
            assert record.value == b"%d" % number * 50
        assert scanned == [len(data) - 1000]
        # It was not copied whole yet. A segment that grows is not scanned again each time.
        (copied / name).write_bytes(data)
        log.refresh()
        assert [next(iter(log.read(number))).value for number in (299, 200)] == [b"299" * 50, b"200" * 50]
    assert len(scanned) == 1


def test_many_readers_and_one_writer_agree(tmp_path: Path) -> None:
    path = tmp_path / "log"
    errors: list[BaseException] = []
    done = threading.Event()

    def read(log: Log) -> None:
        try:
            while not done.is_set():
                offsets = [record.offset for record in log.read(log.start_offset)]
                assert offsets == list(range(offsets[0], offsets[0] + len(offsets))) if offsets else True
        except OffsetOutOfRangeError:
            pass  # the start was raised between the lookup and the read
        except BaseException as error:
            errors.append(error)

    with Log(path, durability="os", segment_bytes=4096) as writer, Log(path, read_only=True) as view:
        threads = [threading.Thread(target=read, args=(log,)) for log in (writer, writer, view)]
        for thread in threads:
            thread.start()
        for number in range(600):
            writer.append_many([b"%d" % number] * 5)
            if number % 100 == 99:
                writer.delete_records(writer.end_offset - 200)
        done.set()
        for thread in threads:
            thread.join()
    assert not errors
