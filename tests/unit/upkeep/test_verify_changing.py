"""Verification of a directory in which another program compacts: no false damage, and no missed damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from kstore.files.local import SYSTEM_FS
from kstore.files.paths import KSTORE_STATE, LOG_SUFFIX, SNAPSHOT_SUFFIX, segment_name
from kstore.log import Log
from kstore.record.batch import Batch
from kstore.state.producer_snapshot import encode_snapshot
from kstore.upkeep.verify import changing, partition, verify_log
from kstore.upkeep.verify.partition import verify_head
from kstore.upkeep.verify.pieces import pieces_of, verify_piece
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.harness.selection import tries
from tests.support.lives.log_helpers import TIME
from tests.support.oracles.kafka_cleaner import clean

Result = TypeVar("Result")

SEGMENT = 12
COUNT = 4 * SEGMENT
MERGED = (0, SEGMENT, 2 * SEGMENT)
# More operations than a verification of the log makes.
OPERATIONS = 150


class CleanedFs(WatchedFs):
    """From operation ``at`` on, another program makes its next ``steps_each`` steps before each operation."""

    def __init__(self, steps: Iterator[str], at: int, steps_each: int) -> None:
        super().__init__(SYSTEM_FS)
        self._steps, self._at, self._steps_each = steps, at, steps_each
        self.count = 0

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        self.count += 1
        if self.count >= self._at:
            self.step(self._steps_each)
        return super().perform(operation, action)

    def step(self, count: int) -> None:
        for _ in range(count):
            next(self._steps, None)


def keeps(batch: Batch) -> bool:
    return batch.base_offset % 5 == 0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker's log, without kstore's own files."""
    path = tmp_path_factory.mktemp("live") / "t-0"
    with Log(path, clock=ManualClock(TIME), durability="os", index_interval_bytes=200) as log:
        for offset in range(COUNT):
            log.append(b"%d|" % offset + b"x" * (offset * 7 % 90), key=b"k%d" % offset, timestamp=TIME + offset)
            if offset % SEGMENT == SEGMENT - 1:
                log.roll()
    for name in (KSTORE_STATE, ".lock"):
        (path / name).unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("steps_each", [1, 100], ids=["a step an operation", "at once"])
def test_a_cleaner_at_work_is_no_damage(
    steps_each: int, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "is_live", lambda fs, directory: True)
    for at in range(1, OPERATIONS, OPERATIONS // tries(OPERATIONS, quick=50)):
        path = Path(shutil.copytree(written, tmp_path / f"{at}" / "t-0"))
        fs = CleanedFs(clean(path, MERGED, keeps), at, steps_each)
        monkeypatch.setattr(changing, "sleep", lambda seconds, fs=fs: fs.step(1))
        found = verify_log(path, fs=fs)
        assert (found.damages, found.end_offset) == ([], COUNT), at
        if fs.count < at:
            break
    assert 20 < at < OPERATIONS - 1, "the cleaner came at every operation"


@pytest.mark.parametrize("offset", [10, 25, 40])
def test_damage_is_found_whatever_a_cleaner_does(
    offset: int, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cleaner merges the first two segments; offset 10 is in the segment that it replaces, and stays damaged."""
    monkeypatch.setattr(partition, "is_live", lambda fs, directory: True)
    for at in range(1, 60, 4):
        path = Path(shutil.copytree(written, tmp_path / f"{at}" / "t-0"))
        steps = clean(path, MERGED[:2], keeps)
        next(steps)
        for log in path.glob(f"*{LOG_SUFFIX}*"):
            data = bytearray(log.read_bytes())
            if (place := data.find(b"%d|" % offset + b"x" * (offset * 7 % 90))) >= 0:
                data[place] ^= 1
                log.write_bytes(data)
        fs = CleanedFs(steps, at, 2)
        monkeypatch.setattr(changing, "sleep", lambda seconds, fs=fs: fs.step(1))
        assert any(found.first <= offset <= found.last for found in verify_log(path, fs=fs).damages), at


def test_a_segment_that_never_stays_the_same_is_reported(written: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(written, tmp_path / "t-0"))
    data = bytearray((path / segment_name(0, LOG_SUFFIX)).read_bytes())
    data[100] ^= 1

    class Restless(WatchedFs):
        def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
            if operation.kind == "stat":
                (path / "new").write_bytes(data)
                (path / "new").rename(path / segment_name(0, LOG_SUFFIX))
            return super().perform(operation, action)

    assert [found.kind for found in verify_log(path, fs=Restless(SYSTEM_FS)).damages] == ["batch"]


def test_a_piece_that_was_replaced_while_it_was_read_is_no_damage(written: Path, tmp_path: Path) -> None:
    for at in range(1, 12):
        path = Path(shutil.copytree(written, tmp_path / f"{at}" / "t-0"))
        pieces = pieces_of(verify_head(path))
        found = verify_piece(pieces[1], fs=CleanedFs(clean(path, MERGED, keeps), at, 3))
        assert found.log.damages == [], at


def test_a_piece_that_was_merged_with_others_after_the_listing_is_no_damage(written: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(written, tmp_path / "t-0"))
    pieces = pieces_of(verify_head(path))
    for _ in clean(path, MERGED, keeps):
        pass
    assert verify_piece(pieces[0]).log.damages == []


def test_files_that_a_broker_is_about_to_write_are_no_damage(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker creates the indexes of a new segment after its ``.log``, and a snapshot before it writes it."""
    path = Path(shutil.copytree(written, tmp_path / "t-0"))
    for suffix in (LOG_SUFFIX, SNAPSHOT_SUFFIX):
        (path / segment_name(COUNT + 5, suffix)).touch()
    assert {found.kind for found in verify_log(path).damages} == {"index", "timeindex", "snapshot"}
    monkeypatch.setattr(partition, "is_live", lambda fs, directory: True)
    snapshot = path / segment_name(COUNT + 5, SNAPSHOT_SUFFIX)
    monkeypatch.setattr(changing, "sleep", lambda seconds: snapshot.write_bytes(encode_snapshot([])))
    assert verify_log(path).damages == []
