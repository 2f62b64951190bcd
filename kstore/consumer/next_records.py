"""``NextRecords``: finds what a consumer returns next, and waits for it; other due work comes before each look."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kstore.clock import Clock
from kstore.consumer.commits import Commits
from kstore.consumer.config import ConsumerConfig
from kstore.consumer.consumer_metrics import ConsumerCounters
from kstore.consumer.deserializers import Deserializers
from kstore.consumer.pieces import LentItems, ListPiece
from kstore.consumer.place import GroupPlace
from kstore.consumer.reading import UNSTABLE_WAIT_SECONDS, Positions, Reading
from kstore.consumer.sharing import Sharing
from kstore.consumer.use import SoleUse
from kstore.consumer.waiting import LogWaiter
from kstore.errors import ClosedError, OffsetOutOfRangeError
from kstore.files._locks import Attempt
from kstore.files.paths import TopicPartition
from kstore.record._codec import ConsumerRecord
from kstore.setting_rules import UNLIMITED
from kstore.types import INT32_MAX

# The longest sleep of a consumer before it checks whether anything else is due.
WAIT_SECONDS_MAX = 60.0

Found = TypeVar("Found")
Polled = dict[TopicPartition, list[ConsumerRecord]]


class NextRecords:
    """For the consumer's thread; all but ``piece_after`` and ``piece_at_once`` inside its ``SoleUse``."""

    def __init__(
        self,
        use: SoleUse,
        reading: Reading,
        positions: Positions,
        place: GroupPlace,
        commits: Commits,
        sharing: Sharing,
        waiter: LogWaiter,
        deserializers: Deserializers,
        config: ConsumerConfig,
        counters: ConsumerCounters,
        clock: Clock,
    ) -> None:
        self._use = use
        self._reading = reading
        self._positions = positions
        self._place = place
        self._commits = commits
        self._sharing = sharing
        self._waiter = waiter
        self._deserializers = deserializers
        self._counters = counters
        self._clock = clock
        self._is_plain = deserializers.is_plain
        self._max_poll_records = config.max_poll_records
        timeout_ms = config.iteration_timeout_ms
        self._iteration_seconds = None if timeout_ms == UNLIMITED else timeout_ms / 1000

    # --- when -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Does what is due before a look for records.

        Raises: WakeupError; ConsumerStateError if there is no subscription or assignment; StorageError.
        """
        self._use.check_woken()
        self._sharing.check()
        now = self._counters.asked_at = self._clock.monotonic()
        self._commits.commit_if_due(now)
        self._sharing.share()

    @property
    def wait_seconds(self) -> float:
        """How many seconds until other work than a look for records is due."""
        seconds = min(self._sharing.wait_seconds, WAIT_SECONDS_MAX)
        if any(reader.position is None and not reader.paused for reader in self._reading.readers.values()):
            return min(seconds, UNSTABLE_WAIT_SECONDS)
        return seconds

    def awaited(self, look: Callable[[], Found], timeout: float | None) -> Found | None:
        """The result of ``look``, once it finds something; None after ``timeout`` seconds."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        self._positions.recall()
        may_find: bool | None = None
        while True:
            self.tick()
            try:
                if may_find is None:
                    # A caller that polls without waiting must not look at a thousand logs each time.
                    may_find = not self._waiter.is_quiet(self._reading.ready())
                found = look() if may_find else None
            except ClosedError:
                # A topic was deleted after the tick: the next one handles that.
                if self._use.life.closed or not self._sharing.has_news:
                    raise
                continue
            if found:
                return found
            rest = WAIT_SECONDS_MAX if deadline is None else deadline - self._clock.monotonic()
            if rest <= 0:
                if may_find:
                    self._waiter.settle(self._reading.ready())
                return None
            may_find = self._waiter.wait(self._reading.ready(), min(rest, self.wait_seconds))

    # --- for a poll -------------------------------------------------------------------------------------------------

    def polled(self, count: int) -> Polled:
        """The next records, by partition, at most ``count``; the caller clears ``Reading.before``."""
        found = self._reading.records(count)
        return self._deserialized(found) if found and not self._is_plain else found

    def _deserialized(self, found: Polled) -> Polled:
        made: Polled = {}
        failure: Exception | None = None
        for owner, records in found.items():
            reader = self._reading.readers[owner]
            done, wrong = self._deserializers.records(owner, records)
            if wrong is not None:
                reader.seek(wrong.offset)
                failure = failure or wrong
            if done:
                made[owner] = done
        if failure is not None and not made:
            raise failure
        return made

    # --- for an iteration -------------------------------------------------------------------------------------------

    def records(self) -> LentItems | None:
        """The next records of one partition, which are handed out from now on."""
        self._positions.piece = found = self._piece_of_records()
        self._reading.before = {}
        return found

    def values(self) -> LentItems | None:
        """The next values of one partition, which are handed out from now on."""
        self._positions.piece = found = self._reading.values(self._piece_count)
        self._reading.before = {}
        return found

    def _piece_of_records(self) -> LentItems | None:
        if self._is_plain:
            return self._reading.lent(self._piece_count)
        taken = self._reading.piece(self._piece_count)
        if taken is None:
            return None
        reader, records = taken
        made, failure = self._deserializers.records(reader.owner, records)
        if failure is not None:
            reader.seek(failure.offset)
            if not made:
                raise failure
        return ListPiece(reader, made)

    @property
    def _piece_count(self) -> int:
        """How many records an iteration hands out before it checks for other work; at most one batch."""
        # A member of a group must request more in time.
        return INT32_MAX if self._place.membership is None else self._max_poll_records

    def piece_after(self, before: LentItems | None, look: Callable[[], LentItems | None]) -> LentItems | None:
        """Waits for what follows ``before``, all of which was handed out; None when the iteration's time is over."""
        with self._use.alone():
            if self._positions.piece is not None and self._positions.piece is before:
                self._positions.piece = None
                before.reader.settle()
            return self.awaited(look, self._iteration_seconds)

    def piece_at_once(self, before: LentItems, until: float) -> LentItems | None:
        """The same partition's next piece after ``before``; None if only ``piece_after`` can find it."""
        reader, positions = before.reader, self._positions
        if positions.piece is not before or self._use.is_woken or reader.paused or self._clock.monotonic() >= until:
            return None
        with Attempt(self._use.lock) as is_mine:
            if not is_mine:
                return None
            try:
                self._reading.note(reader)
                following = before.following(self._piece_count)
                if following is not None:
                    positions.piece = following
                self._reading.before = {}
                return following
            except OffsetOutOfRangeError:
                reader.stop()
                return None
