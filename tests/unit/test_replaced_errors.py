"""An interrupt while the error of a failed sync is handled replaces the error, and does not hide it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import PoisonedError, SyncFailedError
from kstore.files import local, platform
from kstore.log import Log
from tests.without_flusher import log_without_flusher


def fails(*_: object) -> None:
    raise OSError(errno.EIO, "a failed sync")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", [(local, "sync_error"), (os, "close")])
def test_an_interrupt_after_the_failed_sync_of_a_directory_does_not_hide_it(
    tmp_path: Path, place: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_without_flusher(tmp_path / "log", durability="interval")
    log.append(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(platform, "sync_all", fails)
        patch.setattr(*place, interrupted)
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
