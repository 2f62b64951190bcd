"""A store in many threads: topics come and go under readers, writers, tasks and a close; a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import pytest

from kstore import TopicPartition
from kstore.errors import ClosedError, ForkedError, KstoreError, TopicExistsError, TopicNotFoundError
from kstore.files.local import SYSTEM_FS
from kstore.logs.open_logs import OpenLogs, _Entry
from kstore.store import Store, parts_of
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import FailingFs, Fault, Operation, WatchedFs

SMALL: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64, "durability": "os"}
MAY_BE = (ClosedError, TopicNotFoundError)

Returned = TypeVar("Returned")


def opened(path: Path, **settings: Any) -> Store:
    return Store(path, background=False, **{**SMALL, **settings})


def together(*works: Callable[[], Returned]) -> list[Returned]:
    """Runs all calls at the same time; returns the results in order. Raises: what one of them raises."""
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(300) for future in [pool.submit(work) for work in works]]


def test_one_of_many_makes_the_topic_and_all_get_the_same_log(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:

        def make() -> object:
            try:
                store.create_topic("orders", 2)
                return "made"
            except TopicExistsError:
                return "there"

        assert sorted(map(str, together(*[make] * 8))) == ["made", *["there"] * 7]
        logs = together(*[lambda: store.log("orders", 1)] * 8)
        assert all(log is logs[0] for log in logs)


def test_topics_come_and_go_while_they_are_used(tmp_path: Path) -> None:
    with opened(tmp_path / "s", file_delete_delay_ms=0) as store:
        stop = threading.Event()
        counts = {"appended": 0, "read": 0}

        def use(what: str, work: Callable[[], object]) -> None:
            # A short pause, as tasks and users make: locks are not fair.
            while not stop.wait(0.001):
                try:
                    work()
                    counts[what] = counts.get(what, 0) + 1
                except MAY_BE:
                    pass

        def make_and_delete() -> None:
            try:
                for _ in range(8):
                    store.create_topic("orders", 2)
                    for _ in range(3):
                        store.log("orders", 1).append(b"x" * 300)
                    assert store.log("orders", 1).start_offset == 0
                    store.delete_topic("orders")
                    store.run_task("removal")
            finally:
                stop.set()

        together(
            make_and_delete,
            lambda: use("appended", lambda: store.log("orders", 1).append(b"y" * 300)),
            lambda: use("read", lambda: list(store.log("orders", 1).read())),
            lambda: use("described", lambda: [store.describe_topic(name) for name in store.topics()]),
            lambda: use("retained", store.apply_retention),
            lambda: use("noted", store.checkpoint),
        )
        assert store.topics() == []
        assert store.status().open_logs == ()
    assert [each.name for each in (tmp_path / "s").iterdir() if each.is_dir()] == []
    with opened(tmp_path / "s") as store:
        assert store.notes == []


def test_a_reader_in_the_middle_gets_an_error_if_the_topic_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store, Store(tmp_path / "s", read_only=True) as beside:
        store.create_topic("orders")
        for _ in range(20):
            store.log("orders").append(b"x" * 300)
        mine, theirs = store.log("orders").read(), beside.log("orders").read()
        next(mine)
        next(theirs)
        store.delete_topic("orders")
        with pytest.raises(ClosedError):
            list(mine)
        # Its files have another name for a while, and no other topic's logs get their old names.
        with suppress(KstoreError):
            assert len(list(theirs)) == 19
        assert beside.topics() == []


def test_a_with_block_leaves_a_store_s_log_open_for_its_other_users(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        queue = store.queue("jobs")
        queue.put(b"a")
        with store.consumer("jobs") as consumer:
            with store.log("jobs") as log:
                assert log.end_offset == 1
            assert [record.value for records in consumer.poll(1).values() for record in records] == [b"a"]
            assert queue.get_nowait().value == b"a"
    with Store(tmp_path / "s", read_only=True) as store:
        with store.log("jobs") as log:
            pass
        assert store.log("jobs") is log
        assert not log.closed
    assert log.closed


def test_a_log_that_is_reopened_for_some_work_stays_open_for_a_user_who_asks_meanwhile(tmp_path: Path) -> None:
    owner = TopicPartition("orders", 0)
    with opened(tmp_path / "s") as store, ExitStack() as work:
        store.create_topic("orders")
        logs = parts_of(store).topics.logs
        store.log("orders").close()
        before = logs._entries[owner]

        class Watched(_Entry):
            """The work begins when a look-up asks whether the log is kept."""

            @property
            def is_kept(self) -> bool:  # type: ignore[override]
                if logs._entries[owner] is not before:
                    logs._entries[owner] = before
                    work.enter_context(logs.borrowed(owner))
                    self.log = before.log
                return True

        watched = object.__new__(Watched)
        watched.log = before.log
        logs._entries[owner] = watched
        log = store.log("orders")
        work.close()
        assert log.append(b"3 bolts") == 0


def test_a_log_that_is_being_closed_has_no_second_writer(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        stop = threading.Event()

        def append(number: int) -> list[tuple[int, bytes]]:
            appended: list[tuple[int, bytes]] = []
            while not stop.is_set():
                value = b"%d-%d" % (number, len(appended))
                with suppress(ClosedError):
                    appended.append((store.log("orders").append(value), value))
            return appended

        def close() -> list[tuple[int, bytes]]:
            try:
                for _ in range(60):
                    store.log("orders").close()
            finally:
                stop.set()
            return []

        appended = dict(row for rows in together(close, *[lambda n=n: append(n) for n in range(3)]) for row in rows)
        log = store.log("orders")
        assert log.recovery.clean
        assert {record.offset: record.value for record in log.read()} == appended


def test_a_close_waits_for_what_is_under_way_and_all_say_that_it_is_closed(tmp_path: Path) -> None:
    store = opened(tmp_path / "s")
    store.create_topic("orders", 4)
    started = threading.Barrier(5)

    def append(number: int) -> int:
        log = store.log("orders", number)
        started.wait(300)
        count = 0
        while True:
            try:
                log.append(b"x" * 100)
            except ClosedError:
                return count
            count += 1

    def close() -> int:
        started.wait(300)
        store.close()
        return -1

    counts = together(*[lambda number=number: append(number) for number in range(4)], close)
    for use in (store.topics, lambda: store.log("orders"), lambda: store.create_topic("x"), store.checkpoint):
        with pytest.raises(ClosedError):
            use()
    store.close()
    with opened(tmp_path / "s") as store:
        assert [store.log("orders", number).end_offset for number in range(4)] == counts[:4]
        assert all(store.log("orders", number).recovery.clean for number in range(4))


@pytest.mark.promise("fork")
def test_a_child_s_store_is_dead_and_the_parent_s_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as store:
        store.create_topic("orders")
        log = store.log("orders")
        child = os.fork()
        if child == 0:
            refused = 0
            for use in (store.topics, lambda: store.create_topic("x"), lambda: store.log("orders"), store.checkpoint):
                try:
                    use()
                except ForkedError:
                    refused += 1
            store.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
        log.append(b"goes on")
        store.create_topic("jobs")
    with opened(tmp_path / "s") as store:
        assert store.topics() == ["jobs", "orders"]
        assert store.notes == []


def test_a_deletion_that_an_error_ended_is_finished_by_the_next_removal(tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS)
    with opened(tmp_path / "s", fs=fs, clock=ManualClock(), file_delete_delay_ms=0) as store:
        store.create_topic("orders", 3)
        fs.faults.append(Fault(1, kinds=frozenset({"rename"}), suffix="orders-1"))
        with pytest.raises(OSError, match="Input/output"):
            store.delete_topic("orders")
        assert store.topics() == []
        with pytest.raises(TopicNotFoundError):
            store.log("orders", 2)
        store.run_task("removal")
        assert not list((tmp_path / "s").glob("orders-*"))
        store.create_topic("orders")
        assert store.partitions("orders") == [0]


class InterruptingFs(WatchedFs):
    """Raises KeyboardInterrupt once, just after the next rename of ``name``."""

    name: str | None = None

    def perform(self, operation: Operation, action: Callable[[], Any]) -> Any:
        result = action()
        if self.name is not None and operation.kind == "rename" and self.name in str(operation.path):
            self.name = None
            raise KeyboardInterrupt
        return result


def test_an_interrupted_deletion_leaves_no_directory_that_nothing_removes(tmp_path: Path) -> None:
    fs = InterruptingFs()
    with opened(tmp_path / "s", fs=fs, clock=ManualClock(), file_delete_delay_ms=0) as store:
        store.create_topic("orders", 2)
        fs.name = "orders-0"
        with pytest.raises(KeyboardInterrupt):
            store.delete_topic("orders")
        store.run_task("removal")
        assert not list((tmp_path / "s").glob("orders-*"))


@pytest.mark.parametrize("at", ["kstore.topics", "orders-0"], ids=["decided", "renamed"])
def test_a_second_call_ends_an_interrupted_deletion(tmp_path: Path, at: str) -> None:
    fs = InterruptingFs()
    with opened(tmp_path / "s", fs=fs, clock=ManualClock(), file_delete_delay_ms=0) as store:
        store.create_topic("orders", 2)
        store.log("orders").append(b"x")
        fs.name = at
        with pytest.raises(KeyboardInterrupt):
            store.delete_topic("orders")
        store.delete_topic("orders")
        assert not list((tmp_path / "s").glob("orders-[01]"))
        with pytest.raises(TopicNotFoundError):
            store.delete_topic("orders")


@pytest.mark.parametrize("with_removal", [True, False], ids=["removal", "create"])
def test_a_topic_that_is_made_anew_after_an_interrupted_deletion_keeps_its_records(
    with_removal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path / "s", clock=ManualClock()) as store:
        store.create_topic("orders")
        log = store.log("orders")
        log.append(b"old")
        with monkeypatch.context() as interrupting:
            # Before any log of the topic is closed.
            interrupting.setattr(OpenLogs, "close", mock.Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                store.delete_topic("orders")
        if with_removal:
            store.run_task("removal")
        store.create_topic("orders")
        assert log.closed
        store.log("orders").append(b"new")
    with opened(tmp_path / "s") as store:
        assert [record.value for record in store.log("orders").read()] == [b"new"]


def test_a_topic_whose_deletion_was_interrupted_just_after_it_was_decided_takes_no_records(tmp_path: Path) -> None:
    fs = InterruptingFs()
    with opened(tmp_path / "s", fs=fs, clock=ManualClock()) as store:
        store.create_topic("orders")
        fs.name = "kstore.topics"
        with pytest.raises(KeyboardInterrupt):
            store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            store.log("orders")
    with opened(tmp_path / "s") as store:
        assert store.topics() == []


AT_EXIT = """
import atexit, sys, kstore

store = kstore.open(sys.argv[1])
atexit.register(store.close)
for name in ("a", "b", "c"):
    store.create_topic(name)
    store.log(name).append(b"x")
store.queue("jobs").put(b"x")
"""


def test_a_store_that_is_closed_at_the_interpreter_s_end_is_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, timeout=300, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
