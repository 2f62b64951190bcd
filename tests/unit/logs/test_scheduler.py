"""Background tasks: when they run, that no failure ends the others, and what their status says."""

from __future__ import annotations

import threading
import weakref

import pytest

from kstore.clock import SYSTEM_CLOCK
from kstore.logs.scheduler import BUSY_SECONDS, Scheduler, TaskStatus
from tests.crash.test_producer_races import until
from tests.support.fakes.fake_clock import ManualClock
from tests.unit.engine.test_interrupted_counts import Tried, at_every_place


def manual() -> tuple[Scheduler, ManualClock]:
    clock = ManualClock()
    return Scheduler(clock, threads=False), clock


def status(scheduler: Scheduler, name: str) -> TaskStatus:
    return next(task for task in scheduler.status() if task.name == name)


def test_a_task_runs_after_its_delay_and_then_at_its_interval() -> None:
    scheduler, clock = manual()
    runs: list[int] = []
    scheduler.add("work", lambda: runs.append(clock.now_ms()), interval_seconds=60, delay_seconds=5)
    start = clock.now_ms()
    for _ in range(13):
        scheduler.run_due()
        clock.advance(10_000)
    assert [at - start for at in runs] == [10_000, 70_000]


def test_a_task_that_fails_runs_again_and_is_shown() -> None:
    scheduler, clock = manual()
    others: list[int] = []

    def fail() -> None:
        if not others[1:]:
            raise OSError("no such luck")

    scheduler.add("fails", fail, interval_seconds=1)
    scheduler.add("goes on", lambda: others.append(1), interval_seconds=1)
    clock.advance(1000)
    assert scheduler.run_due() == 2
    assert status(scheduler, "fails").error == "OSError: no such luck"
    clock.advance(1000)
    scheduler.run_due()
    clock.advance(1000)
    scheduler.run_due()
    task = status(scheduler, "fails")
    assert (task.error, task.last_error) == ("", "OSError: no such luck")
    assert (task.run_count, task.error_count) == (3, 2)
    assert len(others) == 3


def test_a_task_without_an_interval_waits_to_be_asked_for() -> None:
    scheduler, clock = manual()
    runs: list[int] = []
    scheduler.add("flush", lambda: runs.append(1), interval_seconds=None)
    clock.advance(10**9)
    assert scheduler.run_due() == 0
    scheduler.wake("flush", delay_seconds=2)
    scheduler.wake("flush", delay_seconds=5)
    assert scheduler.run_due() == 0
    clock.advance(2000)
    assert scheduler.run_due() == 1
    clock.advance(10_000)
    assert scheduler.run_due() == 0
    assert len(runs) == 1


def test_what_is_asked_for_while_the_task_runs_makes_it_due_again() -> None:
    scheduler, _ = manual()
    runs: list[int] = []

    def work() -> None:
        runs.append(1)
        if len(runs) == 1:
            scheduler.wake("work")

    scheduler.add("work", work, interval_seconds=None)
    scheduler.wake("work")
    assert scheduler.run_due() == 1
    assert scheduler.run_due() == 1
    assert scheduler.run_due() == 0


def test_a_jump_of_the_wall_clock_makes_nothing_due() -> None:
    scheduler, clock = manual()
    scheduler.add("work", lambda: None, interval_seconds=60)
    clock.jump(10**9)
    assert scheduler.run_due() == 0


def test_a_task_that_is_run_now_raises_what_it_raises() -> None:
    scheduler, _ = manual()

    def fail() -> None:
        raise ValueError("no")

    scheduler.add("work", fail, interval_seconds=60)
    with pytest.raises(ValueError, match="no"):
        scheduler.run("work")
    assert status(scheduler, "work").error_count == 1


def test_an_interrupt_beside_a_task_lets_it_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, clock = manual()
    runs: list[int] = []
    scheduler.add("work", lambda: runs.append(1), interval_seconds=60)

    def interrupt() -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clock, "now_ms", interrupt)
        with pytest.raises(KeyboardInterrupt):
            scheduler.run("work")
    assert not status(scheduler, "work").is_running
    scheduler.run("work")
    assert runs == [1]


@pytest.mark.parametrize("named", [True, False], ids=["run", "run_due"])
def test_an_interrupt_at_any_place_leaves_tasks_that_run_when_they_are_due(named: bool, tried: Tried) -> None:
    scheduler, clock = manual()
    runs: list[str] = []
    scheduler.add("often", lambda: runs.append("often"), interval_seconds=60)
    scheduler.add("asked", lambda: runs.append("asked"), interval_seconds=None)
    scheduler.wake("asked")

    def act() -> None:
        if named:
            scheduler.run("often")
            scheduler.run("asked")
        else:
            scheduler.run_due()

    def check() -> None:
        assert not any(task.is_running for task in scheduler.status())
        scheduler.run_due()
        assert "asked" in runs, "the request is lost"
        clock.advance(60_000)
        scheduler.run_due()
        assert "often" in runs, "it has no next time"
        runs.clear()
        scheduler.wake("asked")
        clock.advance(60_000)

    at_every_place(act, check, tried)


def test_a_thread_waits_while_another_one_runs_what_is_requested() -> None:
    scheduler, _ = manual()
    left: list[float | None] = []

    def run() -> None:
        scheduler.wake("work")
        with scheduler._lock:
            left.append(scheduler._seconds_left("background"))

    scheduler.add("work", run, interval_seconds=None, lane="background")
    scheduler.run("work")
    assert left == [pytest.approx(BUSY_SECONDS)]
    with scheduler._lock:
        assert scheduler._seconds_left("background") == 0, "it is due, and free"


def test_a_waiting_thread_does_not_keep_a_scheduler_that_was_dropped() -> None:
    ran = threading.Event()

    class Task:
        def __call__(self) -> None:
            ran.set()

    task, scheduler = Task(), Scheduler(SYSTEM_CLOCK)
    gone = weakref.ref(task)
    scheduler.add("work", task, interval_seconds=1000.0, delay_seconds=0.0)
    scheduler.start()
    assert ran.wait(300)
    thread = scheduler._threads["work"]
    del task, scheduler
    until(lambda: gone() is None)
    assert thread.is_alive()


def test_threads_run_what_is_due_and_outlive_what_it_raises() -> None:
    scheduler = Scheduler(SYSTEM_CLOCK)
    ran, again = threading.Event(), threading.Event()

    def work() -> None:
        if ran.is_set():
            again.set()
        ran.set()
        raise SystemExit(3)

    scheduler.add("work", work, interval_seconds=0.001)
    scheduler.start()
    assert ran.wait(300)
    assert again.wait(300)
    scheduler.stop()
    assert status(scheduler, "work").last_error == "SystemExit: 3"


def test_a_slow_lane_does_not_delay_another() -> None:
    scheduler = Scheduler(SYSTEM_CLOCK)
    go, ran = threading.Event(), threading.Event()
    scheduler.add("slow", lambda: go.wait(300), interval_seconds=3600, delay_seconds=0, lane="cleaner")
    scheduler.add("quick", ran.set, interval_seconds=3600, delay_seconds=0)
    scheduler.start()
    assert ran.wait(300)
    go.set()
    scheduler.stop()


def test_nothing_runs_after_a_stop() -> None:
    scheduler, clock = manual()
    scheduler.add("work", lambda: None, interval_seconds=1)
    scheduler.stop()
    clock.advance(5000)
    assert scheduler.run_due() == 0
