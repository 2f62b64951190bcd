"""A queue's decisions, without files: events, order, leases, copies, and processes that read the same journal."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstore.errors import CorruptFileError
from kstore.queue.events import (
    ACKED,
    BOOT,
    CLAIM,
    DONE,
    END,
    FLOOR,
    GAP,
    HELD,
    MOVED,
    MOVED_BY,
    RETRY,
    SNAPSHOT,
    decode_events,
    encode_events,
    ranges_of,
)
from kstore.queue.journal import snapshot_of
from kstore.queue.leases import Leases
from kstore.queue.state import EXPIRED_MAX, QueueState
from tests.crash.interrupted_life import InterruptAfterCode


class Item(NamedTuple):
    offset: int


class Held:
    """A lease."""

    def __init__(self, offset: int, deadline: float, delivery_count: int = 1, owner: int = 0) -> None:
        self.offset = offset
        self.seconds = 10.0
        self.deadline = deadline
        self.delivery_count = delivery_count
        self.owner = owner


State = QueueState[Item, Held]


def with_items(count: int, **settings: int) -> State:
    state: State = QueueState(**settings)  # type: ignore[arg-type]  # only numbers are given
    for offset in range(count):
        state.offer(Item(offset))
    return state


def taken(state: State, count: int = 100, now: float = 0.0, now_ms: int = 0) -> list[int]:
    fresh, again = state.take(count, now, now_ms)
    return [offset for offset, _ in again] + [item.offset for item in fresh]


def test_items_are_taken_in_order_and_what_comes_back_comes_first() -> None:
    state = with_items(4)
    assert taken(state, 3) == [0, 1, 2]
    state.lease([Held(0, 10), Held(1, 10), Held(2, 10)], 10.0)
    lease = state.lease_of(1)
    assert lease is not None
    state.end_lease(lease)
    state.give_back(1, 1, 0)
    assert taken(state) == [1, 3]


def test_a_lease_that_is_over_gives_its_item_back() -> None:
    state = with_items(1)
    taken(state)
    state.lease([Held(0, 10)], 10.0)
    assert (taken(state, now=9.9), state.wait_seconds(9.0, 0)) == ([], 1.0)
    assert taken(state, now=10.0) == [0]
    assert state.unnoted == {0: (1, 0)}


def test_the_end_of_a_lease_gives_back_nothing_that_is_done() -> None:
    state = with_items(2)
    assert taken(state) == [0, 1]
    state.lease([Held(0, 10), Held(1, 10)], 10.0)
    state.finish([0])
    assert state.expire(11) == 2
    assert (set(state.retries), set(state.unnoted)) == ({1}, {1})
    state.check()


def test_the_floor_is_the_first_item_that_is_not_done() -> None:
    state = with_items(6)
    taken(state)
    state.finish([1, 2, 4])
    assert (state.floor, state.done) == (0, {1, 2, 4})
    state.finish([0])
    assert (state.floor, state.done, state.pending_count(6)) == (3, {4}, 2)


def test_gaps_are_no_items() -> None:
    state = with_items(2)
    state.offer(Item(5))
    state.skip_to(9)
    assert taken(state) == [0, 1, 5]
    state.finish([0, 1, 5])
    assert state.floor == 9


def test_a_copy_counts_when_the_journal_says_so() -> None:
    state = with_items(3)
    taken(state)
    state.offer(Item(3), due_ms=0, count=1, moved_from=0)
    assert taken(state) == []
    state.apply(MOVED, (0, 3))
    assert state.is_done(0)
    assert taken(state) == [3]


def test_a_copy_of_what_is_done_is_nothing() -> None:
    state = with_items(1)
    taken(state)
    state.offer(Item(1), count=1, moved_from=0)
    state.finish([0])
    assert (taken(state), state.floor) == ([], 2)
    state.offer(Item(2), count=1, moved_from=0)
    assert (taken(state), state.floor) == ([], 3)


def test_what_was_delivered_too_often_is_dead() -> None:
    state = with_items(2, max_deliveries=2)
    taken(state)
    state.give_back(0, 2, 0)
    state.give_back(1, 1, 0)
    assert (list(state.dead), taken(state)) == ([0], [1])


def test_a_snapshot_says_all_that_is_needed() -> None:
    state = with_items(10)
    taken(state)
    state.finish([0, 1, 4, 5])
    state.give_back(2, 3, 77)
    state.apply(MOVED, (6, 9))
    again: State = QueueState()
    for value in snapshot_of(state, 0):
        for kind, row in decode_events(value):
            again.apply(kind, row)
    assert (again.floor, again.done, again.retries, again.moved) == (2, {4, 5, 6}, {2: (3, 77)}, {9: 6})


def test_what_was_said_of_offsets_beyond_the_end_is_void() -> None:
    state: State = QueueState()
    state.apply(DONE, (0, 20))
    state.apply(RETRY, (25, 1, 0, 0))
    assert state.known_end == 26
    state.apply(END, (12,))
    assert (state.floor, state.known_end, state.retries) == (12, 12, {})
    state.offer(Item(12))
    assert taken(state) == [12]


def test_events_come_back_as_they_were() -> None:
    groups: dict[bytes, list[tuple[int, ...]]] = {
        DONE: [(1, 2), (2**62, 3)],
        RETRY: [(5, 1, 99, 2**64 - 1)],
        MOVED: [(1, 9)],
        MOVED_BY: [(1, 9, 2**60)],
        ACKED: [(1, 2)],
        CLAIM: [(5, 1, 2**60, 1, 10)],
        HELD: [(5, 1, 2**60, 1, 10)],
        BOOT: [(2**64 - 1, 1)],
        FLOOR: [(7,)],
        END: [(8,)],
        GAP: [(9,)],
        SNAPSHOT: [(1, 2, 3, 4, 5, 6)],
    }
    value = b"".join(encode_events(kind, rows) for kind, rows in groups.items())
    assert list(decode_events(value)) == [(kind, row) for kind, rows in groups.items() for row in rows]
    assert list(decode_events(encode_events(DONE, [(4, 1)]))) == [(DONE, (4, 1))]


@pytest.mark.parametrize("value", [b"D", b"X\0\0\0\1", b"D\0\0\0\2" + bytes(12), b"D\xff\xff\xff\xff"])
def test_damaged_events_are_reported(value: bytes) -> None:
    with pytest.raises(CorruptFileError):
        list(decode_events(value))


@given(st.binary(max_size=60))
def test_any_bytes_are_events_or_an_error(value: bytes) -> None:
    try:
        for kind, row in decode_events(value):
            assert encode_events(kind, [row])
    except CorruptFileError:
        pass


@given(st.sets(st.integers(0, 60)))
def test_ranges_hold_what_they_are_of(offsets: set[int]) -> None:
    ranges = ranges_of(offsets)
    assert [offset for first, count in ranges for offset in range(first, first + count)] == sorted(offsets)
    assert all(first + count < following for (first, count), (following, _) in itertools.pairwise(ranges))


class Process:
    """One of several states that read the same journal, each up to its own position."""

    def __init__(self) -> None:
        self.state = with_items(6)
        self.state.is_shared = True
        self.position = 0

    def read(self, journal: list[tuple[bytes, tuple[int, ...]]], stop: int) -> None:
        while self.position < stop:
            self.state.apply(*journal[self.position])
            self.position += 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["claim", "done", "retry", "pass"]), st.integers(0, 5))))
@pytest.mark.long
def test_processes_agree_on_the_holders(steps: list[tuple[int, str, int]]) -> None:
    """An item has one owner at a time, whatever each process knew at its request, and none when it is done."""
    processes = [Process() for _ in range(3)]
    journal: list[tuple[bytes, tuple[int, ...]]] = []
    now_ms = owners = 0
    done: set[int] = set()
    held: dict[int, tuple[int, int]] = {}  # by offset: the owner, and when the lease expires
    for number, what, offset in steps:
        process = processes[number]
        claim = process.state.claims.get(offset)
        if what == "pass":
            now_ms += 4
        elif what == "claim":
            owners += 1
            journal.append((CLAIM, (offset, 1, owners, now_ms, now_ms + 10)))
            process.read(journal, len(journal))
            found = process.state.claims.get(offset)
            if found is not None and found.owner == owners:
                assert offset not in done
                assert held.get(offset, (0, 0))[1] <= now_ms, "another process has it"
                held[offset] = owners, now_ms + 10
        elif claim is not None and held.get(offset, (0, 0))[0] == claim.owner:
            journal.append((DONE, (offset, 1)) if what == "done" else (RETRY, (offset, 1, 0, claim.owner)))
            del held[offset]
            if what == "done":
                done.add(offset)
    for process in processes:
        process.read(journal, len(journal))
        process.state.check()
    first = processes[0].state
    for process in processes:
        assert (process.state.claims, process.state.floor, process.state.done) == (
            first.claims,
            first.floor,
            first.done,
        )
    free = set(range(6)) - done - {offset for offset, claim in first.claims.items() if claim.expires_ms > now_ms}
    assert set(taken(first, now=now_ms / 1000)) == free


def test_an_ack_that_the_journal_has_already_counts_once() -> None:
    """In a shared queue another thread may have read the journal up to it."""
    state = with_items(2, is_shared=True)
    assert taken(state) == [0, 1]
    state.apply(DONE, (0, 1))
    state.finish_fast([0])
    assert (state.floor, state.done, state.pending_count(2)) == (1, set(), 1)


@pytest.mark.parametrize("is_read", [False, True], ids=["journal first", "items first"])
def test_a_late_word_of_a_move_revives_nothing(is_read: bool) -> None:
    """The copying process paused until others had leased one item and acked another."""
    state = with_items(2, is_shared=True)
    for offset in (0, 1):
        state.apply(CLAIM, (offset, 0, 7, 0, 10))
    copies = [(Item(2), 0), (Item(3), 1)]
    for copy, old in copies if is_read else ():
        state.offer(copy, moved_from=old)
    for offset in (0, 1):
        state.apply(CLAIM, (offset, 1, 8, 20, 30))
    state.apply(DONE, (0, 1))
    for copy, old in copies:
        state.apply(MOVED_BY, (old, copy.offset, 7))
    for copy, old in () if is_read else copies:
        state.offer(copy, moved_from=old)
    assert (taken(state, now=0.025), state.is_done(2), state.is_done(1)) == ([], True, False)
    state.apply(DONE, (1, 1))
    assert (state.floor, taken(state, now=1)) == (4, [])


def test_a_move_by_the_holder_of_the_items_counts_once() -> None:
    state = with_items(2, is_shared=True)
    state.apply(CLAIM, (0, 0, 7, 0, 10))
    state.offer(Item(2), moved_from=0)
    for _ in range(2):
        state.apply(MOVED_BY, (0, 2, 7))
    state.check()
    assert (state.is_done(0), sorted(taken(state))) == (True, [1, 2])


class NeverWalked(dict[int, int]):
    """A container that may become large."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all are walked for one")

    def items(self) -> Any:
        raise AssertionError("all are walked for one")


