"""How pytest-xdist distributes the tests to its workers (``--dist loadscope``).

The tests that share one Spark session are one unit, with which one worker starts. Spark waits for its own processes
much of the time, so there is one worker more than cores. Crash tests go one by one, unit tests a file at a time.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

__all__ = ["scheduling", "shares_session", "unit_of", "worker_count"]

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
