"""Which tests one worker runs in order, and how many workers there are."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests.support.harness.catalogue import ROOT
from tests.support.harness.scheduling import (
    compile_share,
    report_what_matters,
    scheduling,
    unit_of,
    worker_count,
)


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


class _Worker:
    """Takes what a scheduler sends, as a worker of pytest-xdist does."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.tests: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.tests += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


def test_each_test_runs_once_and_those_of_a_unit_in_one_worker_in_order() -> None:
    sizes = {
        "tests/unit/test_a.py": 9,
        "tests/crash/test_b.py": 5,
        "tests/golden/test_c.py": 1,
        "tests/fuzz/test_d.py": 7,
    }
    tests = [f"{file}::test[{number}]" for file, size in sizes.items() for number in range(size)]
    config = SimpleNamespace(option=SimpleNamespace(), getvalue=lambda name: ["2*popen"])
    made = scheduling(config, None)  # type: ignore[arg-type]
    workers = [_Worker(0), _Worker(1)]
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, tests)
    made.schedule()
    done: dict[_Worker, list[str]] = {worker: [] for worker in workers}
    while not made.tests_finished or made.has_pending:
        for worker in workers:
            # Like a worker, it knows the next test before it runs one.
            while len(worker.tests) > (not worker.shutting_down):
                index = worker.tests.pop(0)
                done[worker].append(tests[index])
                made.mark_test_complete(worker, index)
    assert all(done.values())
    assert sorted(test for those in done.values() for test in those) == sorted(tests)
    for unit in {unit_of(test) for test in tests}:
        ran = [[test for test in those if unit_of(test) == unit] for those in done.values()]
        assert [test for test in tests if unit_of(test) == unit] in ran
    assert [made.remove_node(worker) for worker in workers] == [None, None]


def test_a_worker_reports_a_call_and_what_did_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [
        SimpleNamespace(when=when, passed=passed)
        for when, passed in [("setup", True), ("call", True), ("teardown", True), ("setup", False), ("teardown", False)]
    ]
    asked: list[object] = []
    told: list[SimpleNamespace] = []

    def run(item: object, *, log: bool, nextitem: object) -> list[SimpleNamespace]:
        asked.append((item, log, nextitem))
        return reports

    monkeypatch.setattr("tests.support.harness.scheduling.runtestprotocol", run)
    item = SimpleNamespace(ihook=SimpleNamespace(pytest_runtest_logreport=lambda report: told.append(report)))
    report_what_matters(item, None)  # type: ignore[arg-type]
    assert asked == [(item, False, None)]
    assert told == [reports[1], *reports[3:]]


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
