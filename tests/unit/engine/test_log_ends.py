"""How an open log shows its readers where it begins and ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kstore.engine.files import LogFiles
from kstore.log import Log, writer_of


def files_of(log: Log) -> LogFiles:
    return writer_of(log).files


@pytest.mark.parametrize("field", ["ends", "truncation_count", "cut_count"])
def test_ends_and_counts_cannot_be_set_without_publishing_them(tmp_path: Path, field: str) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        files: Any = files_of(log)
        before = getattr(files, field)
        with pytest.raises(AttributeError):
            setattr(files, field, before)


def test_a_cut_is_counted_when_it_begins_and_when_it_is_done(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many([b"a", b"b"])
        log.append_many([b"c"])
        files = files_of(log)
        before = files.truncation_count, files.cut_count
        log.truncate_to(2)
        assert (files.truncation_count, files.cut_count) == (before[0] + 2, before[1] + 2)
        writer_of(log).truncate_fully_and_start_at(7)
        assert (files.truncation_count, files.cut_count) == (before[0] + 4, before[1] + 4)
        assert files.ends.end_offset == 7


def test_a_cut_that_fails_after_it_began_is_counted_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many([b"a"])
        log.append_many([b"b"])
        files = files_of(log)
        before = files.truncation_count, files.cut_count

        def fail(*_: object) -> None:
            raise OSError("no")

        monkeypatch.setattr(files.epochs, "truncate_from_end", fail)
        with pytest.raises(OSError, match="no"):
            log.truncate_to(1)
        assert (files.truncation_count, files.cut_count) == (before[0] + 2, before[1] + 2)
        monkeypatch.undo()


def test_a_publication_that_is_no_cut_changes_no_count(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        files = files_of(log)
        before = files.truncation_count, files.cut_count
        log.append(b"a")
        log.append_many([b"b", b"c"])
        log.flush()
        log.roll()
        log.delete_records(1)
        assert (files.truncation_count, files.cut_count) == before
        assert files.ends.start_offset == 1
