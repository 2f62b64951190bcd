"""A group whose members are in several processes that share a store: they coordinate through a few small files.

The files are in the partition of ``__consumer_offsets`` that keeps the group's offsets, in
``kstore.groups/<hash of name>``:

 members        the group's state: a line with a CRC, then JSON; replaced as a whole
 lock           locked by a process that changes the state, shared by those that commit
 gate           locked by a process that waits to change it, and briefly by one that begins to commit: none overtakes
 <uuid>/.lock   held by a living member; its directory's time is that of its last beat, by the monotonic clock

The system releases a lock when its process dies for any reason: so a member's death is known, not guessed. The beat
reveals a member that lives but requests nothing. None of the files needs to survive a reboot: after a restart no lock
is held. An unreadable state counts as empty; its members find that they are not in it, and join again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import Any

from kstore.clock import Clock
from kstore.consumer.assignor import STRATEGIES
from kstore.consumer.group_state import GroupMember, GroupState
from kstore.consumer.groups import Draft
from kstore.errors import CorruptFileError, FileInTheWayError, LockedError, StorageError
from kstore.files._locks import block
from kstore.files.checkpoint import CheckedText
from kstore.files.fs import File, FileStat, FileSystem
from kstore.files.lock import DirectoryLock, file_locked, probe_lock
from kstore.files.paths import KSTORE_GROUPS, LOCK, TEMPORARY_SUFFIX, TopicPartition
from kstore.types import INT64_MAX

logger = logging.getLogger(__name__)

MEMBERS = "members"
GROUP_LOCK = "lock"
GATE = "gate"
STATE_SIZE_MAX = 16 << 20
GENERATION_MAX = INT64_MAX
FORM = CheckedText("kstore.group", 1)
# The end of a member's id: its directory's name.
UUID_LENGTH = 36
MEMBER_ID = re.compile(r".*-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.DOTALL)
# There is no notification of changes: waiting members look this often.
LOOK_SECONDS = 0.1
# A beat is written at most this often.
BEAT_SECONDS = 0.25


def group_directory(partition: Path, group: str) -> Path:
    """The directory for the files of ``group``, in the partition that keeps its offsets."""
    return partition / KSTORE_GROUPS / hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class FileGroup:
    """A group in files. Thread-safe, and safe among processes; one object per process is enough."""

    look_seconds = LOOK_SECONDS

    def __init__(
        self, fs: FileSystem, directory: Path, name: str, clock: Clock, *, file_mode: int = 0o600, create: bool = True
    ) -> None:
        """Creates ``directory`` if necessary; its parent's parent must exist. Without ``create`` it only reads.

        Raises: StorageError.
        """
        self._fs = fs
        self._path = directory
        self._name = name
        self._clock = clock
        self._mode = file_mode
        self._directory_mode = file_mode | (file_mode & 0o444) >> 2
        # Guards the following.
        self._mutex = threading.RLock()
        self._version = 0
        # The file that holds the state, and its stat. While it is open no other file gets its inode: so a replacement
        # is always noticed, at any speed and with any clock of the file system.
        self._seen: tuple[File, FileStat] | None = None
        self._state = GroupState()
        self._locks: dict[str, DirectoryLock] = {}
        self._exited: frozenset[str] = frozenset()
        self._beats: dict[str, float] = {}
        for each in (directory.parent, directory) if create else ():
            with suppress(FileInTheWayError):
                fs.mkdir(each, self._directory_mode)

    @property
    def name(self) -> str:
        return self._name

    # --- the state --------------------------------------------------------------------------------------------------

    def look(self) -> tuple[int, GroupState]:
        with self._mutex:
            self._read()
            return self._version, self._state

    def _read(self) -> None:
        """Reads the file, if it was replaced. Needs the mutex."""
        path = self._path / MEMBERS
        try:
            if self._seen is not None and self._seen[1] == self._fs.stat(path):
                return
            self._show(self._fs.open(path))
        except FileNotFoundError:
            if self._seen is not None:
                self._set(None, GroupState())

    def _show(self, file: File) -> None:
        """Applies the content of ``file``."""
        path = self._path / MEMBERS
        seen = file, file.stat()
        try:
            data = file.pread(STATE_SIZE_MAX + 1, 0)
            if len(data) > STATE_SIZE_MAX:
                raise CorruptFileError(f"over {STATE_SIZE_MAX} bytes, which no such file has", path=path)
            state = decode_state(data, path)
        except CorruptFileError as error:
            logger.warning("group %r is shared again: %s", self._name, error)
            # Generations keep rising for members that have seen the last one.
            state = GroupState(self._state.generation + 1)
        self._set(seen, state)

    def _set(self, seen: tuple[File, FileStat] | None, state: GroupState) -> None:
        before, self._seen = self._seen, seen
        self._state = state
        self._exited &= state.members.keys()
        self._version += 1
        if before is not None:
            before[0].close()

    @block
    def changing(self) -> Iterator[Draft]:
        with self._locked(GATE), self._locked(GROUP_LOCK), self._mutex:
            self._read()
            before = self._state
            draft = Draft(before)
            yield draft
            if draft.state is not before:
                self._write(draft.state)
                for gone in before.members.keys() - draft.state.members.keys():
                    self._tidy(gone)

    @block
    def committing(self) -> Iterator[GroupState]:
        with ExitStack() as stack:
            with self._locked(GATE):
                stack.enter_context(self._locked(GROUP_LOCK, shared=True))
            with self._mutex:
                self._read()
                state = self._state
            yield state

    def _write(self, state: GroupState) -> None:
        """Writes the state completely or not at all, even if a process is killed; it need not survive a machine
        crash."""
        path = self._path / MEMBERS
        temporary = Path(f"{path}{TEMPORARY_SUFFIX}")
        with suppress(FileNotFoundError):
            self._fs.unlink(temporary)
        file = self._fs.open(temporary, write=True, create=True, mode=self._mode)
        try:
            file.write_all([encode_state(self._name, state)], 0)
            self._fs.rename(temporary, path)
            seen = file, file.stat()
        except BaseException:
            file.close()
            raise
        self._set(seen, state)

    def _locked(self, name: str, *, shared: bool = False) -> AbstractContextManager[None]:
        return file_locked(self._path / name, shared=shared, mode=self._mode)

    # --- who lives --------------------------------------------------------------------------------------------------

    def _home(self, member_id: str) -> Path:
        return self._path / member_id[-UUID_LENGTH:]

    def enter(self, member_id: str, wake: Callable[[], None]) -> None:
        home = self._home(member_id)
        self._fs.mkdir(home, self._directory_mode)
        lock = DirectoryLock(home, kind="consumer", mode=self._mode)
        with self._mutex:
            self._locks[member_id] = lock
        self.beat(member_id)

    def beat(self, member_id: str) -> None:
        now = self._clock.monotonic()
        if member_id in self._locks and now >= self._beats.get(member_id, -BEAT_SECONDS) + BEAT_SECONDS:
            self._beats[member_id] = now
            with suppress(FileNotFoundError):
                self._fs.set_mtime(self._home(member_id), int(now * 1_000_000_000))

    def dead(self, members: Mapping[str, GroupMember]) -> set[str]:
        now_ns = int(self._clock.monotonic() * 1_000_000_000)
        gone = set()
        for name, member in members.items():
            home = self._home(name)
            try:
                if not self._is_locked(home) or now_ns - self._fs.stat(home).mtime_ns > member.limit_ms * 1_000_000:
                    gone.add(name)
            except FileNotFoundError:
                gone.add(name)
        return gone

    def _is_locked(self, home: Path) -> bool:
        try:
            probe_lock(home)
        except LockedError:
            return True
        return False

    def exit(self, member_id: str) -> None:
        lock = self._locks.pop(member_id, None)
        self._beats.pop(member_id, None)
        self._exited |= {member_id}
        self._version += 1
        if lock is not None:
            lock.release()
            self._tidy(member_id)

    @property
    def exited(self) -> Set[str]:
        return self._exited

    def _tidy(self, member_id: str) -> None:
        """Removes the files of a dead member."""
        home = self._home(member_id)
        try:
            if not self._is_locked(home):
                with suppress(FileNotFoundError):
                    self._fs.unlink(home / LOCK)
                self._fs.rmdir(home)
        except FileNotFoundError:
            pass
        except StorageError as error:
            if error.errno != errno.ENOTEMPTY:
                logger.warning("%s: cannot be removed: %s", home, error)


# --- the file ---------------------------------------------------------------------------------------------------------


def encode_state(group: str, state: GroupState) -> bytes:
    """The content of ``members``."""
    members = [
        {
            "id": name,
            "client_id": member.client_id,
            "topics": list(member.topics),
            "strategy": member.strategy,
            "limit_ms": member.limit_ms,
            "owned": sorted(member.owned),
            "target": list(state.target[name]),
        }
        for name, member in state.members.items()
    ]
    rows = {"group": group, "generation": state.generation, "members": members}
    body = json.dumps(rows, indent=1).encode("ascii") + b"\n"
    return FORM.encode(body)


def decode_state(data: bytes, path: Path) -> GroupState:
    """Raises: CorruptFileError; UnsupportedFormatError if members of a later version share the group."""
    body = FORM.decode(data, path)
    try:
        rows = json.loads(body)
        members = {_member_id(row["id"]): _member(row) for row in rows["members"]}
        target = {str(row["id"]): tuple(sorted(_owners(row["target"]))) for row in rows["members"]}
        # Not above the limit, which only a hostile file has: a number of very many digits could not be written again.
        generation = min(int(rows["generation"]), GENERATION_MAX)
        return GroupState(generation, members, target)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise CorruptFileError(f"not the members of a group: {error}", path=path) from error


def _member_id(name: object) -> str:
    """Raises: ValueError if it does not end in a UUID: then it cannot be the name of a directory here."""
    if not isinstance(name, str) or not MEMBER_ID.fullmatch(name):
        raise ValueError(f"{name!r:.80} is not the id of a member")
    return name


def _member(row: dict[str, Any]) -> GroupMember:
    topics, strategy = tuple(str(topic) for topic in row["topics"]), str(row["strategy"])
    if strategy not in STRATEGIES:
        raise ValueError(f"partition_assignment_strategy is {strategy!r:.80}, expected one of {', '.join(STRATEGIES)}")
    limit_ms = int(row["limit_ms"])
    return GroupMember(str(row["client_id"]), topics, strategy, limit_ms, frozenset(_owners(row["owned"])))


def _owners(rows: list[Any]) -> list[TopicPartition]:
    return [TopicPartition(str(topic), int(number)) for topic, number in rows]
