"""The groups of a store: where their members meet, and their committed offsets."""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Mapping
from contextlib import ExitStack

from kstore.consumer.group_files import FileGroup, group_directory
from kstore.consumer.groups import GroupBox, MemoryGroup
from kstore.consumer.offsets import SetBack, set_back
from kstore.errors import KstoreError, ReadOnlyError
from kstore.files._locks import OwnedLock
from kstore.files.paths import TopicPartition
from kstore.logs.topics import BorrowedTopics, Topics
from kstore.rules.internal_topics import OFFSETS, is_internal
from kstore.transactions.group_offsets import GroupOffsets
from kstore.transactions.group_records import OffsetAndMetadata

logger = logging.getLogger(__name__)

READ_ONLY = (
    "the store is open for reading: what a group commits is written, so its members need a store that writes, "
    "alongside others with shared=True; without a group, or with partitions assigned by hand, a consumer reads here"
)


class StoreGroups:
    """The groups of consumers of a store. Thread-safe."""

    def __init__(self, topics: Topics, offsets: GroupOffsets) -> None:
        self._topics = topics
        self._offsets = offsets
        self._lock = OwnedLock()
        self._boxes: dict[str, GroupBox] = {}  # guarded by _lock

    # --- members ----------------------------------------------------------------------------------------------------

    def box(self, name: str) -> GroupBox:
        """The shared state of a group. Raises: ReadOnlyError, ClosedError, GroupInUseError."""
        self._check_writable()
        with self._lock:
            self._offsets.check_free(name)
            box = self._boxes.get(name)
            if box is None:
                box = (self._topics.shared and self._files(name)) or MemoryGroup(name, self._topics.clock)
                self._boxes[name] = box
            return box

    def members(self, name: str) -> dict[TopicPartition, str]:
        """The current partitions of each member of a group, by member id: a client's id with a UUID after it."""
        box = self._boxes.get(name) or self._found_files(name)
        if box is None:
            return {}
        _, state = box.look()
        dead = box.dead(state.members)
        living = [name for name in state.members if name not in dead]
        return {owner: name for name in living for owner in state.members[name].owned}

    def has_members(self, name: str) -> bool:
        """Whether the group has a living member in this process. For exclusive stores."""
        box = self._boxes.get(name)
        return isinstance(box, MemoryGroup) and box.has_members

    def names(self) -> list[str]:
        """The groups that have a living member in this process. For exclusive stores."""
        return [name for name in list(self._boxes) if self.has_members(name)]

    def claim(self, name: str) -> bool:
        """Gives a group of an exclusive store to a caller that has members of another kind: from now on there are no
        members here, and only calls of ``offsets`` with ``is_claimant`` change what it has committed.

        Returns False, and changes nothing, if the group has a living member here.
        """
        with self._lock:
            box = self._boxes.get(name)
            if isinstance(box, MemoryGroup) and not box.claim():
                return False
            self._offsets.claim(name)
            return True

    def unclaim(self, name: str) -> None:
        """Ends a claim."""
        with self._lock:
            self._offsets.unclaim(name)
            box = self._boxes.get(name)
            if isinstance(box, MemoryGroup):
                box.unclaim()

    def _files(self, name: str) -> FileGroup:
        """The group's files, if other processes have the store open too; created if necessary."""
        return self._file_group(name, self.offsets.place(name), create=True)

    def _found_files(self, name: str) -> FileGroup | None:
        """The group's files, or None if they do not exist."""
        place = self.offsets.found_place(name)
        if place is None:
            return None
        directory = self._topics.directory
        if not directory.fs.exists(group_directory(directory.partition_path(place), name)):
            return None
        return self._file_group(name, place, create=False)

    def _file_group(self, name: str, place: TopicPartition, *, create: bool) -> FileGroup:
        directory, mode = self._topics.directory, self._topics.settings.defaults.file_mode
        path = group_directory(directory.partition_path(place), name)
        return FileGroup(directory.fs, path, name, directory.clock, file_mode=mode, create=create)

    # --- offsets ----------------------------------------------------------------------------------------------------

    @property
    def offsets(self) -> GroupOffsets:
        """The committed offsets of groups. Raises: ClosedError."""
        self._topics.life.check()
        return self._offsets

    def commit(self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]) -> None:
        """Commits offsets of a group.

        Raises: ConfigError, ReadOnlyError, GroupInUseError, DiskFullError, StorageError.
        """
        self._check_writable()
        self.offsets.commit(group, offsets)

    def set_back(self, recovered: Collection[TopicPartition]) -> list[SetBack]:
        """Sets committed offsets of recovered logs back to the ends of the logs, and returns which.

        In a broker's directory it commits nothing unless a group of kstore has used it.
        """
        owners = [owner for owner in recovered if not is_internal(owner.topic)]
        if not owners or not self._topics.directory.is_used(OFFSETS.name):
            return []
        logs = self._topics.logs
        try:
            with ExitStack() as stack:

                def end_of(owner: TopicPartition) -> int:
                    return stack.enter_context(logs.borrowed(owner)).end_offset

                return set_back(self._borrowed(stack), owners, end_of)
        except KstoreError as error:
            # Consumers never begin above the end, so they handle offsets that could not be set back.
            logger.warning(
                "%s: committed offsets cannot be compared with the ends of their logs: %s",
                self._topics.directory.path,
                error,
            )
            return []

    def forget(self, topic: str) -> None:
        """Removes the committed offsets of ``topic``, which is being deleted: a later topic of that name has other
        records. A failure is logged."""
        directory = self._topics.directory
        if not directory.numbers(OFFSETS.name) or is_internal(topic):
            return
        try:
            with ExitStack() as stack:
                offsets = self._borrowed(stack)
                for group in offsets.groups():
                    gone = [owner for owner in offsets.committed(group) if owner.topic == topic]
                    offsets.forget(group, gone)
        except KstoreError as error:
            logger.warning("%s: what groups have committed of %s stays: %s", directory.path, topic, error)

    def _borrowed(self, stack: ExitStack) -> GroupOffsets:
        return GroupOffsets(BorrowedTopics(self._topics, stack), self._topics.clock)

    def _check_writable(self) -> None:
        if self._topics.read_only:
            raise ReadOnlyError(errno.EROFS, READ_ONLY, str(self._topics.path))
