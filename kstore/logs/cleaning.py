"""The cleaner of a store: compacts the logs that are due, the one with the largest share of dirt first.

When a pass ends, the store's ``cleaner-offset-checkpoint`` records what it has cleaned, so that a broker that takes
over the store continues from there. A log whose compaction fails is left alone for a while, and the others continue.
(Kafka: LogCleanerManager. Its cleaner also runs the retention of compacted logs, so that the two never meet in one;
here a pass ignores what is deleted.)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from kstore.compaction.blocks import CompactionReport
from kstore.compaction.cleaner import compact, dirt_of
from kstore.config import StoreConfig
from kstore.errors import ClosedError, KstoreError, TopicNotFoundError
from kstore.files.paths import CLEANER_OFFSETS, TopicPartition
from kstore.log import Log, writer_of
from kstore.logs.directory import LogDirectory
from kstore.logs.topics import Topics
from kstore.rules.compact import Dirt, filthiest
from kstore.state.compaction_state import KSTORE_COMPACTION, read_compaction_state

# A log that is not open becomes dirty only with time: it is checked this rarely.
CLOSED_LOG_SECONDS = 3600.0
# How long a log is left alone after a failed compaction; twice as long each time, up to the maximum.
RETRY_SECONDS = 60.0
RETRY_SECONDS_MAX = 3600.0


class StoreCleaner:
    """Not thread-safe: only one task runs it. A pass ends when its log is closed."""

    def __init__(self, topics: Topics, config: StoreConfig) -> None:
        self._directory = topics.directory
        self._logs = topics.logs
        self._clock = topics.clock
        self._settings = topics.settings
        self._map_bytes = config.cleaner_map_bytes
        rate = config.cleaner_bytes_per_second
        self._bytes_per_second = rate if rate > 0 else None
        self._looked_at: dict[TopicPartition, float] = {}
        # By log: when it is retried, and how long it was left alone.
        self._failed: dict[TopicPartition, tuple[float, float]] = {}

    def run(self) -> None:
        """Compacts all logs that are due. Raises: the first failure, after trying all."""
        failures: list[KstoreError] = []
        dirt: dict[TopicPartition, Dirt] = {}

        def measure(owner: TopicPartition, log: Log) -> None:
            self._looked_at[owner] = self._clock.monotonic()
            found, is_due = dirt_of(writer_of(log))
            if is_due:
                dirt[owner] = found

        for owner in self._candidates():
            self._try(owner, measure, failures)
        while dirt:
            owner = filthiest(dirt)
            del dirt[owner]

            def clean(owner: TopicPartition, log: Log) -> None:
                report = self._clean(owner, log)
                if report.map_full:
                    measure(owner, log)  # it may still have the largest share of dirt

            self._try(owner, clean, failures)
        if failures:
            raise failures[0]

    def _candidates(self) -> list[TopicPartition]:
        now = self._clock.monotonic()
        owners = self._directory.owners()
        there = set(owners)
        self._looked_at = {owner: when for owner, when in self._looked_at.items() if owner in there}
        self._failed = {owner: until for owner, until in self._failed.items() if owner in there}
        found = []
        for owner in owners:
            looked_at = self._looked_at.get(owner)
            if not self._logs.is_open(owner) and looked_at is not None and now - looked_at < CLOSED_LOG_SECONDS:
                continue
            if owner in self._failed and now < self._failed[owner][0]:
                continue
            with suppress(TopicNotFoundError):
                if self._settings.of(owner)[0].is_compacted:
                    found.append(owner)
        return found

    def _try(
        self, owner: TopicPartition, work: Callable[[TopicPartition, Log], object], failures: list[KstoreError]
    ) -> None:
        try:
            with self._logs.borrowed(owner) as log:
                work(owner, log)
        except (ClosedError, TopicNotFoundError):
            pass  # it has just been closed or deleted
        except KstoreError as error:
            _, waited = self._failed.get(owner, (0.0, RETRY_SECONDS / 2))
            seconds = min(2 * waited, RETRY_SECONDS_MAX)
            self._failed[owner] = (self._clock.monotonic() + seconds, seconds)
            failures.append(error)

    def _clean(self, owner: TopicPartition, log: Log) -> CompactionReport:
        report = compact(
            writer_of(log), if_due=True, map_bytes=self._map_bytes, bytes_per_second=self._bytes_per_second
        )
        self._failed.pop(owner, None)
        if report.stop_offset > report.first_dirty and self._directory.numbers(owner.topic):
            self._directory.write_checkpoints({CLEANER_OFFSETS: {owner: first_dirty(self._directory, owner)}})
        return report


def first_dirty(directory: LogDirectory, owner: TopicPartition) -> int | None:
    """Where the last pass over a log ended, for the checkpoint; None if kstore has never compacted it."""
    state = read_compaction_state(directory.fs, directory.partition_path(owner) / KSTORE_COMPACTION)
    return None if state is None else state.first_dirty
