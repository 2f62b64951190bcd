"""``Commits``: writes the offsets from which a group continues, when asked to and when an automatic commit is due."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

from kstore.clock import Clock
from kstore.consumer.config import ConsumerConfig
from kstore.consumer.consumer_metrics import ConsumerCounters
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.offsets import Offsets
from kstore.consumer.place import GroupPlace
from kstore.consumer.reading import Positions, Reading
from kstore.consumer.wanted import topic_partition
from kstore.errors import ConfigError, KstoreError
from kstore.files.paths import TopicPartition
from kstore.transactions.group_records import OffsetAndMetadata

logger = logging.getLogger(__name__)


class Commits:
    """A consumer's commits. For its thread."""

    def __init__(
        self,
        groups: StoreGroups,
        place: GroupPlace,
        reading: Reading,
        positions: Positions,
        config: ConsumerConfig,
        counters: ConsumerCounters,
        clock: Clock,
        *,
        client_id: str,
    ) -> None:
        self._groups = groups
        self._place = place
        self._reading = reading
        self._positions = positions
        self._counters = counters
        self._clock = clock
        self._client_id = client_id
        self._is_automatic = config.enable_auto_commit
        self._interval_seconds = config.auto_commit_interval_ms / 1000
        self._due_at = clock.monotonic() + self._interval_seconds

    def commit(
        self, offsets: Offsets | None, only: Collection[TopicPartition] | None = None, producer: Any = None
    ) -> None:
        """Commits ``offsets``, or without them the positions that have changed, of the partitions ``only``.

        Raises: see ``Consumer.commit``.
        """
        group = self._place.required_group()
        if offsets is None:
            offsets = self._changed(only)
        elif not isinstance(offsets, Mapping):
            raise ConfigError(f"offsets are {offsets!r:.80}, expected a mapping of partitions to offsets")
        else:
            offsets = {topic_partition(owner): offset for owner, offset in offsets.items()}
        if not offsets:
            return
        counters, started = self._counters, self._clock.monotonic()
        counters.commits += 1
        try:
            with self._place.fenced(offsets):
                if producer is not None:
                    producer.send_offsets(offsets, group)
                    return
                self._groups.commit(group, offsets)
        except BaseException:
            counters.commit_errors += 1
            raise
        finally:
            counters.commit_seconds += self._clock.monotonic() - started
        for owner, committed in offsets.items():
            reader = self._reading.readers.get(owner)
            if reader is not None:
                reader.committed = committed if isinstance(committed, int) else committed.offset

    def _changed(self, only: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        """The positions that are not committed yet."""
        positions = {
            owner: offset for owner, offset in self._positions.known().items() if only is None or owner in only
        }
        return {
            owner: offset for owner, offset in positions.items() if self._reading.readers[owner].committed != offset
        }

    def commit_if_due(self, now: float) -> None:
        """Makes the automatic commit, once per interval; ``now`` is monotonic time."""
        if self._is_automatic and now >= self._due_at:
            self.auto_commit()

    def auto_commit(self, only: Collection[TopicPartition] | None = None) -> None:
        """Commits at once, if commits are automatic. A failure is logged."""
        if not self._is_automatic:
            return
        self._due_at = self._clock.monotonic() + self._interval_seconds
        try:
            self.commit(None, only)
        except KstoreError as error:
            # The next commit may succeed; uncommitted records are read again.
            logger.warning("%s: positions cannot be committed: %s", self._client_id, error)

    def committed(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets that ``group`` has committed in ``partitions``. Raises: StorageError."""
        found = self._groups.offsets.committed(group)
        return {owner: found[owner] for owner in partitions if owner in found}
