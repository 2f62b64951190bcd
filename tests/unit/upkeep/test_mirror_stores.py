"""Mirrors in object stores."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import DivergedError
from kstore.files.paths import parse_segment_name
from kstore.files.remote import open_remote
from kstore.log import Log, writer_of
from kstore.upkeep.mirror import mirror
from tests.support.harness.selection import tries
from tests.support.lives.mirror_parts import Tried, fill, run, segment_files, truncate, value, values


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


# --- stores -----------------------------------------------------------------------------------------------------------


def test_sealed_segments_go_to_a_store_and_come_back(tmp_path: Path, memory: str) -> None:
    source, back = tmp_path / "a-0", tmp_path / "back"
    fill(source, 0, 100)
    with Log(source) as log:
        log.delete_records(5)
    result = run(source, f"{memory}/a-0")
    last = int(sorted(source.glob("*.log"))[-1].stem)
    assert result.active_left_out
    assert (result.start_offset, result.end_offset) == (5, last)
    sealed = {name: data for name, data in segment_files(source).items() if int(name[:20]) < last}
    there = open_remote(f"{memory}/a-0")
    stored = {
        name: there.fs.open(there.path / name).pread(1 << 20, 0)
        for name in there.fs.list(there.path)
        if parse_segment_name(name) is not None
    }
    assert {name: data for name, data in stored.items() if not name.endswith(".snapshot")} == {
        name: data for name, data in sealed.items() if not name.endswith(".snapshot")
    }
    run(f"{memory}/a-0", back)
    assert {name: segment_files(back)[name] for name in sealed} == sealed
    assert values(back, read_only=False) == [value(number) for number in range(5, last)]


def test_a_store_is_brought_up_to_date(tmp_path: Path, memory: str) -> None:
    source = tmp_path / "data" / "a-0"
    end = 0
    for step in (30, 1, 50, 20):
        fill(source, end, end + step)
        end += step
        list(mirror(tmp_path / "data", memory))
        (again,) = mirror(tmp_path / "data", memory)
        assert (again.segments_copied, again.bytes_copied) == (0, 0)
    with Log(source) as log:
        log.delete_records(40)
    (result,) = mirror(tmp_path / "data", memory, delete=True)
    assert result.segments_deleted > 0
    list(mirror(memory, tmp_path / "back"))
    found = values(tmp_path / "back" / "a-0")
    assert found == [value(number) for number in range(40, 40 + len(found))]
    truncate(source)
    (result,) = mirror(tmp_path / "data", memory)
    assert isinstance(result.error, DivergedError)
    (result,) = mirror(tmp_path / "data", memory, force=True)
    assert result.error is None


def test_a_log_that_only_has_its_active_segment_leaves_a_store_empty(tmp_path: Path, memory: str) -> None:
    fill(tmp_path / "a-0", 0, 3)
    result = run(tmp_path / "a-0", f"{memory}/a-0")
    assert result.segments_copied == 0
    assert result.active_left_out
    assert not [name for name in open_remote(memory).fs.list("/dir/a-0") if name.endswith(".log")]


@pytest.mark.parametrize("delete", [False, True])
def test_a_log_of_which_retention_left_only_the_active_segment_keeps_its_mirror(
    delete: bool, tmp_path: Path, memory: str
) -> None:
    source, target = tmp_path / "a-0", f"{memory}/a-0"
    fill(source, 0, 100)
    run(source, target)
    (*sealed, active) = sorted(int(path.stem) for path in source.glob("*.log"))
    with Log(source) as log:
        log.delete_records(active)
    result = run(source, target, delete=delete)
    assert (result.end_offset, result.segments_deleted) == (active, len(sealed) if delete else 0)
    with Log(target, read_only=True) as copy:
        assert list(copy.read_values()) == [value(number) for number in range(active if delete else 0, active)]
        assert copy.end_offset == active
    fill(source, 100, 150)
    run(source, target, delete=delete)
    with Log(target, read_only=True) as copy:
        assert next(iter(copy.read())).offset == (active if delete else 0)
        assert copy.end_offset > active


def test_a_mirror_ends_where_retention_was_faster_and_left_only_the_active_segment(tmp_path: Path, memory: str) -> None:
    source, target = tmp_path / "a-0", f"{memory}/a-0"
    fill(source, 0, 30)
    end = run(source, target).end_offset
    fill(source, 30, 100)
    active = max(int(path.stem) for path in source.glob("*.log"))
    with Log(source) as log:
        log.delete_records(active)
    assert run(source, target).end_offset == end < active
    with Log(target, read_only=True) as copy:
        assert list(copy.read_values()) == [value(number) for number in range(end)]
        assert copy.end_offset == end
    fill(source, 100, 150)
    run(source, target)
    with Log(target, read_only=True) as copy:
        offsets = [record.offset for record in copy.read()]
    assert offsets == [*range(end), *range(active, offsets[-1] + 1)]
    assert offsets[-1] > active


def test_a_log_that_begins_anew_within_its_mirror_is_refused(tmp_path: Path, memory: str) -> None:
    source, target = tmp_path / "a-0", f"{memory}/a-0"
    fill(source, 0, 100)
    run(source, target)
    active = max(int(path.stem) for path in source.glob("*.log"))
    with Log(source) as log:
        writer_of(log).truncate_fully_and_start_at(active - 1)
        log.append(b"new")
    with pytest.raises(DivergedError, match=f"ends at offset {active}, but the source begins at offset {active - 1}"):
        run(source, target)


def test_an_upload_that_fails_goes_on_with_the_next_run(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch, tried: Tried
) -> None:
    source = tmp_path / "a-0"
    fill(source, 0, 60)
    from kstore.files.remote import RemoteFiles

    put, rename = RemoteFiles.put, RemoteFiles.rename
    left = [0]

    def failing_put(self: RemoteFiles, path: Any, chunks: Any) -> int:
        def cut() -> Iterator[bytes]:
            for chunk in chunks:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(errno.ENETDOWN, "down")
                yield chunk

        return put(self, path, cut())

    def failing_rename(self: RemoteFiles, one: Any, other: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENETDOWN, "down")
        rename(self, one, other)

    for at in range(0, 200, tries(1, quick=5)):
        url = f"{memory}/{at}/a-0"
        left[0] = at
        monkeypatch.setattr(RemoteFiles, "put", failing_put)
        monkeypatch.setattr(RemoteFiles, "rename", failing_rename)
        try:
            run(source, url)
        except OSError as error:
            if error.strerror != "down":
                raise
        else:
            assert at > 20
            return
        finally:
            monkeypatch.setattr(RemoteFiles, "put", put)
            monkeypatch.setattr(RemoteFiles, "rename", rename)
        run(source, url)
        run(url, tmp_path / f"back-{at}")
        found = values(tmp_path / f"back-{at}")
        assert found == [value(number) for number in range(len(found))]
        assert len(found) > 40
        tried("faults", 1)
