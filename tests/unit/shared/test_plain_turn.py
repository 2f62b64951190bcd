"""The compiled plain turn of a shared log, beside the one in Python."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore import Log
from kstore.errors import KstoreError, ReentrantCallError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.log import writer_of
from kstore.shared.turn import SharedTurn
from kstore.state.shared_slot import SharedState
from tests.crash.refusals import refused
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import RecordingFs
from tests.support.lives.shared_parts import drop_tail, others_of, shared, turn_of, values


class Turns:
    """Counts the turns that Python takes and leaves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = self.left = 0
        take_turn, leave_turn = SharedTurn.take_turn, SharedTurn.leave_turn

        def take(turn: SharedTurn, timeout: float = -1.0) -> bool:
            self.taken += 1
            return take_turn(turn, timeout)

        def leave(turn: SharedTurn) -> None:
            self.left += 1
            leave_turn(turn)

        monkeypatch.setattr(SharedTurn, "take_turn", take)
        monkeypatch.setattr(SharedTurn, "leave_turn", leave)

    def of(self, act: Callable[[], object]) -> tuple[int, int]:
        before = self.taken, self.left
        act()
        return self.taken - before[0], self.left - before[1]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(monkeypatch)


def record_of(log: Log) -> bytes:
    return others_of(log).slot.read()


def test_an_append_takes_a_plain_turn_if_nothing_has_changed(tmp_path: Path, turns: Turns) -> None:
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os") as two:
        one.append(b"a")
        assert turns.of(lambda: one.append(b"b")) == (0, 0)
        assert turns.of(lambda: two.append(b"c"))[0] > 0  # it catches up
        assert turns.of(lambda: two.append(b"d")) == (0, 0)
        assert turns.of(lambda: one.append(b"e")) == (1, 0)
        assert values(one) == values(two) == [b"a", b"b", b"c", b"d", b"e"]
        one.refresh()
        two.refresh()
        one.check()
        two.check()


def test_any_other_turn_is_taken_and_left_in_python(tmp_path: Path, turns: Turns) -> None:
    with shared(tmp_path / "log", "os") as log:
        log.append(b"a")
        assert turns.of(log.roll) == (0, 1)  # it changes files
        assert turns.of(lambda: log.append(b"b")) == (0, 0)
        drop_tail(log)
        assert turns.of(lambda: log.append(b"c"))[0] > 0
        log.check()
    with Log(tmp_path / "other", durability="os", shared=True, fs=RecordingFs()) as log:
        log.append(b"a")
        # The short path finds that it is not a file of this system: the recording must see every write.
        assert turns.of(lambda: log.append(b"b")) == (2, 2)


@pytest.mark.parametrize("durability", ["os", "interval", "sync"])
def test_the_record_is_the_one_that_python_stores(tmp_path: Path, durability: Any) -> None:
    settings: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 200, "shared": True}
    records = []
    systems: list[tuple[str, FileSystem]] = [("plain", SYSTEM_FS), ("python", RecordingFs())]
    for name, fs in systems:
        clock, found = ManualClock(), list[bytes]()
        with Log(tmp_path / name, durability=durability, clock=clock, fs=fs, **settings) as log:
            for number in range(60):
                log.append(b"x" * (number * 7 % 90), timestamp=None if number % 5 else 1_600_000_000_000 + number)
                clock.advance(number % 3)
                found.append(record_of(log))
                assert SharedState.decode(found[-1]) == others_of(log).seen
        # A change may store ``kstore.state`` at another time: its generation is not compared.
        states = [SharedState.decode(data) for data in found]
        records.append([state and state._replace(generation=0, change_count=0) for state in states])
    assert records[0] == records[1]
    assert None not in records[0]


def test_a_turn_without_a_change_stores_nothing(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os") as log:
        log.append(b"a")
        before = others_of(log).seen_data
        with turn_of(log).lock:
            assert others_of(log).has_turn
        assert others_of(log).seen_data is before
        assert not others_of(log).has_turn


def test_bytes_that_no_record_announced_are_not_overlooked(tmp_path: Path, turns: Turns) -> None:
    with shared(tmp_path / "log", "os") as log:
        log.append(b"a")
        log_file = next((tmp_path / "log").glob("*.log"))
        with log_file.open("ab") as file:
            file.write(b"half a batch of a process that died")
        assert turns.of(lambda: log.append(b"b"))[0] == 1
        assert values(log) == [b"a", b"b"]
        log.check()


def test_a_lock_that_the_system_refuses_is_an_error_and_no_append(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os") as log:
        log.append(b"a")
        lock = turn_of(log)._directory_lock
        fd, lock._fd = lock._fd, -1
        with pytest.raises(StorageError, match="lock"):
            log.append(b"b")
        lock._fd = fd
        assert log.append(b"c") == 1
        assert not turn_of(log).lock.is_mine


def test_no_refused_allocation_keeps_the_turn_or_loses_an_append(tmp_path: Path) -> None:
    pytest.importorskip("_testcapi")
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os") as two:
        one.append(b"a")
        count = 1
        quiet = number = 0
        # What is refused after the publication raises nothing.
        while quiet < 30:
            error = refused(lambda: one.append(b"v"), number)
            assert error is None or isinstance(error, (MemoryError, KstoreError)), error
            quiet = quiet + 1 if error is None else 0
            assert not turn_of(one).lock.is_mine
            count += error is None
            assert two.append(b"w") >= count
            count = two.end_offset
            assert one.end_offset == count
            one.append(b"plain again")
            count += 1
            number += 1
        assert number > 31
        assert writer_of(one).files.poisoned is None
        assert len(values(one)) == len(values(two)) == count
        one.check()
        two.check()


def test_a_handler_of_log_messages_inside_a_change_cannot_append(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its append would get the offset of the append that it interrupts."""
    offsets: list[int] = []
    refusals: list[ReentrantCallError] = []

    class Appending(logging.Handler):
        def emit(self, message: logging.LogRecord) -> None:
            try:
                offsets.append(log.append(b"from the handler"))
            except ReentrantCallError as error:
                refusals.append(error)

    handler = Appending()
    with caplog.at_level(logging.DEBUG, logger="kstore"), shared(tmp_path / "log", "os", segment_bytes=1024) as log:
        logging.getLogger("kstore").addHandler(handler)
        try:
            for _ in range(4):
                offsets.append(log.append(bytes(600)))  # the handler appends to the list, too
        finally:
            logging.getLogger("kstore").removeHandler(handler)
        assert refusals
        assert offsets == [record.offset for record in log.read()] == [0, 1, 2, 3]
        log.check()


def test_a_handler_inside_a_change_cannot_close_the_log_without_the_turn(tmp_path: Path) -> None:
    refusals: list[ReentrantCallError] = []

    class Closing(logging.Handler):
        def emit(self, message: logging.LogRecord) -> None:
            try:
                log.close()
            except ReentrantCallError as error:
                refusals.append(error)

    handler, logger = Closing(), logging.getLogger("kstore.engine.change.roll")
    log = shared(tmp_path / "log", segment_bytes=1024)
    turn, before = turn_of(log), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        log.append(bytes(600))
        assert log.append(bytes(600)) == 1
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert len(refusals) == 1
    assert not turn.closes_alone
    log.close()
    with shared(tmp_path / "log") as log:
        assert log.recovery.clean
        assert log.end_offset == 2
