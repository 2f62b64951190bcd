"""Ctrl-C while a lock is being taken: the directory is free at once, even while the exception is still handled."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_in_store, lock_log
from kstore.logs.topic_settings import TopicSettings
from kstore.store import Store
from tests.crash.interrupted_life import InterruptAfterCode
from tests.unit.test_interrupted_counts import Tried


def in_a_store(path: Path) -> None:
    root = DirectoryLock(path.parent, kind="store")
    try:
        lock_in_store(path, root, mode=0o600, shared=False).release()
    finally:
        root.release()


# An interrupt where an object is dropped: Python can raise it nowhere.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "take",
    [
        pytest.param(lambda path: DirectoryLock(path).release(), id="directory"),
        pytest.param(lambda path: lock_log(path).release(), id="log"),
        pytest.param(in_a_store, id="partition"),
    ],
)
def test_a_lock_that_is_interrupted_anywhere_is_free(
    tmp_path: Path, take: Callable[[Path], None], tried: Tried
) -> None:
    path = tmp_path / "orders-0"
    path.mkdir()
    for number in count(1):
        failure: BaseException | None = None
        with InterruptAfterCode(number) as interrupted:
            try:
                take(path)
            except KeyboardInterrupt as error:
                failure = error  # which keeps the frames of the call
        for directory in (path, tmp_path):
            try:
                DirectoryLock(directory).release()
            except OSError as error:
                error.add_note(f"interrupted at {interrupted.place}")
                raise error from failure
        if not interrupted.struck:
            break
    assert number > 20
    tried("faults", number - 1)


def test_a_store_whose_opening_is_interrupted_after_its_lock_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TopicSettings, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            Store(tmp_path / "data")
    Store(tmp_path / "data").close()
    assert caught.tb is not None
