"""The coordinator of a store: created on first use, or at the open if transactions may be unfinished."""

from __future__ import annotations

import logging

from kstore.errors import KstoreError
from kstore.files._locks import OwnedLock
from kstore.log import writer_of
from kstore.logs.scheduler import Scheduler
from kstore.logs.topics import Topics
from kstore.rules.internal_topics import TRANSACTION_STATE
from kstore.transactions.coordinator import TransactionCoordinator
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.producer_ids import ProducerIds, highest_in_snapshots

logger = logging.getLogger(__name__)

TRANSACTIONS_TASK = "transactions"
# Kafka: transaction.abort.timed.out.transaction.cleanup.interval.ms.
TASK_SECONDS = 10.0


class StoreCoordinator:
    """Creates the one coordinator of a store. Thread-safe."""

    def __init__(self, topics: Topics, scheduler: Scheduler) -> None:
        self._topics = topics
        self._directory = topics.directory
        self._scheduler = scheduler
        self._lock = OwnedLock()
        self._made: TransactionCoordinator | None = None
        self._is_planned = False
        # Used by callers that need only the groups.
        self.offsets: GroupOffsets = GroupOffsets(topics, topics.clock)

    def get(self) -> TransactionCoordinator:
        """The coordinator, after it has finished what the last one left. Raises: ClosedError, StorageError."""
        self._topics.life.check()
        if self._made is not None:
            return self._made
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def begin(self) -> None:
        """At the open: finishes what was left unfinished. A failure is retried at the first use.

        A broker's own transactions are left alone until the coordinator is used.
        """
        name = TRANSACTION_STATE.name
        if self._directory.shared or not self._directory.is_used(name) or not self._topics.count(name):
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
            self._topics,
            ProducerIds(
                directory.fs, directory.path, directory.replace_file, self._highest_producer_id, directory.turn
            ),
            self.offsets,
        )
        # Transactions need a store that is not shared.
        if not directory.read_only and not directory.shared:
            made.recover()
            if not self._is_planned:
                self._scheduler.add(TRANSACTIONS_TASK, made.run_due, interval_seconds=TASK_SECONDS)
                self._is_planned = True
        return made

    def _highest_producer_id(self) -> int:
        directory = self._directory
        highest = highest_in_snapshots(directory.fs, map(directory.partition_path, directory.owners()))
        for _, log in self._topics.logs.open_now():
            # Logs without producers are not read.
            if writer_of(log).producers.in_use:
                highest = max([highest, *(info.producer_id for info in log.producers())])
        return highest
