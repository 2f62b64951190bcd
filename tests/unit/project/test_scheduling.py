"""Which tests one worker runs in order, and how many workers there are."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.support.harness.catalogue import ROOT
from tests.support.harness.scheduling import compile_share, unit_of, worker_count


def test_what_shares_a_spark_session_is_one_unit() -> None:
    assert unit_of("tests/spark/test_write.py::test_a") == unit_of("tests/spark/test_jobs.py::test_b[1]")
    assert unit_of("tests/spark/test_cluster.py::test_a") == "tests/spark/test_cluster.py::test_a"


def test_a_file_of_unit_tests_is_a_unit_and_a_crash_test_alone_is_one() -> None:
    assert unit_of("tests/unit/engine/test_log.py::test_a[b::c]") == "tests/unit/engine/test_log.py"
    assert unit_of("tests/crash/test_forks.py::test_a[os]") == "tests/crash/test_forks.py::test_a[os]"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system does not say which cores are ours")
def test_one_worker_more_than_cores_waits_for_spark() -> None:
    cores = len(os.sched_getaffinity(0))
    assert worker_count("not soak") == cores + 1
    assert worker_count("not soak and not spark") == cores


def test_workers_import_each_test_file_once_before_they_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(path.stem for path in (ROOT / "tests").rglob("test_*.py"))
    imported: list[str] = []

    def record(name: str) -> None:
        imported.append(name.rpartition(".")[2])
        raise ImportError("the worker goes on")

    monkeypatch.setattr("tests.support.harness.scheduling.importlib.import_module", record)
    for number in range(3):
        worker = SimpleNamespace(rootpath=ROOT, workerinput={"workerid": f"gw{number}", "workercount": 3})
        compile_share(worker)  # type: ignore[arg-type]
    assert sorted(imported) == files
    compile_share(SimpleNamespace(rootpath=ROOT))  # type: ignore[arg-type]
    assert len(imported) == len(files)
