"""Adds up what the tests tried, over all processes of a run, and prints it; see ``evidence.py``."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from kstore.engine.change.flush import Flusher
from kstore.segments import tail
from tests.promises import PROMISES, commit, commit_times, marked, page, rows_of, tried_rows
from tests.support.harness import again, selection
from tests.support.harness.catalogue import ROOT, Listed, all_tests, listed
from tests.support.harness.evidence import KINDS, Evidence, Tried, verdict_of
from tests.support.harness.scheduling import compile_share, scheduling, shares_session, worker_count

# No test is timed: a busy machine is not a failure.
settings.register_profile("kstore", deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("kstore"), max_examples=25)

SEED = 20260131
EVIDENCE = pytest.StashKey[Evidence]()
COLLECTED = pytest.StashKey[list[pytest.Item]]()
# Files in memory, and how much memory must be free.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30
MEMORY_ALLOCATE_BYTES = 256 << 10


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kstore")
    group.addoption("--evidence-seed", type=int, default=SEED, help="what the tests draw their cases from")
    group.addoption("--promises", metavar="FILE", help="update the page of promises and their tests")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    again.choose_seed(config)
    selection.choose(config.option.markexpr)
    settings.load_profile("quick" if selection.is_quick() else "kstore")
    if "not soak" in config.option.markexpr and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN:
        # Otherwise syncs take a third of the time. The long counts try a real disk.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
        # Blocks in memory are cleared when they are reserved, and most logs of the tests stay small.
        tail.ALLOCATE_BYTES = MEMORY_ALLOCATE_BYTES
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Tests in the background of a shell script ignore Ctrl-C, and so would everything that they start.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[EVIDENCE] = Evidence(config.getoption("--evidence-seed"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Before ``-m`` is applied: marks what samples omit, and puts the tests that share a Spark session first."""
    selection.leave_out(items, config.getoption("--evidence-seed"))
    items.sort(key=lambda item: not shares_session(item.nodeid))
    config.stash[COLLECTED] = []


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if items:
        items[0].config.stash[COLLECTED] += items


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    # Collection makes thousands of tests and frees none: garbage collection would take a fifth of the time.
    gc.disable()
    try:
        if _is_whole(session.config):
            compile_share(session.config)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash.setdefault(COLLECTED, []).extend(session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return worker_count(config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    return scheduling(config, log) if config.getvalue("dist") == "loadscope" else None


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed from which a test draws its cases; ``--evidence-seed`` repeats a failure."""
    return int(request.config.getoption("--evidence-seed"))


@pytest.fixture(scope="session")
def catalogue(request: pytest.FixtureRequest) -> list[Listed]:
    """Every test: as this run has collected it, or another process if this run covers only some files."""
    if not _is_whole(request.config):
        return all_tests()
    items = request.config.stash[COLLECTED]
    return listed(items)


def _is_whole(config: pytest.Config) -> bool:
    return [Path(argument).resolve() for argument in config.args] == [ROOT / "tests"]


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Counts what the test tries: ``tried("flips", 1)``."""

    def count(kind: str, number: int = 1) -> None:
        assert kind in KINDS, f"{kind!r}, expected one of {KINDS}"
        record_property("tried", [kind, number])

    return count


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory in memory if possible, for tests of the order of operations rather than the disk."""
    path = Path(tempfile.mkdtemp(prefix="kstore-faults-", dir=MEMORY if MEMORY.is_dir() else None))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def abandons_logs() -> Iterator[None]:
    """For tests that leave logs open, as a crash does: no later module's tests get the warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("promise"):
        for name in marker.args:
            assert name in PROMISES, f"{name!r} is no promise"
            item.user_properties.append(("promise", name))


class _Collector:
    """Receives every test's result in the process that the user sees, wherever the test ran."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not report.skipped:
            counts: dict[str, int] = {}
            promises = []
            for name, value in report.user_properties:
                if name == "tried":
                    assert isinstance(value, list)
                    counts[value[0]] = counts.get(value[0], 0) + int(value[1])
                elif name == "promise":
                    promises.append(str(value))
            self._evidence.tests.append(Tried(report.nodeid, report.passed, counts, tuple(promises)))
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._evidence.failures[verdict_of(getattr(crash, "message", ""))] += 1


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Collector(session.config.stash[EVIDENCE]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    evidence = config.stash[EVIDENCE]
    if evidence.totals:
        terminalreporter.section("evidence")
        for line in evidence.lines():
            terminalreporter.write_line(line)
    failed = [*terminalreporter.stats.get("failed", ()), *terminalreporter.stats.get("error", ())]
    reports = [report for report in failed if isinstance(report, pytest.TestReport)]
    if reports:
        terminalreporter.section("again")
        for command in again.commands(config, reports):
            terminalreporter.write_line(command)


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    target = config.getoption("--promises")
    if target and not hasattr(config, "workerinput"):
        # A run may cover only some tests, or be interrupted: the page keeps the rows of other runs.
        file = Path(target)
        rows = rows_of(file.read_text(encoding="utf-8")) if file.exists() else {}
        rows |= tried_rows(config.stash[EVIDENCE], commit())
        file.write_text(page(rows, marked(all_tests()), commit_times(rows)), encoding="utf-8")


@pytest.fixture
def unflushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lone logs whose thread never flushes: sealed segments are as they are just after the roll."""
    monkeypatch.setattr(Flusher, "_begin", lambda flusher: None)
