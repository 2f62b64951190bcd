"""A store as its consumers see it: topics, logs, what groups have committed, and where their members meet."""

from __future__ import annotations

import errno
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

from kstore.clock import Clock
from kstore.consumer.consumer import Consumer
from kstore.consumer.groups import GroupBox, MemoryGroup
from kstore.consumer.offsets import SetBack, set_back
from kstore.errors import KstoreError, ReadOnlyError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.logs.directory import LogDirectory
from kstore.logs.open_logs import OpenLogs
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.transactions.placement import OFFSETS, is_internal

__all__ = ["StoreConsumers", "forget_offsets", "set_back_offsets"]

AnyConsumer = TypeVar("AnyConsumer", bound=Consumer)

logger = logging.getLogger(__name__)

READ_ONLY = (
    "the store is open for reading: what a group commits is written, so its members need a store that writes, beside "
    "others with shared=True; without a group, or with partitions assigned by hand, a consumer reads here"
)


class TopicNews(Protocol):
    def watch(self, changed: Callable[[str], None]) -> None: ...
    def unwatch(self, changed: Callable[[str], None]) -> None: ...


class StoreConsumers:
    """What a store is to its consumers (``consumer.host.ConsumerHost``). Thread-safe.

    ``group_files`` gives what the members of a group meet in where other processes have the store too: made, or only
    where it is there.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        read_only: bool,
        shared: bool,
        group_files: Callable[[str, bool], GroupBox | None],
        topics: Callable[[], list[str]],
        partitions: Callable[[str], list[int]],
        log: Callable[[str, int], Log],
        offsets: Callable[[], GroupOffsets],
        news: TopicNews,
    ) -> None:
        self.path = path
        self.clock = clock
        self.read_only = read_only
        self._shared = shared
        self._group_files = group_files
        # Who makes topics in this process tells; another process does not.
        self.tells_changes = not (read_only or shared)
        self.topics: Callable[[], Sequence[str]] = topics
        self.partitions: Callable[[str], Sequence[int]] = partitions
        self.log = log
        self.watch = news.watch
        self.unwatch = news.unwatch
        self._offsets = offsets
        self._mutex = threading.Lock()
        self._groups: dict[str, GroupBox] = {}
        self._consumers: weakref.WeakValueDictionary[str, Consumer] = weakref.WeakValueDictionary()

    @property
    def offsets(self) -> GroupOffsets:
        return self._offsets()

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        if self.read_only:
            raise ReadOnlyError(errno.EROFS, READ_ONLY, str(self.path))
        self.offsets.commit(group, offsets)

    def group(self, name: str) -> GroupBox:
        if self.read_only:
            raise ReadOnlyError(errno.EROFS, READ_ONLY, str(self.path))
        with self._mutex:
            box = self._groups.get(name)
            if box is None:
                box = (self._shared and self._group_files(name, True)) or MemoryGroup(name, self.clock)
                self._groups[name] = box
            return box

    def members(self, name: str) -> dict[TopicPartition, str]:
        """Who of a group reads which partitions now: the ids of members: a client's, and a UUID behind it."""
        box = self._groups.get(name) or self._group_files(name, False)
        if box is None:
            return {}
        _, state = box.look()
        dead = box.dead(state.members)
        living = [name for name in state.members if name not in dead]
        return {owner: name for name in living for owner in state.members[name].owned}

    def made(self, consumer: AnyConsumer) -> AnyConsumer:
        """Keeps in mind a consumer of the store, as long as it lives."""
        with self._mutex:
            taken = self._open_consumers()
            name, number = consumer.client_id, 1
            while name in taken:
                number += 1
                name = f"{consumer.client_id}#{number}"
            self._consumers[name] = consumer
        return consumer

    def live_consumers(self) -> dict[str, Consumer]:
        """The open consumers, by names that no two of them have: the client id, and a number if that was taken."""
        with self._mutex:
            return self._open_consumers()

    def _open_consumers(self) -> dict[str, Consumer]:
        return {name: consumer for name, consumer in list(self._consumers.items()) if not consumer.closed}

    def close(self) -> None:
        """No consumer reads on."""
        for consumer in self.live_consumers().values():
            consumer.abandon()


def set_back_offsets(
    directory: LogDirectory, logs: OpenLogs, clock: Clock, recovered: Collection[TopicPartition]
) -> list[SetBack]:
    """Sets committed offsets of logs that were recovered back to where these end, and says which; see ``set_back``.

    In a broker's directory nothing is committed before somebody does.
    """
    owners = [owner for owner in recovered if not is_internal(owner.topic)]
    if not owners or not directory.is_used(OFFSETS.name):
        return []
    try:
        with ExitStack() as stack:

            def end_of(owner: TopicPartition) -> int:
                return stack.enter_context(logs.borrowed(owner)).end_offset

            return set_back(_borrowed_offsets(directory, logs, clock, stack), owners, end_of)
    except KstoreError as error:
        # What could not be set back is left to the consumers, which never begin above the end.
        logger.warning(
            "%s: committed offsets cannot be compared with the ends of their logs: %s", directory.path, error
        )
        return []


def forget_offsets(directory: LogDirectory, logs: OpenLogs, clock: Clock, topic: str) -> None:
    """Takes away what groups have committed of ``topic``, which is about to be deleted: one that is made anew under
    its name has other records. What fails is logged."""
    if not directory.numbers(OFFSETS.name) or is_internal(topic):
        return
    try:
        with ExitStack() as stack:
            offsets = _borrowed_offsets(directory, logs, clock, stack)
            for group in offsets.groups():
                gone = [owner for owner in offsets.committed(group) if owner.topic == topic]
                offsets.forget(group, gone)
    except KstoreError as error:
        logger.warning("%s: what groups have committed of %s stays: %s", directory.path, topic, error)


def _borrowed_offsets(directory: LogDirectory, logs: OpenLogs, clock: Clock, stack: ExitStack) -> GroupOffsets:
    """Committed offsets whose logs are closed with ``stack``, where nobody else needs them; empty ones stay closed."""

    def log_of(owner: TopicPartition) -> Log:
        if not any(segment.size for segment in directory.segment_ages(owner)):
            raise TopicNotFoundError(f"{owner} holds nothing")
        return stack.enter_context(logs.borrowed(owner))

    def ensure_topic(name: str, partitions: int, /, **settings: object) -> int:
        raise TopicNotFoundError(f"there is no topic {name}")

    return GroupOffsets(log_of, ensure_topic, lambda name: directory.topics[name].partitions, clock)
