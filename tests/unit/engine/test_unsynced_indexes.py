"""Indexes whose sync has failed: a power cut may leave anything in them, so the next open builds them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import StorageError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.state.log_state import read_state
from kstore.types import Durability
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.lives.log_cases import segment_bases

COUNT = 60
FIRST = f"{0:020}"


def roll_and_flush(log: Log) -> None:
    log.roll()
    log.flush()


WAYS: dict[str, tuple[Durability, Callable[[Log], object]]] = {
    "close": ("os", lambda log: None),
    "roll": ("sync", Log.roll),
    "flush": ("os", roll_and_flush),
}


def filled(path: Path, durability: Durability, fs: FailingFs) -> Log:
    log = Log(path, durability=durability, fs=fs, index_interval_bytes=0, cleanup_policy="compact")
    for number in range(COUNT):
        log.append(b"%d" % number, key=b"k")
    return log


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.promise("rebuilt")
def test_a_log_whose_index_could_not_be_synced_is_not_marked_clean(way: str, suffix: str, tmp_path: Path) -> None:
    durability, act = WAYS[way]
    path, name = tmp_path / "log", f"{FIRST}.{suffix}"
    fs = FailingFs(SYSTEM_FS, Fault(1, kinds=frozenset({"fdatasync"}), suffix=name))
    log = filled(path, durability, fs)
    act(log)
    log.append(b"last", key=b"l")
    log.close()
    assert [operation.kind for operation in fs.failures] == ["fdatasync"]
    state = read_state(SYSTEM_FS, path / "kstore.state")
    assert state is not None
    assert (state.clean, state.recovery_point) == (False, 0)
    # What a power cut may leave of an index that is not on disk.
    (path / name).write_bytes(bytes(len((path / name).read_bytes())))
    with Log(path) as again:
        assert again.recovery.bytes_scanned
        again.check()
        assert [record.value for record in again.read()] == [*(b"%d" % number for number in range(COUNT)), b"last"]
    with Log(path) as again:
        assert not again.recovery.bytes_scanned


def test_a_compacted_segment_whose_index_cannot_be_synced_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fs = FailingFs(SYSTEM_FS)
    with filled(path, "os", fs) as log:
        log.roll()
        log.flush()
        fs.faults.append(Fault(1, kinds=frozenset({"fdatasync"}), suffix=".timeindex.cleaned"))
        with pytest.raises(StorageError, match="an index of the compacted segment"):
            log.compact(whole=True)
        assert fs.failures
        assert len(list(log.read())) == COUNT
        fs.faults.clear()
        log.compact(whole=True)
        assert len(list(log.read())) < COUNT
        assert segment_bases(path)[0] == 0
        log.check()
