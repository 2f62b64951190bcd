"""The background work of a store: each task goes over the logs; if one log fails the others are still done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from kstore.config import NO_LIMIT, StoreConfig
from kstore.errors import ClosedError, ConfigError, KstoreError, TopicNotFoundError
from kstore.files._locks import OwnedLock
from kstore.files.paths import (
    CHECKPOINTS,
    CLEANER_OFFSETS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    REPLICATION_OFFSETS,
    TopicPartition,
)
from kstore.log import Log, writer_of
from kstore.logs.cleaning import StoreCleaner, first_dirty
from kstore.logs.scheduler import Scheduler
from kstore.logs.topics import Topics
from kstore.rules.retain import SegmentAge, over_total, passed_by_all
from kstore.types import RetentionResult

REMOVAL_TASK = "removal"
# The tasks of a store that no other process has open.
ALONE_TASKS = frozenset({"checkpoints", "cleaner"})


class StoreTasks:
    """The background work of a store. Thread-safe: a task runs once at a time."""

    def __init__(
        self,
        topics: Topics,
        scheduler: Scheduler,
        config: StoreConfig,
        committed: Callable[[str, TopicPartition], int | None],
    ) -> None:
        """``committed``: how far a group of consumers has read a partition."""
        self._committed = committed
        self._topics = topics
        self._directory = topics.directory
        self._logs = topics.logs
        self._settings = topics.settings
        self._scheduler = scheduler
        self._config = config
        self._retaining = OwnedLock()
        self._cleaner = StoreCleaner(topics, config)

    def begin(self) -> None:
        """Starts the threads; each task runs from now on."""
        add, config = self._scheduler.add, self._config
        first = config.initial_delay_ms / 1000
        for name, run, interval_ms, lane in (
            ("retention", self.retain, config.retention_check_interval_ms, "work"),
            ("idle roll", self.roll_idle, config.retention_check_interval_ms, "work"),
            ("checkpoints", self.checkpoint, config.checkpoint_interval_ms, "work"),
            (REMOVAL_TASK, self.remove_deleted, config.checkpoint_interval_ms, "work"),
            ("producers", self.expire_producers, config.producer_check_interval_ms, "work"),
            ("cleaner", self.clean, config.cleaner_interval_ms, "cleaner"),
        ):
            if not (self._directory.shared and name in ALONE_TASKS):
                add(name, run, interval_seconds=interval_ms / 1000, delay_seconds=first, lane=lane)
        self._scheduler.start()

    def _each(self, owners: Iterable[TopicPartition], work: Callable[[TopicPartition, Log], object]) -> None:
        """Does ``work`` on each log. Raises: the first failure, after trying all."""
        failure: KstoreError | None = None
        for owner in owners:
            try:
                with self._logs.borrowed(owner) as log:
                    work(owner, log)
            except (ClosedError, TopicNotFoundError):
                pass  # it has just been closed or deleted
            except KstoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # --- retention --------------------------------------------------------------------------------------------------

    def retain(self) -> RetentionResult:
        """Deletes what each log's settings allow, then what exceeds the store's own limit."""
        with self._retaining:
            results: list[RetentionResult] = []
            try:
                self._each(self._with_retention(), lambda owner, log: results.append(self._retain(owner, log)))
            finally:
                if self._config.retention_bytes_total != NO_LIMIT:
                    results += self._retain_total(self._config.retention_bytes_total)
            return RetentionResult(
                sum(result.segment_count for result in results), sum(result.size for result in results), -1
            )

    def _retain(self, owner: TopicPartition, log: Log) -> RetentionResult:
        groups = self._settings.of(owner)[0].retention_groups
        if groups:
            writer_of(log).retention.passed_by_groups = self._passed(owner, groups)
        return log.apply_retention()

    def _passed(self, owner: TopicPartition, groups: Iterable[str]) -> int:
        return passed_by_all(groups, lambda group: self._committed(group, owner))

    def _with_retention(self) -> Iterator[TopicPartition]:
        """The logs with retention settings; and those with invalid settings: opening one reports the error."""
        for owner in self._directory.owners():
            try:
                config, _ = self._settings.of(owner)
            except TopicNotFoundError:
                continue
            except ConfigError:
                yield owner
                continue
            limits = config.retention_ms, config.retention_bytes
            if "delete" in config.cleanup_policy and limits != (NO_LIMIT, NO_LIMIT):
                yield owner

    def _retain_total(self, limit: int) -> list[RetentionResult]:
        """Deletes the oldest sealed segments of all logs until the store holds no more than ``limit`` bytes.

        Raises: the first failure, after trying all.
        """
        ages: dict[TopicPartition, list[SegmentAge]] = {}
        total = 0
        failure: KstoreError | None = None
        copied_to = {owner: writer_of(log).retention.copied_to.values() for owner, log in self._logs.open_now()}
        for owner in self._directory.owners():
            try:
                found = self._directory.segment_ages(owner)
                total += sum(age.size for age in found)
                # A topic that has lost its settings has unknown ones; it counts, and stays.
                lost = self._directory.topics[owner.topic].settings_lost
                config = self._settings.of(owner)[0]
                waited_for = [*copied_to.get(owner, ())]
                if config.retention_groups:
                    waited_for.append(self._passed(owner, config.retention_groups))
                if waited_for:
                    # The last one counts as the active one, and stays.
                    found = found[: sum(age.stop_offset <= min(waited_for) for age in found) + 1]
                if not lost and "delete" in config.cleanup_policy and not self._settings.is_kept(owner.topic):
                    ages[owner] = found
            except (KeyError, TopicNotFoundError, FileNotFoundError):
                pass  # it has just been deleted
            except KstoreError as error:
                failure = failure or error
        counts = over_total(ages, total - limit)
        results: list[RetentionResult] = []

        def delete(owner: TopicPartition, log: Log) -> None:
            gone = ages[owner][: counts[owner]]
            start_offset = log.delete_records(max(min(gone[-1].stop_offset, log.high_watermark), log.start_offset))
            results.append(RetentionResult(len(gone), sum(age.size for age in gone), start_offset))

        self._each(counts, delete)
        if failure is not None:
            raise failure
        return results

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Writes the changes of the four checkpoints."""
        with self._topics.changing():  # no topic may be deleted during this
            self._checkpoint()

    def _checkpoint(self) -> None:
        known = self._logs.offsets()
        changes: dict[str, dict[TopicPartition, int | None]] = {name: {} for name in CHECKPOINTS}
        for owner, offsets in known.items():
            changes[RECOVERY_POINTS][owner] = offsets.recovery_point
            changes[REPLICATION_OFFSETS][owner] = offsets.high_watermark
            begins_inside = offsets.start_offset > offsets.first_base_offset
            changes[LOG_START_OFFSETS][owner] = offsets.start_offset if begins_inside else None
            changes[CLEANER_OFFSETS][owner] = first_dirty(self._directory, owner)
        self._directory.write_checkpoints(changes)
        self._logs.noted(known)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def roll_idle(self) -> None:
        """Rolls active segments without an append for ``segment_ms``."""
        self._each([owner for owner, _ in self._logs.open_now()], lambda _, log: writer_of(log).roll_if_idle())

    def remove_deleted(self) -> None:
        """Continues interrupted deletions of topics, then removes the files of segments and topics that were deleted
        long enough ago."""
        try:
            if not self._directory.shared:
                self._topics.finish_deletions()
        finally:
            try:
                self._each(
                    [owner for owner, _ in self._logs.open_now()], lambda _, log: writer_of(log).remove_deleted()
                )
            finally:
                self._directory.remove_deleted()

    def remove_after(self, delay_seconds: float) -> None:
        """Schedules the removal of deleted files."""
        self._scheduler.wake(REMOVAL_TASK, delay_seconds=delay_seconds)

    def expire_producers(self) -> None:
        """Forgets producers that have written nothing for ``producer_id_expiration_ms``."""

        def expire(_: TopicPartition, log: Log) -> None:
            if writer_of(log).producers.in_use:
                writer_of(log).expire_producers()

        self._each([owner for owner, _ in self._logs.open_now()], expire)

    def clean(self) -> None:
        """Compacts the logs that are due."""
        self._cleaner.run()
