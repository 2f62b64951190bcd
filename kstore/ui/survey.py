"""Finds the logs and counts them in a thread of its own, the small ones first, so that no page waits for it.

What it publishes is immutable and replaced by one store. A log that has changed is counted again when a page asks for
it; counts of a log that changes all the time are some seconds apart.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kstore
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import FileMissingError, KstoreError, StorageError
from kstore.files._locks import Condition
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX, classify, segment_name
from kstore.reports.document import document_of
from kstore.reports.gathering import Found, Gathered, examined
from kstore.reports.readers import readers_of
from kstore.rules.internal_topics import is_internal
from kstore.ui.places import Place, Places, find_places
from kstore.upkeep.verify import verify_store_files

logger = logging.getLogger(__name__)

# A log that is written to is counted again, and the directories are searched for new logs, after this many times the
# seconds that it took, and at least after these.
REPEAT_COST_FACTOR = 20
RECOUNT_SECONDS_MIN = 2.0
FIND_SECONDS_MIN = 5.0

# The names and sizes of the segments: another one means that the log has changed.
Sight = tuple[tuple[int, int], ...]


class Counted(NamedTuple):
    """What was counted of a log at a time; ``document`` is its part of a report's."""

    document: dict[str, Any]
    sight: Sight
    at_ms: int
    began: float
    ended: float


class _StoppedError(Exception):
    """The survey was stopped in the middle of a log."""


