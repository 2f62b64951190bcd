"""``export_stretch``, interrupted once in the middle of a read or a write. Executors import this module by its name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

from kstore.log import Log
from kstore.spark.jobs import export_files
from kstore.spark.jobs.export_files import ExportTask
from kstore.spark.jobs.export_state import Receipt

# Files in the directory that the tasks share with the test: made by a task when it is interrupted, and by the test when
# the task may go on.
INTERRUPTED, GO = "interrupted", "go"
WAIT_SECONDS_MAX = 300

Moment = Literal["read", "write"]


def export_interrupted(act: Literal["kill", "wait"], moment: Moment, shared: str, task: ExportTask) -> Receipt:
    """The first task that comes to ``moment`` kills its executor there, or waits for ``GO``."""
    place, chunks, to_arrow_batches = Path(shared), export_files._chunks, Log.to_arrow_batches

    def interrupt() -> None:
        try:
            os.close(os.open(place / INTERRUPTED, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if act == "kill":
            os.kill(executor(), signal.SIGKILL)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not (place / GO).exists() and time.monotonic() < deadline:
            time.sleep(0.02)

    def interrupted_chunks(path: Path) -> Iterator[bytes]:
        for chunk in chunks(path):
            yield chunk
            interrupt()

    def interrupted_batches(log: Log, *args: Any, **options: Any) -> Any:
        batches = to_arrow_batches(log, *args, max_records=100, **options)
        return _Interrupted(batches, interrupt)

    if moment == "write":
        with patch.object(export_files, "_chunks", interrupted_chunks):
            return export_files.export_stretch(task)
    with patch.object(Log, "to_arrow_batches", interrupted_batches):
        return export_files.export_stretch(task)


class _Interrupted:
    """Record batches, interrupted after the first."""

    def __init__(self, batches: Any, interrupt: Any) -> None:
        self._batches = batches
        self._interrupt = interrupt

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            yield batch
            self._interrupt()

    @property
    def corrupt(self) -> Any:
        return self._batches.corrupt


def executor() -> int:
    """The process of the executor: the parent of the daemon that started this worker."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))


def interrupting(act: Literal["kill", "wait"], moment: Moment, shared: Path) -> partial[Receipt]:
    return partial(export_interrupted, act, moment, str(shared))