def test_a_copy_is_found_without_a_look_at_all_others() -> None:
    state = with_items(100)
    for copy in range(100, 200):
        state.offer(Item(copy), moved_from=copy - 100)
    state.offer(Item(200), moved_from=0)
    state.unconfirmed = NeverWalked(state.unconfirmed)
    state.apply(MOVED, (0, 100))
    state.finish([1])
    assert (state.is_done(0), state.is_done(100), state.is_done(200), state.is_done(101)) == (True, False, True, True)
    assert len(state.unconfirmed) == 98


def test_an_event_about_copies_that_is_applied_again_after_an_interrupt_loses_none() -> None:
    for kind, row, alive in ((MOVED, (0, 4), [4]), (GAP, (9,), [4, 5]), (DONE, (0, 1), [])):
        for number in itertools.count(1):
            state = with_items(4)
            taken(state)
            state.offer(Item(4), moved_from=0)
            state.offer(Item(5), moved_from=0)
            with InterruptAfterCode(number) as interrupted:
                try:
                    state.apply(kind, row)
                except KeyboardInterrupt:
                    pass
            if interrupted.struck:
                state.apply(kind, row)
            at = f"{kind!r}, interrupted at {interrupted.place}"
            assert state.is_done(0), at
            # The others may come again: they were taken without a lease.
            assert [offset for offset in taken(state) if offset > 3] == alive, at
            assert (state.unconfirmed, state._copies) == ({}, {}), at
            state.finish([1, 2, 3, *alive])
            assert state.floor == 6, at
            if not interrupted.struck:
                break
        assert number > 20


