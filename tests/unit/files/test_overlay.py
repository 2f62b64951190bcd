"""An overlay: changes in it are visible in it, and nowhere else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kstore.errors import FileInTheWayError, FileMissingError, StorageError
from kstore.files.local import SYSTEM_FS
from kstore.files.overlay import OverlayFs


def test_a_file_is_written_and_cut_as_on_a_disk_and_the_disk_stays_as_it_was(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    below, real = tmp_path / "below", tmp_path / "real"
    content = generator.randbytes(10_000)
    below.write_bytes(content)
    real.write_bytes(content)
    thought = OverlayFs(SYSTEM_FS).open(below, write=True)
    done = SYSTEM_FS.open(real, write=True)
    for _ in range(300):
        position = generator.randrange(20_000)
        data = generator.randbytes(generator.randrange(1, 9_000))
        step = generator.randrange(3)
        for file in (thought, done):
            if step == 0:
                file.truncate(position)
            elif step == 1:
                file.write_all([data], position)
            else:
                file.map(max(position, 1)).store(0, data[: max(position, 1)])
        assert thought.size() == done.size()
        assert thought.pread(30_000, position // 2) == done.pread(30_000, position // 2)
    assert below.read_bytes() == content


def test_names_change_in_the_overlay_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    fs = OverlayFs(SYSTEM_FS)
    fs.rename(tmp_path / "a", tmp_path / "c")
    fs.unlink(tmp_path / "b")
    fs.open(tmp_path / "d", write=True, create=True).write_all([b"d"], 0)
    assert sorted(fs.list(tmp_path)) == ["c", "d"]
    assert fs.open(tmp_path / "c").pread(9, 0) == b"a"
    assert fs.stat(tmp_path / "d").size == 1
    assert not fs.exists(tmp_path / "a")
    with pytest.raises(FileMissingError):
        fs.open(tmp_path / "b")
    with pytest.raises(FileMissingError):
        fs.stat(tmp_path / "b")
    with pytest.raises(FileInTheWayError):
        fs.open(tmp_path / "d", write=True, create=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_file_that_is_only_thought_of_has_no_descriptor(tmp_path: Path) -> None:
    file = OverlayFs(SYSTEM_FS).open(tmp_path / "a", write=True, create=True)
    with pytest.raises(StorageError, match="no descriptor"):
        file.fileno()
