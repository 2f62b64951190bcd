"""How pytest-xdist distributes the tests to its workers (``--dist loadscope``).

The tests that share one Spark session are one unit; one worker starts with it. Spark waits for its own processes much
of the time, so there is one worker more than cores. Crash tests go one by one, unit tests a file at a time.

What a worker and the scheduler say to each other about a test that passes costs both of them more than many a test.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

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

    class ByUnit(LoadScopeScheduling):
        """Its own steps count all tests that a worker has had, and search the list of all tests, for each test."""

        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            super().mark_test_complete(node, item_index, duration)
            units = self.assigned_work[node]
            unit = unit_of(self.collection[item_index])
            if all(units[unit].values()):
                del units[unit]

        def _assign_work_unit(self, node: Any) -> None:
            name, unit = self.workqueue.popitem(last=False)
            self.assigned_work[node][name] = unit
            node.send_runtest_some([self._indexes[nodeid] for nodeid, is_done in unit.items() if not is_done])

        @functools.cached_property
        def _indexes(self) -> dict[str, int]:
            return {nodeid: index for index, nodeid in enumerate(self.collection)}

    # In the order of collection, not the unit with the most tests first.
    config.option.loadscopereorder = False
    return ByUnit(config, log)


def report_what_matters(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Runs a test of a worker, and reports its call and what did not pass: not that it starts, nor each step."""
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)


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
