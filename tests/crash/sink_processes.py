"""The executors and the driver of a sink as processes, each of which may be killed at any time.

``Sink.finish_batch`` is what Spark does with a batch: it starts a task again until one attempt answers, sometimes two
attempts at once, and if the driver dies it stages the whole batch again. It knows only what a process has answered.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kstore.spark import appending
from kstore.spark.commit import Writer, commit
from kstore.spark.staging import StagedFile, staged_name
from kstore.spark.target import plan_target
from kstore.spark.write_options import WriteOptions
from kstore.spark.writer import stage
from tests.support.harness.evidence import Hung, Wrong
from tests.support.lives.spark_sink import batch_of

WRITER = Writer("query", "query")
TASKS = 2
PARTITIONS = 3
# For each task, batch and partition; several batches of records.
VALUES = 30
ANSWER_SECONDS = 120
# Another attempt, or another driver, comes while the killed one's lock may still be held.
LOCK_TIMEOUT_MS = 60_000
KILLED_SHARE = 0.7
SPECULATED_SHARE = 0.3


def values_of(batch_id: int, task: int, partition: int) -> list[bytes]:
    return [b"%d-%d-%d-%03d" % (batch_id, task, partition, number) + b"." * 100 for number in range(VALUES)]


def options_of(store: Path) -> WriteOptions:
    return WriteOptions(str(store), topic="orders", batch_bytes=1000, lock_timeout_ms=LOCK_TIMEOUT_MS)


def run_task(answer: Connection, store: Path, batch_id: int, task: int, attempt: int) -> None:
    numbers = list(range(PARTITIONS))
    rows = [
        batch_of([values_of(batch_id, task, number)[index] for number in numbers], partition=numbers)
        for index in range(VALUES)
    ]
    options = options_of(store)
    name = staged_name(WRITER.writer_id, batch_id, task, attempt)
    answer.send(stage(iter(rows), options, ("value", "partition"), plan_target(options), name, task))


def run_driver(answer: Connection, store: Path, batch_id: int, staged: list[StagedFile]) -> None:
    appending.APPEND_BYTES = 2000
    commit(options_of(store), WRITER, batch_id, staged)
    answer.send(True)


@dataclass
class Sink:
    """Batches of one query. ``kills`` counts the processes that were killed before they ended by themselves."""

    store: Path
    chance: random.Random
    kills: int = 0
    _attempts: int = 0
    # How long a process of a kind takes when it is not killed.
    _seconds: dict[Any, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._context = get_context("forkserver")
        # Imported before any process starts: pytest is the main module of each, and pyarrow looks for pandas.
        self._context.set_forkserver_preload(["pytest", "pandas", "pyarrow.compute", __name__])

    def finish_batch(self, batch_id: int, looked: Callable[[], None], *, is_safe: bool = False) -> None:
        """Returns when a driver has answered that the batch is committed; ``looked`` is called after a killed one."""
        while True:
            staged = [self._staged(batch_id, task, is_safe=is_safe) for task in range(TASKS)]
            if self._run(run_driver, batch_id, staged, is_safe=is_safe) is not None:
                return
            looked()

    def _staged(self, batch_id: int, task: int, *, is_safe: bool) -> StagedFile:
        while True:
            is_speculated = not is_safe and self.chance.random() < SPECULATED_SHARE
            other = self._start(run_task, batch_id, task, self._next_attempt()) if is_speculated else None
            found = self._run(run_task, batch_id, task, self._next_attempt(), is_safe=is_safe)
            if other is not None:
                late = self._answer_of(*other)
                found = found or late
            if isinstance(found, StagedFile):
                return found

    def _next_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def _start(self, target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=target, args=(sender, self.store, *arguments), daemon=True)
        process.start()
        sender.close()
        return process, receiver

    def _run(self, target: Callable[..., None], *arguments: Any, is_safe: bool) -> object:
        """What a process answers, None for one that was killed before."""
        started = time.monotonic()
        process, receiver = self._start(target, *arguments)
        usual = self._seconds.get(target)
        if usual is not None and not is_safe and self.chance.random() < KILLED_SHARE:
            process.join(self.chance.uniform(0, usual))
            process.kill()
        answer = self._answer_of(process, receiver)
        if process.exitcode == 0:
            self._seconds[target] = time.monotonic() - started
        return answer

    def _answer_of(self, process: Any, receiver: Connection) -> object:
        process.join(ANSWER_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise Hung(f"a process of the sink has not ended within {ANSWER_SECONDS} s")
        if process.exitcode not in (0, -signal.SIGKILL):
            raise Wrong(f"a process of the sink ended by itself with {process.exitcode}")
        self.kills += process.exitcode != 0
        try:
            return receiver.recv()
        except EOFError:
            return None
        finally:
            receiver.close()
