"""The compiled loops over what is known of a queue's items do what its rules say, item by item."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import pytest

from kstore.errors import CorruptFileError
from kstore.queue import known as known_module
from kstore.queue._known import offer_known
from kstore.queue.events import ACKED, CLAIM, DONE, RETRY, decode_events, encode_events
from kstore.queue.state import QueueState

ITEMS = 40
OWNERS = (11, 22, 2**64 - 2)


@dataclass
class Item:
    offset: int


@dataclass
class Lease:
    offset: int
    owner: int
    delivery_count: int = 1
    seconds: float = 30.0
    deadline: float = 1e9


State = QueueState[Item, Lease]


def make_state() -> State:
    return QueueState(is_shared=True, max_deliveries=5)


def summary(state: State) -> tuple[object, ...]:
    runs = {offset for first, stop in state.done_runs for offset in range(first, stop)}
    leased = sorted((lease.offset, lease.owner) for lease in state.leases.held())
    numbers = state.floor, state.position, state._known_stop, state.counted_end
    tables = state.retries, state.claims, state.moved, state.unconfirmed, state.unnoted
    waits = {offset: key for offset, (_, key) in state._waits.items()}
    fresh = [item.offset for item in state.fresh]
    return numbers, state.done | runs, tables, state.busy, leased, waits, fresh, sorted(state.absent)


def step(state: State, generator: random.Random, records: list[bytes]) -> None:
    """Something that a process does besides reading the journal; the same for each ``generator`` of the same seed."""
    offset = generator.randrange(ITEMS)
    what = generator.random()
    if what < 0.2:
        if state.position < ITEMS + 20:
            state.offer(Item(state.position + generator.choice([0, 0, 1])))
    elif what < 0.3:
        if state.position < ITEMS + 20:
            offer_known(state, [Item(state.position + number) for number in range(generator.choice([1, 8]))])
    elif what < 0.4:
        state.hold((offset,))
    elif what < 0.5:
        state.let_go((offset,))
    elif what < 0.55:
        state.finish(range(offset, offset + generator.choice([1, 3, 9])))
    elif what < 0.6:
        state._move(offset, offset + 5)
    elif what < 0.65:
        state.count_gap(state.position + 1, state.position + 3)
    elif what < 0.7:
        state.unnoted[offset] = 2, 11
    elif what < 0.8:
        claim = state.claims.get(offset)
        if claim is not None and state.lease_of(offset) is None and not state.is_done(offset):
            state.waiting.discard(offset)
            state.lease([Lease(offset, claim.owner)], 30.0)
    else:
        state.apply_record(generator.choice(records))


def a_record(generator: random.Random) -> bytes:
    kind = generator.choice([CLAIM, CLAIM, ACKED, ACKED, RETRY])
    rows: list[tuple[int, ...]] = []
    for _ in range(generator.choice([1, 1, 4])):
        first, count = generator.randrange(ITEMS), generator.choice([1, 1, 2, 9])
        if kind == ACKED:
            rows.append((first, count))
        elif kind == CLAIM:
            begins = generator.choice([0, 1000, 5000])
            # As one call writes them: several items of one owner.
            owner = generator.choice(OWNERS)
            rows += [
                (offset, generator.choice([1, 2]), owner, begins, begins + 2000)
                for offset in range(first, first + count)
            ]
        else:
            rows.append((first, generator.choice([1, 3]), generator.choice([0, 10**13]), generator.choice(OWNERS)))
    return encode_events(kind, rows)


def lived(seed: int) -> list[tuple[object, ...]]:
    """What is known after each step, and which items a get takes."""
    generator = random.Random(seed)
    records = [a_record(generator) for _ in range(60)]
    state, seen = make_state(), []
    for number in range(80):
        step(state, generator, records)
        seen.append(summary(state))
        if number % 20 == 19:
            fresh, again = state.take(3, 2.0, 1000)
            seen.append((fresh, again, summary(state)))
            state.put_back(fresh, [offset for offset, _ in again])
    return seen


def one_by_one(
    state: State, fresh: Sequence[Item], wanted: int, taken: set[int], now: float, now_ms: int
) -> list[Item]:
    found: list[Item] = []
    queue = state.fresh
    while queue and len(found) < wanted:
        item = queue.popleft()
        if item.offset not in taken and state._is_free(item.offset, now, now_ms):
            found.append(item)
    return found


def offered(state: State, items: Sequence[Item]) -> None:
    for item in items:
        state.offer(item)


def forgotten(state: State, first: int, stop: int) -> None:
    for offset in range(first, stop):
        state._forget(offset)


def test_the_loops_do_what_the_rules_say_item_by_item(seed: int) -> None:
    for number in range(60):
        quick = lived(seed + number)
        with (
            mock.patch.object(known_module, "apply_plain", return_value=False),
            mock.patch.object(known_module, "finish_all", return_value=False),
            mock.patch.object(known_module, "forget_run", forgotten),
            mock.patch("kstore.queue.state.take_free", one_by_one),
            mock.patch(f"{__name__}.offer_known", offered),
        ):
            assert lived(seed + number) == quick, f"seed {seed + number}"


def test_a_run_of_any_length_is_forgotten_in_the_time_of_what_is_known_of_it() -> None:
    state = make_state()
    state.apply_record(encode_events(CLAIM, [(5, 1, 11, 0, 1000), (2**40, 1, 11, 0, 1000)]))
    state.apply_record(encode_events(ACKED, [(0, 2**32 - 1)]))
    assert list(state.claims) == list(state.retries) == [2**40]
    assert state.floor == 2**32 - 1


@pytest.mark.parametrize("kind", [CLAIM, ACKED])
@pytest.mark.parametrize("change", [lambda value: value[:-1], lambda value: value + b"\0", lambda value: value[:4]])
def test_a_record_of_another_size_than_its_events_is_refused_as_a_whole(kind: bytes, change: object) -> None:
    assert callable(change)
    rows: list[tuple[int, ...]] = [(1, 1)] if kind == ACKED else [(1, 1, 11, 0, 1000)]
    state = make_state()
    before = summary(state)
    with pytest.raises(CorruptFileError):
        state.apply_record(change(encode_events(kind, rows)))
    assert summary(state) == before


def test_events_after_the_first_group_of_a_record_count() -> None:
    state = make_state()
    state.apply_record(encode_events(ACKED, [(0, 1)]) + encode_events(DONE, [(1, 1)]))
    assert state.floor == 2
    assert not list(decode_events(b""))