def test_copies_count_where_the_journal_was_damaged() -> None:
    state = with_items(4)
    taken(state)
    state.offer(Item(4), moved_from=0)
    state.offer(Item(5), moved_from=0)
    state.offer(Item(6), moved_from=1)
    state.finish([1])
    state.apply(GAP, (9,))
    state.offer(Item(7), moved_from=1)
    state.offer(Item(8), moved_from=2)
    state.offer(Item(9), moved_from=3)
    assert taken(state) == [4, 5, 7, 8]
    assert (state.is_done(2), state.is_done(3), state.unconfirmed) == (True, False, {9: 3})
    state.finish([3])
    assert state.is_done(9)


def test_a_claim_is_of_one_start_of_the_machine() -> None:
    state = with_items(1, is_shared=True)
    taken(state)
    state.apply(BOOT, (1, 1))
    state.apply(CLAIM, (0, 1, 7, 5, 10**9))
    state.apply(BOOT, (1, 1))
    assert taken(state) == []
    state.apply(BOOT, (1, 2))
    assert taken(state) == [0]


def test_what_another_process_gives_back_is_taken_once_though_it_is_fresh_here() -> None:
    state: State = QueueState(is_shared=True)
    for offset in range(3):
        state.offer(Item(offset))
    state.apply(CLAIM, (1, 1, 7, 0, 10_000))
    state.apply(RETRY, (1, 1, 0, 7))
    fresh, again = state.take(10, 0.0, 0)
    assert ([item.offset for item in fresh], again) == ([0, 2], [(1, 1)])


