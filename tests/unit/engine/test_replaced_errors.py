"""An interrupt while the error of a failed sync is handled replaces the error, and does not hide it; that of another
operation is no failed sync."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from kstore.errors import PoisonedError, SyncFailedError
from kstore.files import local, platform
from kstore.log import Log
from tests.support.fakes.without_flusher import log_without_flusher

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")


def fails(*_: object) -> None:
    raise OSError(errno.EIO, "a failed sync")


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["sync_error", "close"])
def test_an_interrupt_after_the_failed_sync_of_a_directory_does_not_hide_it(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_fds: list[int] = []
    close = os.close

    def fails_for(fd: int) -> None:
        failed_fds.append(fd)
        fails()

    def interrupted_for(fd: int) -> None:
        close(fd)
        # A file that the garbage collector closes meanwhile is no part of this.
        if fd in failed_fds:
            interrupted()

    log = log_without_flusher(tmp_path / "log", durability="interval")
    log.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(platform, "sync_all", fails_for)
        if place == "close":
            patch.setattr(os, "close", interrupted_for)
        else:
            patch.setattr(local, "sync_error", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.flush()
    with pytest.raises(SyncFailedError, match="failed before"):
        log.flush()
    with pytest.raises(PoisonedError):
        log.append(b"b")
    log.close()


def test_an_interrupt_of_a_sync_that_did_not_fail_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flush_in_handler() -> None:
        try:
            raise OSError("what the program handles meanwhile")
        except OSError:
            log.flush()

    with log_without_flusher(tmp_path / "log", durability="interval") as log:
        log.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(platform, "sync_data", interrupted)
            with pytest.raises(KeyboardInterrupt):
                flush_in_handler()
        log.flush()
        assert log.append(b"b") == 1


def test_an_interrupt_after_the_failed_sync_of_a_roll_poisons_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"a")
        with monkeypatch.context() as patch:
            patch.setattr(platform, "sync_all", fails)
            patch.setattr(local, "sync_error", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.roll()
        with pytest.raises(PoisonedError):
            log.append(b"b")


def test_an_interrupt_after_the_failed_sync_of_a_change_poisons_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"a")
        log.append(b"b")
        with monkeypatch.context() as patch:
            patch.setattr(platform, "sync_data", fails)
            patch.setattr(local, "sync_error", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.truncate_to(1)
        with pytest.raises(PoisonedError):
            log.append(b"c")


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=on_linux)])
def test_an_interrupt_while_a_missing_file_is_handled_is_no_failed_sync(
    tmp_path: Path, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log(tmp_path / "log", shared=shared) as log:
        log.append(b"a")
        log.append(b"b")
        with monkeypatch.context() as patch:
            # Few logs have the file that says what was compacted.
            patch.setattr(local, "storage_error", interrupted)
            with pytest.raises(KeyboardInterrupt):
                log.truncate_to(1)
        assert log.append(b"c") == 2
        assert [record.value for record in log.read()] == [b"a", b"b", b"c"]


@on_linux
def test_an_interrupt_while_old_segments_are_deleted_poisons_no_sharer_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shared() -> Log:
        return Log(tmp_path / "log", shared=True, file_delete_delay_ms=0)

    with shared() as one, shared() as two:
        one.append(b"a")
        one.roll()
        one.append(b"b")
        with monkeypatch.context() as patch:
            # The segment has no transaction index.
            patch.setattr(local, "storage_error", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.delete_records(1)
        assert two.append(b"c") == 2
        assert one.append(b"d") == 3
        assert [record.value for record in one.read()] == [record.value for record in two.read()] == [b"b", b"c", b"d"]
