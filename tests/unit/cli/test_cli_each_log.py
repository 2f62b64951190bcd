"""The commands that examine several logs in several processes: the same results in the same order, and no leftovers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.cli import each_log as module
from kstore.cli.each_log import each_log
from kstore.cli.main import main
from kstore.cli.places import LogPlace, log_places
from kstore.errors import CorruptFileError
from kstore.scan.visits import Advance


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of three logs that count as large enough for several processes."""
    monkeypatch.setattr(module, "BYTES_MIN", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    for number in range(3):
        with kstore.Log(tmp_path / "data" / f"orders-{number}", durability="os") as log:
            log.append_many([b"v"] * (number + 1))
    yield tmp_path / "data"
    assert not multiprocessing.active_children()


def seen(place: LogPlace, advance: Advance) -> tuple[str, int]:
    advance(5)
    advance(3)
    return place.path.name, os.getpid()


def refused(place: LogPlace, advance: Advance) -> int:
    if place.path.name == "orders-1":
        raise CorruptFileError("damaged", path=place.path)
    return 1


def ended(place: LogPlace, advance: Advance) -> str:
    if multiprocessing.parent_process() is not None:
        os._exit(1)
    return place.path.name


@pytest.mark.long
def test_other_processes_look_and_the_results_are_in_order(root: Path) -> None:
    places = log_places(str(root))
    steps: list[int] = []
    results = list(each_log(seen, places, [7, 8, 9], steps.append))
    assert [name for name, _ in results] == ["orders-0", "orders-1", "orders-2"]
    assert os.getpid() not in {process for _, process in results}
    assert sum(steps) == 24


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many processes were asked for, each time; none is started."""
    found: list[int] = []

    def noted(work: object, tasks: list[str], count: int, **_: object) -> Iterator[tuple[str, None]]:
        found.append(count)
        yield from ((task, None) for task in tasks)

    monkeypatch.setattr(module, "in_order", noted)
    return found


def test_as_many_processes_work_as_are_asked_for(root: Path, counts: list[int]) -> None:
    places = log_places(str(root))
    for jobs, sizes in ((None, [0, 0, 0]), (2, [0, 0, 0]), (8, [9, 9, 9]), (1, [9, 9, 9]), (None, [9, 9, 9])):
        counts.clear()
        names = [name for name, _ in each_log(seen, places, sizes, lambda _: None, jobs)]
        assert names == ["orders-0", "orders-1", "orders-2"]
        # Nothing to read: none without being asked. At most one a log, and by default one a core, of which there are 2.
        assert counts == {(None, 0): [], (2, 0): [2], (8, 9): [3], (1, 9): [], (None, 9): [2]}[jobs, sizes[0]]


@pytest.mark.parametrize("command", ["stats", "verify", "report --format json"])
def test_the_number_of_processes_reaches_the_logs(
    command: str, root: Path, counts: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--jobs", "3", str(root)]) == 0
    assert counts == [3]


@pytest.mark.long
def test_an_error_is_that_of_its_log(root: Path) -> None:
    results = each_log(refused, log_places(str(root)), [1, 1, 1], lambda _: None)
    assert next(results) == 1
    with pytest.raises(CorruptFileError, match="damaged"):
        next(results)


@pytest.mark.long
def test_processes_that_the_system_ends_are_replaced_by_the_first(root: Path) -> None:
    results = each_log(ended, log_places(str(root)), [1, 1, 1], lambda _: None)
    assert list(results) == ["orders-0", "orders-1", "orders-2"]


@pytest.mark.long
def test_no_process_remains_of_a_look_that_is_given_up(root: Path) -> None:
    results = each_log(seen, log_places(str(root)), [1, 1, 1], lambda _: None)
    next(results)
    results.close()


@pytest.mark.parametrize("command", [["verify"], ["stats", "--deep"]])
@pytest.mark.sampled(1)
def test_the_output_is_that_of_one_process(
    command: list[str], root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*command, "--format", "json", str(root)]) == 0
    found = capsys.readouterr().out
    monkeypatch.setattr(module, "BYTES_MIN", 1 << 62)
    assert main([*command, "--format", "json", str(root)]) == 0
    assert capsys.readouterr().out == found
