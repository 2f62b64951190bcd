"""Keeps a queue small: removes done items, copies items that block this, and puts items that always fail aside.

Space is freed a segment at a time, from the oldest. If the oldest segment holds a few items that are not done and will
not be soon, they are copied to the end of the log; one record in the journal then says that they are done and their
copies count. Until then a copy does not count, so no crash duplicates an item.
"""

from __future__ import annotations

from collections.abc import Callable

from kstore.errors import ClosedError, KstoreError
from kstore.files._locks import Attempt, OwnedLock
from kstore.log import reads_of
from kstore.queue.core import QueueCore
from kstore.queue.events import DONE
from kstore.queue.items import Marks, marks_of, with_marks
from kstore.queue.journal import SEGMENT_BYTES, done_values
from kstore.queue.leases import Retry
from kstore.record._codec import Record
from kstore.types import OFFSET_MAX

# A segment is copied from if at most this share of its items is not done.
MOVED_SHARE_MAX = 0.25
# And at most this many items at once.
MOVED_COUNT_MAX = 20_000
# How long copied items are kept from others; copying takes a fraction of it.
MOVE_SECONDS = 60.0
# While the oldest segment is the active one, it is checked again after at most this many items.
LOOK_COUNT = 1000

# Stores a dead letter, and its number of deliveries, durably.
PutAside = Callable[[Record, int], None]


