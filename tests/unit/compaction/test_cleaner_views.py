"""A compaction as another process sees it: the log is whole at each change of a name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from kstore.files.fs import FileSystem
from kstore.log import Log, writer_of
from tests.support.fakes.fake_fs import Operation, WatchedFs
from tests.support.harness.evidence import Lost
from tests.support.lives.cleaner_parts import filled, latest, pairs

Result = TypeVar("Result")


def at_each_change(log: Log, look: Callable[[], object]) -> int:
    """Compacts; calls ``look`` after each change of a name, and returns how many times."""
    context = writer_of(log).context
    fs = WatchingFs(context.fs, look)
    writer_of(log).files.context = context._replace(fs=fs)
    log.compact()
    return fs.count


class WatchingFs(WatchedFs):
    """Calls ``look`` after every change of a name."""

    def __init__(self, inner: FileSystem, look: Callable[[], object]) -> None:
        super().__init__(inner)
        self._look = look
        self.count = 0

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        result = action()
        if operation.kind in ("rename", "unlink"):
            self.count += 1
            self._look()
        return result


@pytest.mark.promise("one writer")
def test_a_view_sees_the_log_whole_at_every_moment_of_a_swap(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    path = tmp_path / "log"
    with filled(path) as log, Log(path, read_only=True) as old, Log(path, read_only=True) as other:
        values = latest(log)
        begun = iter(old.read())
        for _ in range(10):
            next(begun)

        def look() -> None:
            for view in (old, other):
                found = list(view.read(on_corrupt="raise"))
                if {one.key: one.value for one in found} != values:
                    raise Lost(f"{len(found)} records")
                tried("reads", 1)
            with Log(path, read_only=True) as fresh:
                assert latest(fresh) == values
                assert fresh.end_offset == 120

        assert at_each_change(log, look) > 10
        # A reader in the middle continues to the end.
        rest = [record.offset for record in begun]
        assert set(rest) >= {offset for offset, _, _ in pairs(log) if offset >= 10}


def test_a_view_takes_up_where_a_swap_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "log"
    copies: list[Path] = []
    with filled(path) as log:
        values = latest(log)

        def look() -> None:
            copies.append(tmp_path / f"copy-{len(copies)}")
            shutil.copytree(path, copies[-1])

        at_each_change(log, look)
    for copy in copies:
        with Log(copy, read_only=True) as view:
            assert latest(view) == values
