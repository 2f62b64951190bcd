"""A crash interrupts the swap of a compacted segment: the next open finds the log as before, or as after.

Several segments become one here, and no record of the last ones stays. So the new segment's offsets do not show what it
replaces, and while it is completed its sources are only partly there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kstore.log import Log
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.lives.log_cases import segment_bases
from tests.support.lives.log_helpers import TIME

Result = TypeVar("Result")
SEGMENT_BYTES = 4096
Content = list[tuple[int, bytes | None, bytes | None]]


def opened(path: Path, **settings: Any) -> Log:
    settings = {"clock": ManualClock(TIME), "durability": "os", "cleanup_policy": "compact", **settings}
    return Log(path, segment_bytes=SEGMENT_BYTES, **settings)


def content(log: Log) -> Content:
    return [(record.offset, record.key, record.value) for record in log.read()]


class CopyingFs(WatchedFs):
    """Copies the log before and after every change of a name, as a killed process leaves it."""

    def __init__(self, path: Path, target: Path) -> None:
        super().__init__()
        self.path, self.target = path, target
        self.copies: list[Path] = []

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        result = action()
        if operation.kind in ("rename", "unlink"):
            self.copies.append(self.target / f"{len(self.copies)}-{operation.kind}")
            shutil.copytree(self.path, self.copies[-1])
        return result


def cuts(tmp_path: Path) -> tuple[list[Path], Content, Content]:
    """Copies of a log at every change of a compaction, and its contents before and after."""
    path = tmp_path / "log"
    with opened(path, cleanup_policy="delete") as log:
        for name in (b"a", b"b", b"c"):
            log.append_many([name] * 3, keys=[b"kept-" + name, b"x", b"y"], timestamps=[TIME] * 3)
            log.roll()
        # Records without a key go: nothing of the segments at 9 and 11 stays. (The last cleaned batch would stay empty,
        # so another group follows: a segment of the largest size.)
        for _ in range(2):
            log.append_many([b"gone"] * 2, timestamps=[TIME] * 2)
            log.roll()
        log.append(b"v" * (SEGMENT_BYTES - 100), key=b"large", timestamp=TIME)
        log.roll()
        log.append(b"v", key=b"z", timestamp=TIME)
        before = content(log)
    assert segment_bases(path) == [0, 3, 6, 9, 11, 13, 14]
    fs = CopyingFs(path, tmp_path / "cuts")
    with opened(path, fs=fs) as log:
        fs.copies.clear()
        log.compact()
        after = content(log)
    assert [offset for offset, _, _ in after] == [0, 3, 6, 7, 8, 13, 14]
    assert segment_bases(path) == [0, 13, 14], "five segments have become one"
    assert len(fs.copies) >= 20
    return fs.copies, before, after


def test_a_swap_that_was_cut_is_undone_or_completed(tmp_path: Path) -> None:
    copies, before, after = cuts(tmp_path)
    found = []
    for copy in copies:
        with Log(copy, read_only=True) as view:
            seen = content(view)
        with opened(copy) as log:
            assert content(log) == seen, f"{copy.name}: a view and a writer find the same"
            assert not log.recovery.corrupt
            log.check()
        found.append(seen == after)
        assert seen in (before, after), copy.name
    # The commit is one rename: before it nothing has changed, and after it nothing comes back.
    assert found == sorted(found)
    assert {False, True} == set(found)