class QueueSpace:
    """Keeps a queue small. One thread at a time does this; the others continue."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._at_work = OwnedLock()
        self._burying = OwnedLock()
        # Nothing can be done until the floor, or the count of done items above it, reaches this. Under the core's lock.
        self._floor_due = 0
        self._done_due = 0

    @property
    def is_due(self) -> bool:
        """Whether ``tidy`` may have work to do. Needs the core's lock."""
        state = self._core.state
        return (
            state.floor >= self._floor_due
            or state.done_count >= self._done_due > 0
            or self._core.journal.size >= SEGMENT_BYTES
        )

    def tidy(self) -> None:
        """Does what is due; nothing if another thread is doing it. Failures are logged and retried later."""
        with Attempt(self._at_work) as is_mine:
            if is_mine:
                try:
                    self._tidy()
                except ClosedError:
                    pass
                except KstoreError as error:
                    self._core.report("its space could not be freed", error)

    def _tidy(self) -> None:
        core = self._core
        items = core.items
        with core.lock:
            floor = min(core.state.floor, items.high_watermark)
        while True:
            found = reads_of(items).segment_for(items.start_offset)
            stop = OFFSET_MAX if found is None else found[1]
            if stop <= floor:
                # Removed items must not be needed again: the events that finish them, and name copies, must be on disk
                # first.
                core.journal.flush()
                items.delete_records(floor)
                continue
            if stop == OFFSET_MAX or not self._move(items.start_offset, stop):
                break
            with core.lock:
                floor = min(core.state.floor, items.high_watermark)
        if core.journal.size >= SEGMENT_BYTES:
            self.rewrite()
        with core.lock:
            state = core.state
            if stop == OFFSET_MAX:
                # It may be full soon; the number of its items says how soon.
                step = min(LOOK_COUNT, (items.high_watermark - items.start_offset) // 8 + 1)
                self._floor_due, self._done_due = state.floor + step, state.done_count + step
            else:
                count = stop - items.start_offset
                self._floor_due, self._done_due = stop, max(state.done_count * 5 // 4, count // 2, 1)

    def rewrite(self) -> None:
        """Rewrites the journal. Raises: DiskFullError, StorageError."""
        core = self._core
        with core.lock:
            core.ledger.refresh()
            values, first_needed = core.ledger.snapshot()
        core.journal.rewrite(values, first_needed)

    # --- items that hold others back ----------------------------------------------------------------------------------

    def _move(self, start: int, stop: int) -> bool:
        """Copies the remaining items of a segment to the end of the log; False if that is not worthwhile, or not
        possible now."""
        core, state = self._core, self._core.state
        token, end = object(), 0
        records: list[Record] = []
        offsets: list[int] = []
        try:
            with core.lock:
                # A segment with many such items counts too, if enough items after it are done.
                count = max(stop - start, state.done_count)
                count_max = min(int(count * MOVED_SHARE_MAX), MOVED_COUNT_MAX)
                found = state.movable(stop, count_max)
                if not found:
                    return False
                owner = core.leasing.own_all(found, MOVE_SECONDS)
                if owner is None:
                    core.state.put_back((), found)
                    return False
                began = core.clock.monotonic()
                records = [record for offset in found if (record := core.read_one(offset)) is not None]
                retries = [state.retries.get(record.offset) or _of(record) for record in records]
                offsets = [record.offset for record in records]
                core.ledger.begin_write(token)
                state.hold(offsets)
            if records:
                end = self._copy(records, retries, began, owner)
        finally:
            try:
                self._end_move(token, end, offsets)
            except BaseException:
                self._end_move(token, end, offsets)
                raise
        return bool(end) or not records

    def _end_move(self, token: object, end: int, offsets: list[int]) -> None:
        """Lets go of the items. An interrupt may end this anywhere; a second call does the rest."""
        core, state = self._core, self._core.state
        with core.lock:
            if not core.ledger.is_writing(token):
                return
            try:
                # After a late move some stay where they are, even if the journal records it.
                state.let_go(offsets)
            except BaseException:
                state.lose_order()
                raise
            core.wake_getters(len(offsets))
            core.ledger.end_write(token, end)

    def _copy(self, records: list[Record], retries: list[Retry], began: float, owner: int) -> int:
        """Returns the journal's end afterwards; 0 if it took so long that another process may have taken the items."""
        core = self._core
        marked = [
            with_marks(record.header_bytes, Marks(retry.due_ms, retry.deliveries, record.offset))
            for record, retry in zip(records, retries, strict=True)
        ]
        first = core.items.append_many(
            [record.value for record in records],
            keys=[record.key for record in records],
            timestamps=[record.timestamp for record in records],
            headers=marked,
        ).first_offset
        if not core.is_sync:
            core.items.flush()  # the journal must not reach the disk first
        if core.clock.monotonic() - began > MOVE_SECONDS / 2:
            return 0
        rows = [(record.offset, first + at) for at, record in enumerate(records)]
        return core.leasing.write_moved(rows, owner)

    # --- dead letters -----------------------------------------------------------------------------------------------

    def bury(self, put_aside: PutAside) -> None:
        """Moves the items that were delivered too many times to ``put_aside``, which keeps dead letters.

        A crash in between may leave an item in both. Failures are logged, and retried.
        """
        core, state = self._core, self._core.state
        with Attempt(self._burying) as is_mine:
            while is_mine:
                with core.lock:
                    if not state.dead:
                        return
                    offset = state.dead[0]
                    core.ledger.refresh()
                    if state.is_done(offset) or core.leasing.own_all((offset,), MOVE_SECONDS) is None:
                        state.busy.discard(offset)
                        # Another process is doing it; if that dies, the item comes back here.
                        state.put_back((), (offset,))
                        state.dead.popleft()  # last: an interrupt loses no item
                        continue
                    record = core.read_one(offset)
                    retry = state.retries.get(offset, Retry(0, 0))
                if record is not None and not self._bury_one(record, retry.deliveries, put_aside):
                    return
                with core.lock:
                    state.busy.discard(offset)
                    state.dead.popleft()

    def _bury_one(self, record: Record, delivery_count: int, put_aside: PutAside) -> bool:
        core = self._core
        try:
            put_aside(record, delivery_count)
            token, end = object(), 0
            try:
                with core.lock:
                    core.ledger.begin_write(token)
                end = core.journal.append_all(done_values(DONE, [record.offset]))
            finally:
                try:
                    core.end_write(token, end, core.state.finish, [record.offset])
                except BaseException:
                    core.end_write(token, end, core.state.finish, [record.offset])
                    raise
        except KstoreError as error:
            core.report("a dead letter could not be put aside", error)
            return False
        return True

    def close(self) -> None:
        """Leaves a short journal behind, if possible."""
        with self._at_work:
            if self._core.journal.size or self._core.state.leased_count:
                try:
                    with self._core.lock:
                        self._core.leasing.give_up()
                    self.rewrite()
                except KstoreError as error:
                    self._core.report("its journal could not be rewritten", error)


def _of(record: Record) -> Retry:
    marks = marks_of(record)
    return Retry(marks.delivery_count, marks.due_ms)
