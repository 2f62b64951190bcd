"""Done items in runs: as one by one, in any order; an event of any size costs no more than it takes in the journal."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli.main import main
from kstore.queue import known
from kstore.queue.events import (
    ACKED,
    CLAIM,
    DONE,
    END,
    FLOOR,
    GAP,
    MOVED,
    MOVED_BY,
    RETRY,
    decode_events,
    encode_events,
)
from kstore.queue.journal import snapshot_of
from kstore.queue.offsets import OffsetRuns, OffsetSet
from kstore.queue.state import QueueState
from kstore.store import Store
from tests.support.harness.selection import tries
from tests.unit.queue.test_queue_state import Item, State

HUGE = 2**32 - 1
MEMORY_MAX = 4 << 20


def test_runs_are_a_set_of_offsets() -> None:
    draw = random.Random(5)
    for _ in range(60):
        runs, model = OffsetRuns(), set[int]()
        for _ in range(30):
            first = draw.randrange(40)
            stop = first + draw.randrange(1, 8)
            match draw.randrange(6):
                case 0:
                    runs.keep_from(first)
                    model = {offset for offset in model if offset >= first}
                case 1:
                    runs.keep_below(stop)
                    model = {offset for offset in model if offset < stop}
                case _:
                    runs.add(first, stop)
                    model |= set(range(first, stop))
            assert {offset for offset in range(60) if offset in runs} == model
            assert (runs.count, bool(runs)) == (len(model), bool(model))
            assert [offset for run in runs for offset in range(*run)] == sorted(model)
            assert runs.borders == sorted(set(runs.borders)), "runs that touch are one"
            gaps = [offset for gap in runs.gaps(first, stop) for offset in range(*gap)]
            assert gaps == [offset for offset in range(first, stop) if offset not in model]
            assert all(one < other for one, other in runs.gaps(first, stop))


@pytest.mark.parametrize(("first", "stop"), [(0, 0), (3, 3), (5, 2)])
def test_there_are_no_gaps_between_nothing(first: int, stop: int) -> None:
    runs = OffsetRuns()
    assert runs.gaps(first, stop) == []
    runs.add(2, 4)
    assert runs.gaps(first, stop) == []


def test_a_range_is_removed_from_a_set_of_nearby_offsets() -> None:
    draw = random.Random(6)
    for _ in range(40):
        found, model = OffsetSet(), set[int]()
        for _ in range(10):
            first = draw.randrange(5000)
            stop = first + draw.choice([0, 1, 5, 1023, 1024, 3000])
            if draw.randrange(2):
                found.add_range(first, stop)
                model |= set(range(first, stop))
            else:
                found.remove_range(first, stop)
                model -= set(range(first, stop))
            assert (set(found), len(found)) == (model, len(model))


# --- the same as one by one -------------------------------------------------------------------------------------------


def drawn(draw: random.Random, end: int) -> Callable[[State], object]:
    """A call that may come at any time, and does the same to every state that it is given."""
    first, other, owner = draw.randrange(end), draw.randrange(end), draw.randrange(3)
    count, gap = draw.choice([1, 2, 3, 9, 15, 40]), draw.randrange(20)
    row = draw.choice(
        [
            (DONE, (first, count)),
            (ACKED, (first, count)),
            (RETRY, (first, draw.randrange(1, 4), draw.choice([0, 99]), owner)),
            (MOVED, (first, other)),
            (MOVED_BY, (first, other, owner)),
            (CLAIM, (first, 1, owner, 0, 10_000)),
            (FLOOR, (draw.randrange(end // 4),)),
            (GAP, (draw.randrange(end),)),
        ]
    )
    calls: list[Callable[[State], object]] = [
        lambda state: state.apply(DONE, (first, count)),
        lambda state: state.finish([first, other]),
        lambda state: state.finish_range(first, first + count),
        lambda state: state.hold([o for o in range(first, first + count) if not state.is_done(o)]),
        lambda state: state.let_go(list(state.busy)),
        lambda state: state.offer(Item(state.position + gap), moved_from=other),
        lambda state: state.offer(Item(state.position)),
        lambda state: state.skip_to(min(state.position + count, end)),
        lambda state: state.damage(state.position, state.position + count % 4),
        lambda state: state.count_gap(max(state.position, state.counted_end), state.position + count),
    ]
    return draw.choice([*calls, *[lambda state: state.apply(*row)] * 8])


def told(state: State) -> dict[str, Any]:
    """All that it knows of the items."""
    end = 400
    return {
        "floor": state.floor,
        "position": state.position,
        "done": [offset for offset in range(end) if state.is_done(offset)],
        "absent": sorted(state.absent),
        "pending": state.pending_count(end),
        "retries": state.retries,
        "moved": state.moved,
        "unconfirmed": state.unconfirmed,
        "claims": state.claims,
        "busy": state.busy,
        "damaged": state.damaged,
        "known_end": state.known_end,
        "waits": sorted(state.waiting.places),
        "undone": list(state.undone(end)),
    }


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_runs_are_as_items_one_by_one(monkeypatch: pytest.MonkeyPatch, is_shared: bool) -> None:
    end = 120
    for seed in range(tries(2000, quick=30)):
        draw = random.Random(seed)
        states: list[State] = [QueueState(is_shared=is_shared) for _ in range(3)]
        for _ in range(draw.randrange(5, 60)):
            call = drawn(draw, end)
            for state, count_min in zip(states, (1, 8, 10**9), strict=True):
                monkeypatch.setattr(known, "RUN_COUNT_MIN", count_min)
                call(state)
            one, other, plain = [told(state) for state in states]
            assert one == plain, seed
            assert other == plain, seed
        assert not states[2].done_runs
        for state in states:
            again: State = QueueState(is_shared=is_shared)
            again.restore(event for value in snapshot_of(state, 0) for event in decode_events(value))
            assert [again.is_done(o) for o in range(end)] == [state.is_done(o) for o in range(end)], seed


def test_the_end_of_the_items_voids_the_rest_of_a_run() -> None:
    state: State = QueueState()
    state.apply(DONE, (5, HUGE))
    assert state.known_end == 5 + HUGE
    state.apply(END, (20,))
    assert (state.known_end, list(state.done_runs)) == (20, [(5, 20)])
    for offset in range(21):
        state.offer(Item(offset))
    assert [item.offset for item in state.take(100, 0.0, 0)[0]] == [0, 1, 2, 3, 4, 20]


def test_a_snapshot_names_runs_that_no_single_event_can() -> None:
    state: State = QueueState()
    for number in range(3):
        state.apply(DONE, (5 + number * HUGE, HUGE))
    again: State = QueueState()
    again.restore(event for value in snapshot_of(state, 0) for event in decode_events(value))
    assert list(again.done_runs) == [(5, 5 + 3 * HUGE)]


# --- hostile journals -------------------------------------------------------------------------------------------------

HOSTILE = {
    "done": [(DONE, [(3, HUGE)])],
    "acked": [(ACKED, [(3, HUGE)])],
    "from-the-start": [(DONE, [(0, HUGE)])],
    "below-zero": [(DONE, [(-(2**62), HUGE)])],
    "at-the-end-of-all-offsets": [(DONE, [(2**63 - 1, HUGE)])],
    "many": [(DONE, [(3 + number * 2 * HUGE, HUGE) for number in range(1000)])],
    "many-of-some": [(DONE, [(3 + number * 5000, 4900) for number in range(1000)])],
    "about-known-items": [
        (RETRY, [(5, 1, 0, 0)]),
        (CLAIM, [(6, 1, 7, 0, 10_000)]),
        (MOVED, [(4, 8)]),
        (ACKED, [(3, HUGE), (3, HUGE)]),
        (DONE, [(1, HUGE)]),
    ],
}


@pytest.mark.parametrize("groups", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("has_producer", [False, True], ids=["plain", "transactions"])
def test_a_journal_of_huge_runs_fills_no_memory(
    tmp_path: Path, groups: list[tuple[bytes, list[tuple[int, ...]]]], has_producer: bool
) -> None:
    with Store(tmp_path / "store", background=False, durability="os") as store:
        queue = store.queue("jobs")
        if has_producer:
            with store.producer(transactional_id="t") as producer, producer.transaction():
                producer.send_many("jobs", [b"in a transaction"] * 10)
        else:
            queue.put_many([b"%d" % number for number in range(10)])
        queue.get_nowait()
    with kstore.Log(tmp_path / "store" / "__queue_jobs-0", durability="os") as journal:
        journal.append(b"".join(encode_events(kind, rows) for kind, rows in groups))
    tracemalloc.start()
    try:
        assert main(["report", "--deep", "--format", "json", str(tmp_path / "store")]) in (0, 1)
        with Store(tmp_path / "store", background=False, durability="os") as store:
            queue = store.queue("jobs")
            assert queue.qsize() <= 11
            queue.stats()
            queue.peek(5)
            with suppress(kstore.Empty):
                queue.get_many(20, block=False)
            queue.put(b"new")
            assert queue.get_nowait().value == b"new"
            queue._core.ledger.snapshot()
            queue.check()
        assert tracemalloc.get_traced_memory()[1] < 3 * MEMORY_MAX + (tmp_path / "store").stat().st_size
    finally:
        tracemalloc.stop()
