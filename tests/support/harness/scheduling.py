"""How pytest-xdist distributes the tests to its workers (``--dist loadscope``).

The tests that share one Spark session are one unit; one worker starts with it. Spark waits for its own processes much
of the time, so there is one worker more than cores. Crash tests go one by one, unit tests a file at a time.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

import pytest

SPARK = "tests/spark/"
# Their drivers are processes of their own.
OWN_SESSIONS = ("tests/spark/test_cluster.py", "tests/spark/test_demo.py", "tests/spark/test_write_kills.py")
BY_FILE = ("tests/unit/", "tests/golden/", "tests/fuzz/")


def worker_count(markexpr: str) -> int:
    """The meaning of ``-n auto``: one process for each available core, and one that waits for Spark."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + ("not spark" not in markexpr)


def shares_session(nodeid: str) -> bool:
    return nodeid.startswith(SPARK) and not nodeid.startswith(OWN_SESSIONS)


def unit_of(nodeid: str) -> str:
    """The name of a test's unit: one worker runs a unit's tests, in order."""
    if shares_session(nodeid):
        return SPARK
    return nodeid.partition("::")[0] if nodeid.startswith(BY_FILE) else nodeid


def scheduling(config: pytest.Config, log: object) -> Any:
    """The scheduler that pytest-xdist uses."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    # In the order of collection, not the unit with the most tests first.
    config.option.loadscopereorder = False
    made = LoadScopeScheduling(config, log)
    made._split_scope = unit_of
    return made


def compile_share(config: pytest.Config) -> None:
    """Has each worker import a part of the test files before it collects them all, as every worker must.

    The first run in a checkout compiles the files and the packages that they import. Workers that begin with the same
    file would each compile everything.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    files = sorted((config.rootpath / "tests").rglob("test_*.py"))
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    for file in files[len(files) * number // count : len(files) * (number + 1) // count]:
        # What cannot be imported is reported, or skipped, when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(config.rootpath).with_suffix("").parts))
