"""Ctrl-C during the taking of a lock: the directory is free at once, even while the exception is being handled."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

import kstore
from kstore.files._locks import OwnedLock, block
from kstore.files.lock import DirectoryLock
from kstore.files.log_lock import lock_in_store, lock_log
from kstore.log import writer_of
from kstore.logs.topic_settings import EffectiveSettings
from kstore.store import Store, parts_of
from kstore.types import Durability
from tests.crash.interrupted_life import InterruptAfterCode
from tests.support.harness.alarm import alarm
from tests.unit.engine.test_interrupted_counts import Tried


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def interrupted(call: Callable[[], object], number: int) -> BaseException | None:
    """Repeats a short call, which a signal may interrupt; the returned exception keeps its frames."""
    is_armed = False

    def ring() -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt

    with alarm(ring):
        try:
            is_armed = True
            signal.setitimer(signal.ITIMER_REAL, (1 + number % 12) * 1e-6)
            for _ in range(30):
                call()
            is_armed = False
        except KeyboardInterrupt as error:
            return error
    return None


def in_a_store(path: Path) -> None:
    root = DirectoryLock(path.parent, kind="store")
    try:
        lock_in_store(path, root, mode=0o600, shared=False).release()
    finally:
        root.release()


# An interrupt while an object is dropped: Python cannot raise it.
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
                failure = error  # it keeps the call's frames
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
    with monkeypatch.context() as patch:
        patch.setattr(EffectiveSettings, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt) as caught:
            Store(tmp_path / "data")
    Store(tmp_path / "data").close()
    assert caught.tb is not None


def test_a_block_lets_its_lock_go_while_its_interrupt_is_handled() -> None:
    lock = threading.Lock()

    @block
    def held() -> Iterator[None]:
        with lock:
            yield

    def call() -> None:
        with held():
            pass

    # No trace function can stop where ``contextlib`` would lose the lock: at the first byte code of ``__exit__``.
    struck = 0
    for number in range(5000):
        failure = interrupted(call, number)
        struck += failure is not None
        assert not lock.locked(), failure
    assert struck


@pytest.mark.skipif(sys.platform != "linux", reason="shared stores need Linux")
def test_the_turn_of_a_shared_store_is_free_while_its_interrupt_is_handled(tmp_path: Path) -> None:
    def call() -> None:
        with directory.turn():
            pass

    with Store(tmp_path, shared=True) as store, Store(tmp_path, shared=True) as other:
        directory = parts_of(store).topics.directory
        for number in range(1000):
            failure = interrupted(call, number)
            with parts_of(other).topics.directory.turn():  # else waits forever
                assert not directory._has_turn, failure


@pytest.mark.parametrize("durability", ["sync", "os"])
def test_the_turn_of_a_change_is_free_while_its_interrupt_is_handled(tmp_path: Path, durability: Durability) -> None:
    with kstore.Log(tmp_path / "orders-0", durability=durability) as log:
        turn = writer_of(log).turn.lock
        assert isinstance(turn, OwnedLock)
        for number in range(5000):
            failure = interrupted(lambda: log.truncate_to(1), number)
            assert not turn.locked(), failure
