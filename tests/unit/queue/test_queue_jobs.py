"""The compiled loops of a queue over the items of one call, beside their plain counterparts."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.queue._jobs import (
    close_all,
    done_if_held,
    encode_runs,
    end_all,
    end_one,
    held_offsets,
    lease_first,
    made_records,
    new_jobs,
)
from kstore.queue.events import ACKED, DONE, encode_events, ranges_of
from kstore.queue.job import Job
from kstore.queue.leases import ByDeadline, Leases
from kstore.record._codec import Record

SECONDS = 10.0


class NoQueue:
    """No test here acks or nacks."""


def records(*offsets: int) -> list[Record]:
    return [Record(offset, 1000, value=b"v") for offset in offsets]


def jobs_of(*offsets: int, seconds: float = SECONDS, deadline: float = SECONDS) -> list[Job]:
    return new_jobs(Job, NoQueue(), records(*offsets), seconds, deadline, 7)


def leased(*offsets: int, seconds: float = SECONDS, deadline: float = SECONDS) -> tuple[Leases[Job], list[Job]]:
    leases: Leases[Job] = Leases()
    jobs = jobs_of(*offsets, seconds=seconds, deadline=deadline)
    leases.give_all(jobs, seconds)
    return leases, jobs


# --- records, jobs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [None, [b"k", None, b""], (b"k", None, b"")])
@pytest.mark.parametrize("as_type", [list, tuple])
def test_records_are_as_the_log_has_them(keys: Sequence[bytes | None] | None, as_type: type[Any]) -> None:
    values = as_type([b"a", None, b""])
    found = made_records(5, 1234, keys, values)
    given = keys or [None] * 3
    assert found == [Record(5 + at, 1234, "CreateTime", given[at], values[at]) for at in range(3)]


@pytest.mark.parametrize("value", [bytearray(b"v"), type("Bytes", (bytes,), {})(b"v"), memoryview(b"v")])
def test_only_bytes_make_a_record(value: Any) -> None:
    assert made_records(0, 0, None, [b"a", value]) is None
    assert made_records(0, 0, [value], [b"a"]) is None


def test_only_jobs_have_leases_to_end() -> None:
    for wrong in (None, object(), Record(1, 2)):
        with pytest.raises(TypeError):
            end_all({}, [wrong])  # type: ignore[type-var]  # what it refuses


def test_each_value_has_a_key_or_none_has() -> None:
    for keys in ([], [b"k"] * 2, ()):
        with pytest.raises(ValueError, match=f"{len(keys)} keys for 1 values"):
            made_records(0, 0, keys, [b"a"])


def test_a_job_has_the_fields_of_its_record() -> None:
    (made,) = jobs_of(3)
    assert (made.offset, made.value, made.timestamp, made.delivery_count) == (3, b"v", 1000, 1)
    assert (made.seconds, made.deadline, made.thread, made.owner, made.is_open) == (SECONDS, SECONDS, 7, 0, True)
    assert repr(made) == repr(Job(NoQueue(), records(3)[0], 1, SECONDS, SECONDS, 7))


# --- leases -----------------------------------------------------------------------------------------------------------


def test_what_is_held_is_found_in_the_order_of_the_offsets() -> None:
    leases, jobs = leased(4, 2, 9)
    assert held_offsets(leases, jobs) == [2, 4, 9]
    assert held_offsets(leases, jobs[:1]) == [4]
    assert held_offsets(leases, []) == []


def test_what_needs_a_decision_is_not_held() -> None:
    leases, jobs = leased(0, 1)
    assert held_offsets(leases, [jobs[0], jobs[0]]) is None  # there twice
    assert held_offsets(leases, [*jobs, *jobs_of(2)]) is None  # never leased
    assert held_offsets(leases, jobs_of(0)) is None  # another job has the item
    leases.give_again(leases[SECONDS].pop(1))
    assert held_offsets(leases, [jobs[1]]) is None  # among leases in another order
    close_all(jobs)
    assert held_offsets(leases, [jobs[0]]) is None  # acked before


def test_ended_leases_are_gone_and_others_stay() -> None:
    leases, jobs = leased(*range(5))
    end_all(leases, [jobs[3], jobs[0]])
    assert [job.offset for job in leases.held()] == [1, 2, 4]
    end_all(leases, jobs[3:4])  # it has ended
    assert leases.count == 3


def test_one_job_is_acked_as_many_are() -> None:
    leases, jobs = leased(0, 2**40)
    assert [done_if_held(leases, job, DONE) for job in jobs] == [encode_runs(DONE, [job.offset], 1)[0] for job in jobs]
    (other,) = jobs_of(0)
    assert done_if_held(leases, other, DONE) is None
    end_one(leases, jobs[0])
    assert leases.held() == jobs[1:]
    assert done_if_held(leases, jobs[0], DONE) is None
    end_one(leases, jobs[0])  # it has ended
    close_all(jobs)
    assert done_if_held(leases, jobs[1], DONE) is None


def test_the_last_lease_of_a_length_leaves_no_group_unless_it_is_the_only_one() -> None:
    leases, jobs = leased(0)
    other = jobs_of(1, seconds=20.0)
    leases.give_all(other, 20.0)
    end_all(leases, other)
    assert list(leases) == [SECONDS]
    end_all(leases, jobs)
    assert leases == {SECONDS: {}}


def test_the_first_item_is_leased() -> None:
    leases: Leases[Job] = Leases()
    fresh = deque(records(6, 7))
    made = lease_first(Job, NoQueue(), fresh, leases, SECONDS, 100.0, 7)
    assert made is not None
    assert (made.offset, made.deadline, [record.offset for record in fresh]) == (6, 110.0, [7])
    assert leases.of(6) is made
    assert lease_first(Job, NoQueue(), deque(), leases, SECONDS, 100.0, 7) is None


def test_an_item_whose_lease_is_over_comes_first() -> None:
    leases, _ = leased(0, deadline=50.0)
    fresh = deque(records(1))
    assert lease_first(Job, NoQueue(), fresh, leases, SECONDS, 50.0, 7) is None
    assert lease_first(Job, NoQueue(), fresh, leases, SECONDS, 49.9, 7) is not None


def test_leases_in_another_order_are_looked_at_elsewhere() -> None:
    leases, _ = leased()
    leases[-1.0] = ByDeadline()
    assert lease_first(Job, NoQueue(), deque(records(1)), leases, SECONDS, 0.0, 7) is None


def test_many_leases_at_once_are_as_one_after_another() -> None:
    one_by_one: Leases[Job] = Leases()
    for job in jobs_of(*range(3)):
        one_by_one.give(job)
    at_once, _ = leased(*range(3))
    assert [*at_once[SECONDS]] == [*one_by_one[SECONDS]]
    at_once.give_all([], 30.0)
    for number in range(20):
        at_once.give_all(jobs_of(100 + number, seconds=100.0 + number), 100.0 + number)
    assert at_once.count == 23


def test_other_objects_are_refused() -> None:
    leases, jobs = leased(0)
    untyped: Any = object()
    wrong: Any = {SECONDS: {0: 1}}
    no_job: Any = object
    with pytest.raises(TypeError):
        held_offsets(leases, [*jobs, untyped])
    with pytest.raises(TypeError):
        new_jobs(Job, NoQueue(), [untyped], SECONDS, SECONDS, 7)
    with pytest.raises(TypeError):
        new_jobs(no_job, NoQueue(), records(1), SECONDS, SECONDS, 7)
    with pytest.raises(TypeError):
        lease_first(Job, NoQueue(), deque(records(1)), wrong, SECONDS, 0.0, 7)


# --- events -----------------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 50) | st.integers(2**40, 2**40 + 9) | st.integers(0, 2**63 - 1)), st.integers(1, 7))
def test_runs_are_written_as_rows_are(offsets: set[int], row_count_max: int) -> None:
    rows = ranges_of(offsets)
    expected = [encode_events(DONE, rows[at : at + row_count_max]) for at in range(0, len(rows), row_count_max)]
    assert encode_runs(DONE, sorted(offsets), row_count_max) == expected


def test_a_kind_is_one_byte_and_a_group_has_a_row() -> None:
    assert encode_runs(ACKED, [1, 2, 4], 10) == [encode_events(ACKED, [(1, 2), (4, 1)])]
    for kind, row_count_max in ((b"", 1), (b"DD", 1), (DONE, 0)):
        with pytest.raises(ValueError, match="a group of"):
            encode_runs(kind, [1], row_count_max)
