"""Ctrl-C ends a store's close: the next close continues it, and the directory is free."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kstore.logs.scheduler import Scheduler
from kstore.store import Store
from tests.crash.interrupted_life import InterruptAfterCode
from tests.unit.engine.test_interrupted_counts import Tried

# The distance between two places of an interrupt.
STEP = 19


def opened(path: Path) -> Store:
    store = Store(path, durability="os", background=False)
    if "t" not in store.topics():
        store.create_topic("t", partitions=2)
    for number in range(2):
        store.log("t", number).append(b"value")
    return store


def test_a_close_that_is_interrupted_at_its_start_can_be_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "data")
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "end", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            store.close()
    store.close()
    store.close()
    with Store(tmp_path / "data", background=False) as store:
        assert [store.log("t", number).end_offset for number in range(2)] == [1, 1]


def test_a_log_whose_close_was_interrupted_is_closed_with_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path / "data")
    logs = [store.log("t", number) for number in range(2)]
    real, calls = type(logs[0]).close, count()

    def close(self: object) -> None:
        if next(calls) == 0:
            raise KeyboardInterrupt
        real(self)  # type: ignore[arg-type]  # one of the logs

    monkeypatch.setattr(type(logs[0]), "close", close)
    with pytest.raises(KeyboardInterrupt):
        store.close()
    assert all(log.closed for log in logs)
    opened(tmp_path / "data").close()


# An interrupt while a generator is dropped: Python cannot raise it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_close_that_is_interrupted_anywhere_can_be_completed(tmp_path: Path, seed: int, tried: Tried) -> None:
    path = tmp_path / "data"
    for number in count(1 + seed % STEP, STEP):
        store = opened(path)
        logs = [store.log("t", one) for one in range(2)]
        with InterruptAfterCode(number) as interrupted:
            try:
                store.close()
            except KeyboardInterrupt:
                pass
        store.close()
        assert all(log.closed for log in logs), interrupted.place
        del store
        # Not locked.
        opened(path).close()
        if not interrupted.struck:
            break
    assert number > 3 * STEP
    tried("faults", number // STEP)