class Survey:
    """Thread-safe. ``deep``: check every byte, and count every record, as ``kstore report --deep``."""

    def __init__(
        self, paths: Sequence[Path], *, deep: bool = False, fs: FileSystem = SYSTEM_FS, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.paths = [Path(path) for path in paths]
        self.deep = deep
        self.fs = fs
        self.clock = clock
        self.places: Places = Places({}, {}, [], [])
        self.has_looked = False
        # All of these are guarded by the lock. Dictionaries by place.
        self._counted: dict[Place, Counted] = {}
        self._problems: dict[Place, str] = {}
        self._sizes: dict[Place, int] = {}
        self._pending: OrderedDict[Place, None] = OrderedDict()
        # What users look at comes before the others, the last one first.
        self._asked: OrderedDict[Place, None] = OrderedDict()
        self._finds = True
        self._reads_stores = self._has_read_stores = False
        # By the directory: the part of a report's document about what belongs to no log.
        self._stores: dict[Path, dict[str, Any]] = {}
        self._find_at = 0.0
        self._is_stopped = False
        self._lock = threading.Lock()
        self._changed = Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="kstore-ui-survey", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when its thread has ended."""
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def pending_count(self) -> int:
        """How many logs are still to be counted."""
        with self._lock:
            return len(self._pending.keys() | self._asked.keys())

    def wait(self, seconds: float) -> bool:
        """Waits until all logs are found and counted; returns whether they are."""
        with self._lock:
            return self._changed.wait_for(lambda: not self._work, seconds)

    def wait_for_places(self, seconds: float) -> bool:
        """Waits until the logs were found once; returns whether they were."""
        with self._lock:
            return self._changed.wait_for(lambda: self.has_looked, seconds)

    def find_again(self) -> None:
        """Asks for a search for new logs."""
        with self._lock:
            if self.has_looked and self.clock.monotonic() >= self._find_at:
                self._finds = True
                self._changed.notify_all()

    def ask(self, place: Place) -> Counted | None:
        """What was counted of the log last; if it has changed since, it comes next."""
        with self._lock:
            counted = self._counted.get(place)
        if counted is not None:
            took = counted.ended - counted.began
            if self.clock.monotonic() - counted.ended < max(RECOUNT_SECONDS_MIN, REPEAT_COST_FACTOR * took):
                return counted
            if self.sight(place) == counted.sight:
                return counted
        with self._lock:
            self._asked[place] = None
            self._asked.move_to_end(place, last=False)
            self._changed.notify_all()
        return counted

    @property
    def is_complete(self) -> bool:
        """Whether everything was found, counted and read once; a later search for new logs does not count."""
        with self._lock:
            return self._has_read_stores and not (self._pending or self._asked)

    @property
    def _work(self) -> bool:
        return bool(self._finds or self._pending or self._asked or self._reads_stores)

    def stores(self) -> list[dict[str, Any]]:
        """What a report's document says of the checkpoints, groups and queues of each directory of logs."""
        with self._lock:
            return list(self._stores.values())

    def is_pending(self, place: Place) -> bool:
        with self._lock:
            return place in self._pending or place in self._asked

    def problem(self, place: Place) -> str:
        """Why the log could not be counted; empty if it could, or has not been tried."""
        with self._lock:
            return self._problems.get(place, "")

    def known(self) -> tuple[dict[Place, Counted], dict[Place, int]]:
        """What was counted of each log so far, and the bytes of its segments."""
        with self._lock:
            return dict(self._counted), dict(self._sizes)

    # --- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                self._changed.wait_for(lambda: self._is_stopped or self._work)
                if self._is_stopped:
                    return
                finds = self._finds
                place = None if finds else next(iter(self._asked or self._pending), None)
            problem = ""
            try:
                if finds:
                    self._find()
                elif place is not None:
                    self._count(place)
                else:
                    self._read_stores()
            except KstoreError as error:
                problem = str(error)
            except _StoppedError:
                return
            except Exception as error:
                # A page shows that the numbers are missing; the other logs can still be counted.
                logger.exception("counting %s failed", self.paths if place is None else place.path)
                problem = f"{type(error).__name__}: {error}"
            with self._lock:
                if finds:
                    # Even if it failed: no page waits for another try.
                    self._finds, self.has_looked, self._reads_stores = False, True, True
                elif place is None:
                    self._reads_stores, self._has_read_stores = False, True
                else:
                    self._pending.pop(place, None)
                    self._asked.pop(place, None)
                    self._problems.pop(place, None)
                    if problem:
                        self._problems[place] = problem
                self._changed.notify_all()

    def _find(self) -> None:
        began = self.clock.monotonic()
        places = find_places(self.paths, self.fs, self.places.roots)
        every = list(places.by_key.values())
        with self._lock:
            self.places = places
            self.has_looked = True
            self._pending = OrderedDict.fromkeys(place for place in every if place not in self._counted)
            self._changed.notify_all()
        sizes = {place: sum(size for _, size in self.sight(place)) for place in every if not self._is_stopped}
        ended = self.clock.monotonic()
        with self._lock:
            self._find_at = ended + max(FIND_SECONDS_MIN, REPEAT_COST_FACTOR * (ended - began))
            self._sizes = sizes
            self._counted = {place: counted for place, counted in self._counted.items() if place in sizes}
            self._pending = OrderedDict.fromkeys(sorted(self._pending, key=lambda place: sizes.get(place, 0)))

    def sight(self, place: Place) -> Sight:
        """The segments of a log now; empty if the directory is gone, or out of reach."""
        sizes = []
        try:
            for base in classify(self.fs.list(place.path)).bases[LOG_SUFFIX]:
                try:
                    sizes.append((base, self.fs.stat(f"{place.path}/{segment_name(base, LOG_SUFFIX)}").size))
                except FileMissingError:
                    pass  # retention has removed it
        except StorageError:
            return ()
        return tuple(sizes)

    def _count(self, place: Place) -> None:
        began, sight = self.clock.monotonic(), self.sight(place)
        log = examined(place.path, deep=self.deep, with_payload=True, fs=self.fs, advance=self._advance)
        gathered = Gathered([place.path], [log], deep=self.deep, with_payload=True)
        now_ms = self.clock.now_ms()
        document = document_of(gathered, version=kstore.__version__, created_ms=now_ms, hash_names=False)
        counted = Counted(document["partitions"][0], sight, now_ms, began, self.clock.monotonic())
        with self._lock:
            self._sizes[place] = sum(size for _, size in sight)
            self._counted[place] = counted

    def _read_stores(self) -> None:
        """After the logs, because the offsets of groups may take long."""
        places, stores = self.places, {}
        for root in places.roots:
            if self._is_stopped or root not in self.paths:
                continue  # of a log that was given by itself
            found = [(root, Found(finding)) for finding in verify_store_files(root, fs=self.fs).findings]
            has_readers = any(place.root == root and is_internal(place.topic) for place in places.by_key.values())
            readers = [readers_of(root, with_queues=self.deep)] if has_readers else []
            gathered = Gathered([root], [], found, readers, deep=self.deep, with_payload=True)
            stores[root] = document_of(
                gathered, version=kstore.__version__, created_ms=self.clock.now_ms(), hash_names=False
            )
        with self._lock:
            self._stores = stores

    def _advance(self, size: int) -> None:
        if self._is_stopped:
            raise _StoppedError
