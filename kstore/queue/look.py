"""The state of an open queue and its items: for ``Queue.stats``, ``Queue.peek``, its ``repr`` and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kstore.engine.read.describe import pieces_of
from kstore.engine.read.reads import segment_count_and_size
from kstore.errors import KstoreError
from kstore.files._locks import Attempt
from kstore.log import reads_of, writer_of
from kstore.queue.core import QueueCore
from kstore.queue.items import NOTHING, Shown, marks_of, of_user
from kstore.rules.notebook import html_table, size_text
from kstore.types import IsolationLevel


class QueueStats(NamedTuple):
    """The state of a queue. Counts of items: ``pending`` is all that are not done, including leased and delayed ones.

    ``damaged`` is the number of unreadable items; ``first_offset`` is the oldest item that is not done; ``size`` is the
    bytes of both logs.
    """

    pending: int
    leased: int
    delayed: int
    retried: int
    damaged: int
    first_offset: int
    end_offset: int
    size: int
    dead_letters: int


class LeasedItem(NamedTuple):
    """A leased item. ``age`` and ``rest`` are seconds: since the lease began or was extended, and until it expires.

    ``holder`` is the name of the thread that took it, or "another process".
    """

    offset: int
    delivery_count: int
    age: float
    rest: float
    holder: str


def leased_items(core: QueueCore, now: float, names: Mapping[int | None, str]) -> list[LeasedItem]:
    """See ``Queue.leased``. ``names`` are those of threads, by number. Needs the lock."""
    state = core.state
    found = [
        LeasedItem(
            job.offset,
            job.delivery_count,
            max(now - (job.deadline - job.seconds), 0.0),
            job.deadline - now,
            names.get(job.thread, f"thread {job.thread}, which has ended"),
        )
        for job in state.leases.held()
        if job.deadline > now
    ]
    own = {item.offset for item in found}
    found += [
        LeasedItem(
            offset,
            claim.deliveries,
            max(now - claim.claimed_ms / 1000, 0.0),
            claim.expires_ms / 1000 - now,
            "another process",
        )
        for offset, claim in state.claims.items()
        if offset not in own and claim.expires_ms > now * 1000
    ]
    return sorted(found, key=lambda item: -item.age)


def stats_of(core: QueueCore, dead_count: int) -> QueueStats:
    """See ``Queue.stats``."""
    sizes = [segment_count_and_size(reads_of(log).source)[1] for log in (core.items, core.journal.log)]
    core.count_all()
    with core.lock:
        core.check_open()
        state = core.state
        return QueueStats(
            core.pending() - len(state.unconfirmed),
            core.leasing.leased_count(core.clock.monotonic()),
            state.delayed_count,
            sum(1 for retry in state.retries.values() if retry.deliveries),
            len(state.damaged),
            state.floor,
            core.items.high_watermark,
            sum(sizes),
            dead_count,
        )


def peeked(core: QueueCore, count: int) -> list[Shown]:
    """See ``Queue.peek``."""
    shown: list[Shown] = []
    now, now_ms = core.clock.monotonic(), core.clock.now_ms()
    with core.lock:
        core.check_open()
        core.ledger.refresh()
        start = min(max(core.state.floor, core.items.start_offset), core.items.high_watermark)
    committed: IsolationLevel = "read_committed" if writer_of(core.items).producers.in_use else "read_uncommitted"
    for record in core.items.read(start, isolation_level=committed, on_corrupt="skip"):
        if len(shown) >= count:
            break
        marks = marks_of(record) if record.headers else NOTHING
        offset = record.offset
        with core.lock:
            state = core.state
            known, lease, claim = state.retries.get(offset), state.lease_of(offset), state.claims.get(offset)
            if not state.is_live(offset, marks.moved_from):
                continue
        deliveries, due_ms = known or (marks.delivery_count, marks.due_ms)
        if lease is not None:
            deliveries = lease.delivery_count
        is_leased = lease is not None and lease.deadline > now
        is_elsewhere = claim is not None and claim.expires_ms > now * 1000
        if core.state.is_spent(deliveries) and not is_leased and not is_elsewhere:
            continue  # the next get makes it a dead letter
        shown.append(
            Shown(
                offset,
                record.timestamp,
                record.key,
                record.value,
                of_user(record.headers),
                deliveries,
                due_ms if due_ms > now_ms else 0,
                is_leased,
            )
        )
    return shown


def queue_text(core: QueueCore, *, is_closed: bool) -> str:
    """See ``Queue.__repr__``: what is known without waiting. ``is_closed``: whatever ``core`` says."""
    if is_closed or core.is_closed:
        return f"Queue({core.name!r}, closed)"
    counts = _leased_and_delayed(core)
    return f"Queue({core.name!r}{f', {counts[0]} leased' if counts and counts[0] else ''})"


def queue_html(core: QueueCore, *, is_closed: bool) -> str:
    """The table of a queue in a notebook, with a map of the items' log. Nothing is read, and no lock is waited for."""
    if is_closed or core.is_closed:
        return html_table("Queue", [("name", core.name), ("state", "closed")])
    rows, pieces = [("name", core.name)], []
    try:
        source = reads_of(core.items).source
        pieces = pieces_of(source)
        rows.append(("offsets not done", f"{core.state.floor:,} to {source.ends.high_watermark:,}"))
    except KstoreError:
        pass  # closed at this moment
    counts = _leased_and_delayed(core)
    if counts is not None:
        rows += [("leased", f"{counts[0]:,}"), ("delayed", f"{counts[1]:,}")]
    if pieces:
        rows.append(("bytes", size_text(sum(piece.size for piece in pieces))))
    return html_table("Queue", rows, pieces)


def _leased_and_delayed(core: QueueCore) -> tuple[int, int] | None:
    """How many items are leased, and delayed; None if another thread has the lock."""
    with Attempt(core.lock) as is_mine:
        if not is_mine:
            return None
        return core.leasing.leased_count(core.clock.monotonic()), core.state.delayed_count
