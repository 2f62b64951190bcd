"""Snapshots of a queue's journal: writing a state as one, and finding one. No I/O here.

A snapshot is one record or more; each starts with an event that names its snapshot (``S``).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from kstore.queue.events import (
    COUNT_MAX,
    DONE,
    FLOOR,
    GAP,
    HELD,
    MOVED,
    RETRY,
    ROWS_MAX,
    SNAPSHOT,
    Event,
    encode_events,
    ranges_of,
)
from kstore.queue.known import OF_SNAPSHOT, KnownItems
from kstore.queue.leases import Lease

LeaseT = TypeVar("LeaseT", bound=Lease)


def snapshot_of(state: KnownItems[LeaseT], as_of: int) -> list[bytes]:
    """All events about items that are not done; ``state`` contains the journal below ``as_of``."""
    # First which copies count: a copy of a done item does not, unless an earlier event says so.
    groups: list[tuple[bytes, Sequence[tuple[int, ...]]]] = [
        (MOVED, sorted((old, new) for new, old in state.moved.items())),
        (FLOOR, [(state.floor,)]),
        (DONE, sorted([*ranges_of(state.done), *_rows_of(state.done_runs)])),
        (GAP, [(state.gap_end,)] if state.gap_end else []),
        (
            RETRY,
            sorted(
                (offset, *retry, OF_SNAPSHOT) for offset, retry in state.retries.items() if not state.is_done(offset)
            ),
        ),
        (
            HELD,
            [
                (offset, claim.deliveries, claim.owner, claim.claimed_ms, claim.expires_ms)
                for offset, claim in state.claims.items()
            ],
        ),
    ]
    values = [
        encode_events(kind, rows[at : at + ROWS_MAX]) for kind, rows in groups for at in range(0, len(rows), ROWS_MAX)
    ]
    name = random.getrandbits(63)
    return [
        encode_events(SNAPSHOT, [(as_of, name, part, len(values), *state.boot)]) + value
        for part, value in enumerate(values)
    ]


def _rows_of(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first, stop in runs:
        for at in range(first, stop, COUNT_MAX):
            yield at, min(stop - at, COUNT_MAX)


def last_snapshot(records: Iterable[Sequence[Event]], start: int) -> tuple[int, list[Event]] | None:
    """The latest whole snapshot among ``records`` that is of ``start`` or later: its offset, and its events."""
    latest: tuple[int, list[Event]] | None = None
    parts: dict[int, list[Event]] = {}
    for events in records:
        if not events or events[0][0] != SNAPSHOT:
            continue
        as_of, name, part, count, *_ = events[0][1]
        if as_of < start or (part and name not in parts):
            continue
        found = parts.setdefault(name, [])
        found += events
        is_whole = part == count - 1 and sum(kind == SNAPSHOT for kind, _ in found) == count
        if is_whole and (latest is None or latest[0] <= as_of):
            latest = as_of, found
    return latest
