"""A store's log has one writer: the store or a lone writer, never both."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import ClosedError, LockedError, StorageError
from kstore.files import descriptors
from kstore.files.lock import DirectoryLock, is_in_registry, probe_lock
from kstore.files.log_lock import lock_in_store, lock_log, lock_past_lone_writers, probe_log
from kstore.files.paths import LOCK
from kstore.logs.open_logs import OpenLogs
from kstore.upkeep.handover import from_broker, to_broker
from kstore.upkeep.recover import plan_recovery, recover_log


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with kstore.open(tmp_path / "s") as store:
        store.create_topic("t")
        store.log("t").append(b"x")
    return tmp_path / "s"


LONE_WRITERS: dict[str, Callable[[Path], object]] = {
    "a log": kstore.Log,
    "a shared log": lambda path: kstore.Log(path, shared=True),
    "recover": recover_log,
    "recover, dry": plan_recovery,
    "to a broker": lambda path: to_broker(path.resolve()),
    "from a broker": lambda path: from_broker(path.resolve()),
}


@pytest.mark.promise("one writer")
@pytest.mark.parametrize("write", LONE_WRITERS.values(), ids=LONE_WRITERS)
@pytest.mark.parametrize("through_link", [False, True], ids=["by its name", "through a link"])
def test_an_open_store_keeps_lone_writers_out_of_a_partition_whose_lock_it_does_not_hold(
    root: Path, write: Callable[[Path], object], through_link: bool
) -> None:
    path = root / "t-0"
    if through_link:
        (root.parent / "elsewhere").symlink_to(path)
        path = root.parent / "elsewhere"
    with kstore.open(root) as store:
        store.log("t").append(b"y")
        DirectoryLock(root / "t-0").release()
        with pytest.raises(LockedError, match=rf"this process \({os.getpid()}\)"):
            write(path)
        store.log("t").append(b"z")


def test_a_store_keeps_the_lock_of_a_partition_that_it_reaches_through_a_link(root: Path, tmp_path: Path) -> None:
    (root / "t-0").rename(tmp_path / "far")
    (root / "t-0").symlink_to(tmp_path / "far")
    with DirectoryLock(root, kind="store") as store:
        lock = lock_in_store(root / "t-0", store, mode=0o600, shared=False)
        with pytest.raises(LockedError):
            kstore.Log(tmp_path / "far")
        lock.release()
    kstore.Log(tmp_path / "far").close()


def test_processes_that_share_a_store_keep_the_locks_of_their_partitions(root: Path) -> None:
    with kstore.open(root, shared=True) as store:
        store.log("t").append(b"y")
        with pytest.raises(LockedError):
            DirectoryLock(root / "t-0")


def test_a_log_that_outlives_its_store_keeps_the_root_locked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    store = kstore.open(root)
    log = store.log("t")
    monkeypatch.setattr(OpenLogs, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    monkeypatch.undo()
    log.append(b"y")
    for refused in (lambda: kstore.open(root), lambda: kstore.Log(root / "t-0")):
        with pytest.raises(LockedError):
            refused()
    log.close()
    kstore.open(root).close()


def test_a_lock_is_released_with_its_last_share(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    first, second = lock.share(), lock.share()
    lock.release()
    assert not lock.held
    with pytest.raises(ClosedError):
        lock.share()
    first.release()
    first.release()
    with pytest.raises(LockedError):
        DirectoryLock(tmp_path)
    del second
    DirectoryLock(tmp_path).release()


def test_a_store_waits_for_a_lone_writer_that_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lone = DirectoryLock(tmp_path)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            lone.release()

    monkeypatch.setattr(time, "sleep", wait)
    lock_past_lone_writers(tmp_path, mode=0o600).release()
    assert len(waits) == 3


def test_a_store_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with lock_log(tmp_path), pytest.raises(LockedError):
        lock_past_lone_writers(tmp_path, mode=0o600)


def test_a_lone_writer_that_meets_a_store_only_after_it_has_the_lock_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t-0").mkdir()
    stores: list[DirectoryLock] = []
    take = DirectoryLock.__init__

    def then_a_store_comes(self: DirectoryLock, directory: Path, **how: object) -> None:
        take(self, directory, **how)  # type: ignore[arg-type]  # whatever the caller says
        if directory != tmp_path:
            stores.append(DirectoryLock(tmp_path, kind="store"))

    monkeypatch.setattr(DirectoryLock, "__init__", then_a_store_comes)
    with pytest.raises(LockedError) as caught:
        lock_log(tmp_path / "t-0")
    assert caught.value.filename == str(tmp_path / ".lock")
    monkeypatch.undo()
    DirectoryLock(tmp_path / "t-0").release()
    stores[0].release()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.EIO], ids=["process", "system", "disk"])
def test_a_probe_that_cannot_open_the_lock_file_does_not_say_that_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        raise OSError(code, "injected")

    with DirectoryLock(tmp_path):
        monkeypatch.setattr(os, "open", refuse)
        for probe in (probe_lock, probe_log):
            with pytest.raises(StorageError) as caught:
                probe(tmp_path)
            assert caught.value.errno == code


@pytest.mark.parametrize("act", [DirectoryLock, probe_lock], ids=["lock", "probe"])
def test_files_are_closed_for_a_lock_outside_the_registry(
    act: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail is synced before it is closed for the lock, and other threads need the registry meanwhile."""
    (tmp_path / LOCK).touch()
    inside: list[bool] = []

    def reliever() -> bool:
        inside.append(is_in_registry())
        return True

    real_open = os.open

    def fail_once(path: Any, flags: int, *arguments: Any) -> int:
        if not inside:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real_open(path, flags, *arguments)

    monkeypatch.setattr(descriptors, "_relievers", [reliever])
    monkeypatch.setattr(os, "open", fail_once)
    act(tmp_path)
    assert inside == [False]
