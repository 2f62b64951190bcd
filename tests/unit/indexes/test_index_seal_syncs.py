"""What the seal of an index syncs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.index import OffsetIndex
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.lives.offset_index_parts import BASE, create, encoded, fill


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{BASE:020d}.index"


def test_a_seal_syncs_nothing_of_an_index_that_stayed_empty(path: Path) -> None:
    fs = RecordingFs()
    create(path, fs=fs).seal(sync=True)
    assert fs.kinds() == ["create"]


def test_a_seal_syncs_an_empty_index_that_may_have_had_entries(path: Path) -> None:
    def written(index: OffsetIndex) -> None:
        fill(index, 1)
        index.truncate()

    changes: list[Callable[[OffsetIndex], None]] = [
        written,
        lambda index: index.take_in(0),  # another process may have added entries, and removed them
    ]
    for number, change in enumerate(changes):
        fs = RecordingFs()
        index = create(path.with_name(f"{number}.index"), fs=fs)
        change(index)
        index.seal(sync=True)
        assert fs.kinds()[-1] == "fdatasync"


def test_a_seal_syncs_an_index_whose_old_entries_were_cut(path: Path) -> None:
    path.write_bytes(encoded((10, 100), (20, 200)))
    fs = RecordingFs()
    index = OffsetIndex.open_writable(fs, path, BASE, index_bytes_max=240, entry_count=0)
    index.seal(sync=True)
    assert fs.kinds() == ["truncate", "fdatasync"]
