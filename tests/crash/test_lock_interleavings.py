"""Another process acts at every step of a store, or the other way round: they never both write to one log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kstore.engine import files as log_files
from kstore.engine import writer as log_writer
from kstore.errors import LockedError
from kstore.files import descriptors, lock, log_lock
from kstore.log import writer_of
from kstore.segments import tail as segment_tail
from kstore.store import Store
from tests.crash.other_writer import ACTIONS, WAITS_MAX
from tests.support.harness.evidence import Wrong
from tests.support.harness.selection import tries

ROOT = Path(__file__).parents[2]
# Where lines are steps.
TRACED = {module.__file__ for module in (lock, log_lock, log_writer, log_files, segment_tail, descriptors)}
# The distance between lines in ``make test``.
SAMPLE_STEP = tries(23, quick=113)
STAYS_OPEN = ("log", "store")


class OtherProcess:
    """Follows commands (``other_writer``)."""

    def __init__(self) -> None:
        program = [sys.executable, "-m", "tests.crash.other_writer"]
        self._process = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str, path: Path | str = "") -> bool:
        """Whether it got in."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {path}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer not in ("in", "out"):
            raise Wrong(f"the other process ended: {answer!r}")
        return answer == "in"

    def end(self) -> None:
        self._process.communicate(timeout=300)


@pytest.fixture
def other() -> Iterator[OtherProcess]:
    process = OtherProcess()
    yield process
    process.end()


class Moment:
    """The line of the process under test at which the other one acts."""

    def __init__(self, number: int, guard: Path, act: Callable[[], bool]) -> None:
        """``guard`` is the directory whose lock decides; ``act`` returns whether the other process got in."""
        self._number = number
        self._guard = guard
        self._act = act
        self.line_count = 0
        self.has_come = False
        # Whether the lock is held at that line, or was held before.
        self.is_held = self.was_held = False
        self.is_in = False

    def run(self, action: Callable[[], object]) -> bool:
        """Whether ``action`` got in."""
        before = sys.gettrace()
        sys.settrace(self._each_call)
        try:
            return got_in(action)
        finally:
            sys.settrace(before)

    def _each_call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._each_line if frame.f_code.co_filename in TRACED else None

    def _each_line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line" and not self.has_come:
            self.line_count += 1
            self.is_held = lock._file_id(str(self._guard / ".lock")) in lock._held
            if self.line_count == self._number:
                self.has_come = True
                self.is_in = self._act()
            self.was_held = self.was_held or self.is_held
        return self._each_line


def got_in(action: Callable[[], object]) -> bool:
    try:
        action()
    except LockedError:
        return False
    return True


def life_of_a_store(root: Path) -> None:
    """It opens a partition, closes its tail, opens it again, and closes."""
    with Store(root, durability="os", background=False) as store:
        log = store.log("t")
        log.append(b"a")
        assert writer_of(log).files.park()
        log.append(b"b")


def life_of_a_lone_writer(what: str, root: Path) -> None:
    opened = ACTIONS[what](root)
    if opened is not None:
        opened.close()


@pytest.fixture
def root(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(log_lock, "GIVING_WAY_RETRIES", WAITS_MAX)
    with Store(directory / "s", background=False) as store:
        store.create_topic("t")
    return directory / "s"


def interleave(action: Callable[[], object], guard: Path, other: OtherProcess, what: str, root: Path, at: int) -> bool:
    """Lets the other process do ``what`` before line ``at`` of ``action``; returns whether that line exists."""
    moment = Moment(at, guard, lambda: other.ask(what, root))
    is_done = moment.run(action)
    other.ask("close")
    if not moment.has_come:
        return False
    if moment.is_in and moment.is_held:
        raise Wrong(f"line {at}: {what} got past a lock that was held")
    if moment.is_in and what in STAYS_OPEN and not moment.was_held and is_done:
        raise Wrong(f"line {at}: both were open at the same time")
    if not is_done and not (moment.is_in and what in STAYS_OPEN):
        raise Wrong(f"line {at}: {what} kept the other one out, but is not there itself")
    return True


def interleave_all(
    action: Callable[[], object],
    guard: Path,
    other: OtherProcess,
    what: str,
    root: Path,
    tried: Callable[[str, int], None],
    *,
    first: int = 1,
    step: int = 1,
) -> None:
    at = first
    while interleave(action, guard, other, what, root, at):
        at += step
    assert at > 2 * step, "too few lines for a test"
    tried("faults", (at - first) // step)


STORES = pytest.mark.parametrize("what", ["log", "recover", "handover"])


@pytest.mark.promise("one writer")
@STORES
@pytest.mark.sampled(1)
def test_no_lone_writer_gets_past_a_store(
    root: Path, other: OtherProcess, what: str, seed: int, tried: Callable[[str, int], None]
) -> None:
    life = partial(life_of_a_store, root)
    interleave_all(life, root, other, what, root, tried, first=1 + seed % SAMPLE_STEP, step=SAMPLE_STEP)


@pytest.mark.promise("one writer")
@STORES
@pytest.mark.sampled(1)
def test_no_store_gets_past_a_lone_writer(
    root: Path, other: OtherProcess, what: str, seed: int, tried: Callable[[str, int], None]
) -> None:
    guard = root if what == "handover" else root / "t-0"
    life = partial(life_of_a_lone_writer, what, root)
    interleave_all(life, guard, other, "store", root, tried, first=1 + seed % SAMPLE_STEP, step=SAMPLE_STEP)


@pytest.mark.soak
@pytest.mark.promise("one writer")
@STORES
def test_no_lone_writer_gets_past_a_store_at_any_line(
    root: Path, other: OtherProcess, what: str, tried: Callable[[str, int], None]
) -> None:
    interleave_all(partial(life_of_a_store, root), root, other, what, root, tried)


@pytest.mark.soak
@pytest.mark.promise("one writer")
@STORES
def test_no_store_gets_past_a_lone_writer_at_any_line(
    root: Path, other: OtherProcess, what: str, tried: Callable[[str, int], None]
) -> None:
    guard = root if what == "handover" else root / "t-0"
    interleave_all(partial(life_of_a_lone_writer, what, root), guard, other, "store", root, tried)
