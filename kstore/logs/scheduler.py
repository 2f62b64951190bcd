"""Background work: recurring named tasks, on one thread for each lane.

A task never ends the thread that runs it: its exceptions are logged, kept, and shown by ``status()``. The tasks of one
lane run one after another, so a slow one delays only its own lane. Without threads, ``run_due()`` runs what is due by
the given clock, which is how tests do it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kstore.clock import Clock
from kstore.errors import ThreadStartError
from kstore.files._locks import Attempt, Condition, OwnedLock
from kstore.files.threads import start_thread

logger = logging.getLogger(__name__)

NEVER = float("inf")


class TaskStatus(NamedTuple):
    """One task: how many times it ran, when last (ms since the epoch, None for never), how long that took, its error.

    ``error`` is the last run's, "" if it had none; ``last_error`` that of the last run with one. ``next_run_seconds``
    is the time until the next run, None if none is planned.
    """

    name: str
    run_count: int
    error_count: int
    last_run_ms: int | None
    last_seconds: float
    error: str
    last_error: str
    next_run_seconds: float | None
    is_running: bool


@dataclass(slots=True)
class _Task:
    name: str
    run: Callable[[], object]
    interval_seconds: float
    lane: str
    due: float
    run_count: int = 0
    error_count: int = 0
    last_run_ms: int | None = None
    last_seconds: float = 0.0
    error: str = ""
    last_error: str = ""
    # Held during a run: a mark would be left by an interrupt outside the task.
    at_work: OwnedLock = field(default_factory=OwnedLock)


class Scheduler:
    """Runs tasks when they are due. Thread-safe."""

    def __init__(self, clock: Clock, *, name: str = "kstore", threads: bool = True) -> None:
        self._clock = clock
        self._name = name
        self._with_threads = threads
        # Guards everything below; notified when a task may be due earlier than expected, and at the end.
        self._lock = threading.RLock()
        self._changed = Condition(self._lock)
        self._tasks: dict[str, _Task] = {}
        self._threads: dict[str, threading.Thread] = {}
        # Lanes without a thread, already logged.
        self._refused: set[str] = set()
        self._started = False
        self._stopped = False

    def add(
        self,
        name: str,
        run: Callable[[], object],
        *,
        interval_seconds: float | None,
        delay_seconds: float | None = None,
        lane: str = "work",
    ) -> None:
        """Adds a task: first after ``delay_seconds`` (default: the interval), then again ``interval_seconds`` after the
        end of each run; with None only on request (``wake``)."""
        interval = NEVER if interval_seconds is None else interval_seconds
        first = interval if delay_seconds is None else delay_seconds
        with self._lock:
            assert name not in self._tasks, f"a task named {name!r} is there"
            self._tasks[name] = _Task(name, run, interval, lane, self._clock.monotonic() + first)
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        """Forgets a task; a present run of it continues."""
        with self._lock:
            self._tasks.pop(name, None)
            self._changed.notify_all()

    def start(self) -> None:
        """Starts to run what is due, if threads are used at all."""
        with self._lock:
            self._started = True
            if self._with_threads and not self._stopped:
                self._start_missing()

    def _start_missing(self) -> None:
        """Needs the lock."""
        if self._started:
            for lane in {task.lane for task in self._tasks.values() if task.due < NEVER}:
                self._start(lane)

    def _start(self, lane: str) -> None:
        """Needs the lock."""
        if lane not in self._threads:
            try:
                self._threads[lane] = start_thread(
                    _run_lane, weakref.ref(self), lane, self._lock, self._changed, name=f"{self._name}-{lane}"
                )
            except ThreadStartError as error:
                # The next request tries again; the present caller did not cause the failure.
                self._note_failure(lane, error)

    def _note_failure(self, lane: str, error: ThreadStartError) -> None:
        if lane not in self._refused:
            self._refused.add(lane)
            logger.warning("no thread for the tasks of %s-%s: %s", self._name, lane, error)
        for task in self._tasks.values():
            if task.lane == lane:
                task.error = task.last_error = f"{type(error).__name__}: {error}"
                task.error_count += 1

    def wake(self, name: str, *, delay_seconds: float = 0.0) -> bool:
        """Makes the task run ``delay_seconds`` from now, unless it would run before that anyway, or was removed. False
        if its thread cannot be started."""
        due = self._clock.monotonic() + delay_seconds
        with self._lock:
            task = self._tasks.get(name)
            if task is None:
                return True
            if due < task.due:
                task.due = due
                if self._with_threads and not self._stopped:
                    self._start_missing()
                self._changed.notify_all()
            if not self._with_threads or self._stopped:
                return True
            self._start(task.lane)
            return task.lane in self._threads

    def run_due(self, lane: str | None = None) -> int:
        """Runs every task that is due, each once, in the order in which they became due; returns their number."""
        ran: set[str] = set()
        while (task := self._next_due(lane, ran)) is not None:
            with Attempt(task.at_work) as is_mine:
                # Another thread may have been faster, and may have finished.
                if not is_mine or task.due > self._clock.monotonic():
                    continue
                ran.add(task.name)
                error = self._run(task)
            if error is not None and not isinstance(error, Exception) and not self._is_own_thread():
                raise error  # an interrupt belongs to the caller
        return len(ran)

    def run(self, name: str) -> None:
        """Runs a task now, whenever it is due. Raises: the task's exception, which is also kept."""
        with self._lock:
            task = self._tasks[name]
        with task.at_work:
            error = self._run(task)
        if error is not None:
            raise error

    def _is_own_thread(self) -> bool:
        return threading.current_thread() in self._threads.values()

    def _next_due(self, lane: str | None, ran: set[str]) -> _Task | None:
        with self._lock:
            if self._stopped:
                return None
            now = self._clock.monotonic()
            due = [
                task
                for task in self._tasks.values()
                if task.due <= now
                and not task.at_work.locked()
                and task.name not in ran
                and (lane is None or task.lane == lane)
            ]
            return min(due, key=lambda task: task.due, default=None)

    def _run(self, task: _Task) -> BaseException | None:
        """Runs a task whose lock this thread has."""
        started, last_run_ms = self._clock.monotonic(), self._clock.now_ms()
        due = task.due
        failure: BaseException | None = None
        try:
            # A request during the run is not covered by it, and schedules another run.
            with self._lock:
                task.due = NEVER
            try:
                task.run()
            except BaseException as error:
                # Any exception: without this it would end the thread, and with it all its tasks, silently.
                failure = error
                logger.warning("the task %r failed: %s: %s", task.name, type(error).__name__, error)
            ended = self._clock.monotonic()
            with self._lock:
                task.due = min(task.due, ended + task.interval_seconds)
                task.last_run_ms, task.last_seconds = last_run_ms, ended - started
                task.run_count += 1
                task.error = ""
                if failure is not None:
                    task.error_count += 1
                    task.error = task.last_error = f"{type(failure).__name__}: {failure}"
                self._changed.notify_all()
        except BaseException:
            # An interrupt outside the task: it is due as before. No call is made here, so no second interrupt comes.
            if task.due == NEVER:
                task.due = due
            raise
        return failure

    def status(self) -> tuple[TaskStatus, ...]:
        """Every task, in the order in which they were added."""
        with self._lock:
            now = self._clock.monotonic()
            return tuple(
                TaskStatus(
                    task.name,
                    task.run_count,
                    task.error_count,
                    task.last_run_ms,
                    task.last_seconds,
                    task.error,
                    task.last_error,
                    max(task.due - now, 0.0) if task.due < NEVER else None,
                    task.at_work.locked(),
                )
                for task in self._tasks.values()
            )

    def end(self) -> None:
        """Starts no more tasks; running ones continue."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Runs nothing more; returns when no task is running. A second call does nothing."""
        self.end()
        for thread in list(self._threads.values()):
            if thread is not threading.current_thread():
                thread.join()

    def __del__(self) -> None:
        # The threads hold this weakly, and check again from time to time.
        self._stopped = True

    def _seconds_left(self, lane: str) -> float | None:
        """How long until a task of ``lane`` is due, 0 or less for now; None at the end of the lane. Needs the lock."""
        if self._stopped:
            return None
        if all(task.lane != lane for task in self._tasks.values()):
            self._threads.pop(lane, None)  # its tasks were removed
            return None
        now = self._clock.monotonic()
        return min(
            BUSY_SECONDS if task.at_work.locked() else task.due - now
            for task in self._tasks.values()
            if task.lane == lane
        )


# How long the thread of an unused scheduler lives on.
LOOK_SECONDS = 60.0
# How soon it looks again for a task that another thread runs.
BUSY_SECONDS = 0.05


def _run_lane(owner: weakref.ref[Scheduler], lane: str, lock: threading.RLock, changed: Condition) -> None:
    """The thread of a lane. It has the scheduler only while it works: so a store that was dropped is garbage."""
    while True:
        with lock:
            scheduler = owner()
            seconds = None if scheduler is None else scheduler._seconds_left(lane)
            scheduler = None
            if seconds is None:
                return
            if seconds > 0:
                changed.wait(min(seconds, LOOK_SECONDS))
                continue
        scheduler = owner()
        if scheduler is not None:
            scheduler.run_due(lane)
        scheduler = None
