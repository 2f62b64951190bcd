"""Work in several processes: results in order, errors and ended processes reach the caller, nothing is left running."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator

import pytest

from kstore.cli.processes import in_order
from kstore.errors import KstoreError


@pytest.fixture(autouse=True)
def no_remains() -> Iterator[None]:
    yield
    assert not multiprocessing.active_children()


def worked(task: int) -> tuple[int, bool]:
    if task == 3:
        raise KstoreError("damaged")
    if task == 5:
        os._exit(1)
    if task == 7:
        raise ValueError("a mistake")
    return task * 10, multiprocessing.parent_process() is not None


@pytest.mark.long
def test_results_are_in_the_order_of_their_tasks() -> None:
    assert list(in_order(worked, [2, 1, 0], 2, ahead=1)) == [(2, ((20, True),)), (1, ((10, True),)), (0, ((0, True),))]


@pytest.mark.long
def test_an_error_and_the_end_of_a_process_are_left_to_the_caller() -> None:
    assert list(in_order(worked, [3, 1], 1, ahead=0)) == [(3, None), (1, ((10, True),))]
    assert list(in_order(worked, [1, 5, 2, 4], 1, ahead=0)) == [(1, ((10, True),)), (5, None), (2, None), (4, None)]


def test_a_mistake_is_raised() -> None:
    with pytest.raises(ValueError, match="a mistake"):
        list(in_order(worked, [7], 1, ahead=1))


def test_tasks_are_taken_no_further_ahead_than_asked() -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for task in (0, 1, 2, 4, 6, 8):
            taken.append(task)
            yield task

    results = in_order(worked, tasks(), 1, ahead=2)
    next(results)
    assert taken == [0, 1, 2]
    results.close()
