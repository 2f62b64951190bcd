"""Waits until one of several logs grows, or until a call: one event covers everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kstore.clock import Clock
from kstore.consumer.fetching import PartitionReader
from kstore.engine.change.growth import NOTIFIED_POLL_SECONDS, POLL_SECONDS_MAX, POLL_SECONDS_MIN
from kstore.engine.writer import LogWriter
from kstore.errors import KstoreError
from kstore.files.threads import Bell
from kstore.files.watch import DirectoryWatch
from kstore.log import Log, reads_of, writer_of

# A watch may fire while others are being armed, and is then armed again; at most this many times.
ARM_TRIES_MAX = 4


class LogWaiter:
    """Wakes one consumer. Any thread and signal handlers may call ``wake``; the rest is for the consumer's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = Bell()
        # Separate from the event, which a watch may clear when it is armed.
        self._is_woken = False
        # What signals growth of each log: its writer in this process, or the system.
        self._heard: dict[Log, tuple[LogWriter | None, DirectoryWatch | None]] = {}
        # Whether each of them signals its growth: False after ``listen`` was interrupted.
        self._is_whole = True
        # The logs that had no records at the last look, and where their readers were; until ``_quiet_until``, or a
        # signal, none are expected.
        self._quiet: list[PartitionReader] | None = None
        self._quiet_at: list[int | None] = []
        self._quiet_until = 0.0
        # Whether the writers of all of them are in this process, so that none can grow without a signal.
        self._hears_all = False

    def wake(self) -> None:
        """Ends the wait, or the next one."""
        if not self._is_woken:
            self._is_woken = True
            self._event.set()

    def listen(self, logs: Iterable[Log]) -> None:
        """Listens to exactly these logs from now on."""
        self._quiet = None
        wanted = set(logs)
        kept = wanted if self._is_whole else set()
        self._is_whole = False
        for log in self._heard.keys() - kept:
            writer, watch = self._heard[log]
            if watch is not None:
                watch.close()
            if writer is not None:
                writer.unwatch_growth(self.wake)
            self._heard.pop(log)
        for log in wanted - self._heard.keys():
            writer = None if log.read_only else writer_of(log)
            is_foreign = writer is None or writer.is_shared
            self._heard[log] = writer, DirectoryWatch(log.path.absolute(), self._event) if is_foreign else None
            if writer is not None:
                writer.watch_growth(self.wake)
        self._hears_all = all(watch is None for _, watch in self._heard.values())
        self._is_whole = True

    def wait(self, readers: Iterable[PartitionReader], seconds: float) -> bool:
        """Returns when one of ``readers`` has something to read, at a call of ``wake``, or after ``seconds``; whether
        there may be something to read."""
        wanted = list(readers)
        deadline = self._clock.monotonic() + seconds
        pause = POLL_SECONDS_MIN
        if wanted == self._quiet and not self._is_woken:
            # A caller that waits in short turns must not look at a thousand logs in each.
            quiet_seconds = self._quiet_until - self._clock.monotonic()
            if quiet_seconds > 0 and not self._event.wait(min(seconds, quiet_seconds)) and seconds < quiet_seconds:
                return False
        self._quiet = None
        while True:
            # The following look covers everything that was signalled before.
            self._event.clear()
            is_notified = self._arm()
            if self._is_woken or any(reader.has_more() for reader in wanted):
                self._is_woken = False
                return True
            is_notified = is_notified and not self._is_lagging()
            now = self._clock.monotonic()
            if is_notified:
                self._note_quiet(wanted, now)
            if deadline <= now:
                return False
            longest = NOTIFIED_POLL_SECONDS if is_notified else pause
            pause = min(pause * 2, POLL_SECONDS_MAX)
            self._event.wait(min(deadline - now, longest))

    def is_quiet(self, readers: Sequence[PartitionReader]) -> bool:
        """Whether a look at ``readers``, those of all its logs that may be read, would find nothing: none had anything
        at the last look, none has moved since, and no writer has signalled."""
        return (
            self._quiet is not None
            and self._hears_all
            and self._is_whole
            and not (self._is_woken or self._event.is_set())
            and self._clock.monotonic() < self._quiet_until
            and readers == self._quiet
            and [reader.position for reader in readers] == self._quiet_at
        )

    def settle(self, readers: Sequence[PartitionReader]) -> None:
        """Looks once more, and notes if none of ``readers`` has anything to read, for ``is_quiet``."""
        self._quiet = None
        if not self._hears_all or not self._is_whole:
            return
        # The following look covers everything that was signalled before.
        self._event.clear()
        self._is_woken = False
        try:
            has_more = any(reader.has_more() for reader in readers)
        except KstoreError:
            return  # the next look reports it
        if not (has_more or self._is_woken):
            self._note_quiet(list(readers), self._clock.monotonic())

    def _note_quiet(self, readers: list[PartitionReader], now: float) -> None:
        self._quiet_at = [reader.position for reader in readers]
        self._quiet, self._quiet_until = readers, now + NOTIFIED_POLL_SECONDS

    def _arm(self) -> bool:
        """Arms the signals for writes of other processes; False if that is impossible for at least one log."""
        watches = [watch for _, watch in self._heard.values() if watch is not None]
        for _ in range(ARM_TRIES_MAX):
            if not all(watch.arm() for watch in watches):
                return False
            if all(watch.is_armed for watch in watches):
                return True
        return False

    def _is_lagging(self) -> bool:
        """Whether some records are not known to be durable yet: no signal comes when they are."""
        bounds = (
            reads_of(log).read_bound(committed=False) for log, (_, watch) in self._heard.items() if watch is not None
        )
        return any(bound.end_offset > bound.high_watermark for bound in bounds)

    def close(self) -> None:
        self.listen(())
