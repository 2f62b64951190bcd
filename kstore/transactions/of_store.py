"""The coordinator of a store: created on first use, or at the open if transactions may be unfinished."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kstore.clock import Clock
from kstore.errors import KstoreError, TopicExistsError
from kstore.files.paths import TopicPartition
from kstore.logs.directory import LogDirectory
from kstore.logs.open_logs import OpenLogs
from kstore.logs.scheduler import Scheduler
from kstore.transactions.coordinator import TransactionCoordinator
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.placement import TRANSACTION_STATE
from kstore.transactions.producer_ids import ProducerIds, highest_in_snapshots

__all__ = ["TRANSACTIONS_TASK", "StoreCoordinator"]

logger = logging.getLogger(__name__)

TRANSACTIONS_TASK = "transactions"
# Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms.
TASK_SECONDS = 10.0


class StoreCoordinator:
    """Creates the one coordinator of a store. Thread-safe."""

    def __init__(
        self,
        directory: LogDirectory,
        logs: OpenLogs,
        clock: Clock,
        scheduler: Scheduler,
        create_topic: Callable[..., None],
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._clock = clock
        self._scheduler = scheduler
        self._create_topic = create_topic
        self._lock = threading.Lock()
        self._made: TransactionCoordinator | None = None
        self._is_planned = False
        # Used by callers that need only the groups.
        self.offsets = GroupOffsets(logs.get, self._ensure_topic, self._partition_count, clock)

    def get(self) -> TransactionCoordinator:
        """The coordinator, after finishing what the last one left. Raises: StorageError."""
        if self._made is not None:
            return self._made
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def begin(self) -> None:
        """At the open: finishes what was left unfinished here. What fails is finished at the first use.

        A broker's own transactions are left alone until the coordinator is used.
        """
        name = TRANSACTION_STATE.name
        if self._directory.shared or not self._directory.is_used(name) or not self._partition_count(name):
            return
        try:
            self.get()
        except KstoreError as error:
            logger.warning("%s: transactions cannot be finished: %s", self._directory.path, error)

    def close(self) -> None:
        """Ends open transactions. Raises: the first failure."""
        if self._made is not None and not self._directory.read_only and not self._directory.shared:
            self._made.close()

    def _make(self) -> TransactionCoordinator:
        directory = self._directory
        made = TransactionCoordinator(
            self._logs.get,
            self._ensure_topic,
            self._partition_count,
            ProducerIds(
                directory.fs, directory.path, directory.replace_file, self._highest_producer_id, directory.turn
            ),
            self._clock,
            self.offsets,
        )
        # Transactions need a store that is not shared.
        if not directory.read_only and not directory.shared:
            made.recover()
            if not self._is_planned:
                self._scheduler.add(TRANSACTIONS_TASK, made.run_due, interval_seconds=TASK_SECONDS)
                self._is_planned = True
        return made

    def _ensure_topic(self, name: str, partitions: int, /, **settings: object) -> int:
        with self._lock:
            if not self._partition_count(name):
                try:
                    self._create_topic(name, partitions, **settings)
                except TopicExistsError:
                    if not self._partition_count(name):  # another process was quicker
                        raise
        return self._partition_count(name)

    def _partition_count(self, name: str) -> int:
        directory = self._directory
        if not directory.numbers(name) and (directory.read_only or directory.shared):
            directory.look()  # another process may have created it since
        return directory.topics[name].partitions if directory.numbers(name) else 0

    def _highest_producer_id(self) -> int:
        directory = self._directory
        owners = [TopicPartition(name, number) for name in directory.topics for number in directory.numbers(name)]
        highest = highest_in_snapshots(directory.fs, map(directory.partition_path, owners))
        for _, log in self._logs.open_now():
            # Logs without producers are not read.
            if log.writer.producers.in_use:
                highest = max([highest, *(info.producer_id for info in log.producers())])
        return highest
