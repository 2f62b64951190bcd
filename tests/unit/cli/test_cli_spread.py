"""Work in several processes, of items and of logs: the same results in the same order, and no leftovers."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.cli import spread as module
from kstore.cli.main import main
from kstore.cli.places import LogPlace, log_places
from kstore.cli.spread import each_log, spread
from kstore.errors import CorruptFileError, KstoreError
from kstore.scan.visits import Advance, no_advance


@pytest.fixture(autouse=True)
def no_remains() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def is_elsewhere() -> bool:
    return multiprocessing.parent_process() is not None


def worked(item: int, advance: Advance) -> tuple[int, bool]:
    if item == 3 and is_elsewhere():
        raise KstoreError("damaged")
    if item == 5 and is_elsewhere():
        os._exit(1)
    if item == 7:
        raise ValueError("a mistake")
    advance(item)
    return item * 10, is_elsewhere()


@pytest.mark.long
def test_results_are_in_the_order_of_their_items() -> None:
    assert list(spread(worked, [2, 1, 0], 2, ahead=1)) == [(2, (20, True)), (1, (10, True)), (0, (0, True))]


@pytest.mark.long
def test_what_fails_elsewhere_is_done_here() -> None:
    assert list(spread(worked, [3, 1], 2, ahead=0)) == [(3, (30, False)), (1, (10, True))]
    # A process that the system ended takes the others with it.
    done = [(1, (10, True)), (5, (50, False)), (2, (20, False)), (4, (40, False))]
    assert list(spread(worked, [1, 5, 2, 4], 2, ahead=0)) == done


def test_one_process_is_this_one() -> None:
    steps: list[int] = []
    assert list(spread(worked, [2, 3], 1, advance=steps.append)) == [(2, (20, False)), (3, (30, False))]
    assert steps == [2, 3]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mistake_is_raised(processes: int) -> None:
    with pytest.raises(ValueError, match="a mistake"):
        list(spread(worked, [7], processes, ahead=1))


def test_items_are_taken_no_further_ahead_than_asked() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in (0, 1, 2, 4, 6, 8):
            taken.append(item)
            yield item

    results = spread(worked, items(), 2, ahead=2)
    next(results)
    assert taken == [0, 1, 2]
    results.close()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of three logs that count as large enough for several processes."""
    monkeypatch.setattr(module, "BYTES_MIN", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    for number in range(3):
        with kstore.Log(tmp_path / "data" / f"orders-{number}", durability="os") as log:
            log.append_many([b"v"] * (number + 1))
    return tmp_path / "data"


def seen(place: LogPlace, advance: Advance) -> tuple[str, int]:
    advance(5)
    advance(3)
    return place.path.name, os.getpid()


def refused(place: LogPlace, advance: Advance) -> int:
    if place.path.name == "orders-1":
        raise CorruptFileError("damaged", path=place.path)
    return 1


def ended(place: LogPlace, advance: Advance) -> str:
    if is_elsewhere():
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

    def noted(
        look: Callable[[LogPlace, Advance], object], places: list[LogPlace], processes: int, **_: object
    ) -> Iterator[tuple[LogPlace, object]]:
        found.append(processes)
        yield from ((place, look(place, no_advance)) for place in places)

    monkeypatch.setattr(module, "spread", noted)
    return found


def test_as_many_processes_work_as_are_asked_for(root: Path, counts: list[int]) -> None:
    places = log_places(str(root))
    for jobs, sizes in ((None, [0, 0, 0]), (2, [0, 0, 0]), (8, [9, 9, 9]), (1, [9, 9, 9]), (None, [9, 9, 9])):
        counts.clear()
        names = [name for name, _ in each_log(seen, places, sizes, lambda _: None, jobs)]
        assert names == ["orders-0", "orders-1", "orders-2"]
        # Nothing to read: none without being asked. At most one a log, and by default one a core, of which there are 2.
        assert counts == {(None, 0): [1], (2, 0): [2], (8, 9): [3], (1, 9): [1], (None, 9): [2]}[jobs, sizes[0]]


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