def test_what_is_held_or_leased_does_not_wait_when_another_process_gives_it_back() -> None:
    state: State = QueueState(is_shared=True)
    for offset in range(2):
        state.offer(Item(offset))
    state.take(2, 0.0, 0)
    state.hold([0])
    state.lease([Held(1, 10.0, owner=7)], 10.0)
    for offset in range(2):
        state.apply(RETRY, (offset, 1, 0, 0))
    state.check()
    assert state.take(2, 0.0, 0) == ([], [])
    state.let_go([0])
    state.check()
    assert state.take(2, 0.0, 0) == ([], [(0, 1)])


def test_one_call_ends_a_bounded_number_of_expired_leases_and_later_calls_the_others_in_order() -> None:
    count = 2 * EXPIRED_MAX + 10
    state = with_items(count)
    taken(state, count)
    state.lease([Held(offset, 10) for offset in range(count)], 10.0)
    got = []
    for left in (count - EXPIRED_MAX, count - 2 * EXPIRED_MAX, 0):
        got += taken(state, EXPIRED_MAX, now=10.0)
        assert (state.leased_count, state.leases.over_count(10.0)) == (left, left)
    assert got == list(range(count))
    assert len(state.unnoted) == count
    state.lease([Held(offset, 20, delivery_count=2) for offset in got], 10.0)
    state.check()


def test_an_expired_lease_of_an_item_that_was_delivered_often_enough_makes_it_a_dead_letter() -> None:
    state: State = QueueState(max_deliveries=2)
    for offset in range(3):
        state.offer(Item(offset), count=1 if offset == 1 else 0)
    assert taken(state) == [1, 0, 2]
    state.lease([Held(offset, 10, delivery_count=2 if offset == 1 else 1) for offset in (1, 0, 2)], 10.0)
    assert taken(state, now=10.0) == [0, 2]
    assert list(state.dead) == [1]
    state.lease([Held(offset, 20, delivery_count=2) for offset in (0, 2)], 10.0)
    state.check()


def test_a_look_for_the_first_lease_does_not_pass_all_that_have_ended() -> None:
    """A dict keeps the places of removed entries until something is added: here that never happens."""
    leases: Leases[Held] = Leases()
    held = [Held(offset, 10) for offset in range(100_000)]
    leases.give_all(held, 10.0)
    size = sys.getsizeof(leases[10.0])
    for lease in held[:-1]:
        leases.end(lease)
        if lease.offset % 1000 == 0:
            assert leases.first() == [held[lease.offset + 1]]
    assert leases.first() == [held[-1]]
    assert sys.getsizeof(leases[10.0]) < size / 100
    leases.end(held[-1])
    assert (leases.first(), leases.over_count(11)) == ([], 0)
