"""A long wait for the turn is logged once, with the process that holds it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from kstore.files import turn_wait
from kstore.log import Log

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")

SECONDS_MAX = 120
# Stops itself in its turn; when it continues, it appends.
STOPPED_IN_ITS_TURN = """
import os, signal, sys
from kstore.log import Log, writer_of
log = Log(sys.argv[1], shared=True, durability="os")
with writer_of(log).turn.lock:
    print("has it", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
log.append(b"stopped")
log.close()
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    Log(tmp_path / "log", durability="os").close()
    command = [sys.executable, "-c", STOPPED_IN_ITS_TURN, str(tmp_path / "log")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "has it\n"
        os.waitpid(process.pid, os.WUNTRACED)
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait(SECONDS_MAX)


class Heard(logging.Handler):
    """The messages, and a bell at the first."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self.bell = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.bell.set()


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    turn_wait.logger.addHandler(handler)
    yield handler
    turn_wait.logger.removeHandler(handler)


def test_a_process_stopped_in_its_turn_is_named_once_to_those_that_wait(
    tmp_path: Path, stopped: subprocess.Popen[str], heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: SimpleQueue[None] = SimpleQueue()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        looks.put(None)

    monkeypatch.setattr(turn_wait, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(turn_wait, "WARN_SECONDS", 0.05)
    found: list[int] = []

    def wait() -> None:
        with Log(tmp_path / "log", shared=True, durability="os") as log:
            found.append(log.append(b"waited"))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert heard.bell.wait(SECONDS_MAX)
    for _ in range(looks.qsize() + 5):
        looks.get(timeout=SECONDS_MAX)
    assert len(heard.messages) == 1
    assert f"process {stopped.pid}, which is stopped, has it" in heard.messages[0]
    assert str(tmp_path / "log") in heard.messages[0]
    assert not found
    monkeypatch.setattr(turn_wait, "WARN_SECONDS", SECONDS_MAX)
    stopped.send_signal(signal.SIGCONT)
    waiting.join(SECONDS_MAX)
    assert found


def test_without_threads_a_turn_is_waited_for_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(turn_wait, "_thread", SimpleNamespace(start_new_thread=refused))
    monkeypatch.setattr(turn_wait, "_is_watched", threading.Lock())
    taken: list[int] = []
    for number in range(2):
        turn_wait.watched(lambda number=number: taken.append(number), "log/.lock", lambda: True)  # type: ignore[misc]
    assert taken == [0, 1]
    assert not turn_wait._is_watched.locked()
