"""A process that cannot start more threads: calls that need one raise a typed error, or do the work themselves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import kstore
from kstore.aio.threads import Threads
from kstore.errors import ThreadStartError
from kstore.files.local import SYSTEM_FS
from kstore.files.remote_stores import limited
from kstore.files.threads import start_thread
from kstore.state.log_state import read_state
from tests.support.lives.aio_helpers import run


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


@pytest.mark.usefixtures("no_threads")
def test_the_error_names_the_thread_and_is_the_builtin_one_too() -> None:
    with pytest.raises(ThreadStartError, match="the thread kstore-test cannot be started") as it:
        start_thread(print, name="kstore-test")
    assert isinstance(it.value, kstore.StorageError)
    assert isinstance(it.value, RuntimeError)


def test_a_producer_without_a_thread_is_not_made(tmp_path: Path, no_threads: pytest.MonkeyPatch) -> None:
    with kstore.open(tmp_path / "store", background=False) as store:
        with pytest.raises(ThreadStartError):
            store.producer()
        assert store.live_producers() == {}


@pytest.mark.usefixtures("no_threads")
def test_a_store_opens_works_and_closes_and_its_appends_are_flushed_at_once(tmp_path: Path) -> None:
    for _ in range(2):
        with kstore.open(tmp_path / "store", durability="interval", flush_ms="1d") as store:
            if "orders" not in store.topics():
                store.create_topic("orders", 3)
            for number in range(3):
                log = store.log("orders", number)
                log.append(b"v")
                state = read_state(SYSTEM_FS, log.path / "kstore.state")
                assert state is not None
                assert state.durable_end == log.end_offset


@pytest.mark.usefixtures("no_threads")
def test_a_remote_read_without_a_thread_is_a_typed_error() -> None:
    with pytest.raises(ThreadStartError):
        limited(lambda: 1, "hdfs://nowhere")


def test_a_call_of_asyncio_that_gets_no_thread_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    async def life() -> None:
        threads = Threads(2)
        # The first thread is busy, and the second cannot be started.
        go_on = threading.Event()
        first = threads.submit(go_on.wait)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _refuse)
            with pytest.raises(ThreadStartError):
                await threads.run(lambda: made.append("refused"))
        go_on.set()
        await first
        await threads.run(lambda: made.append("taken"))
        threads.close()

    run(life())
    assert made == ["taken"]


def _refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
