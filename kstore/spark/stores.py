"""The stores that a query reads: one connection to each, and what its listings said at one moment.

A plan and each trigger of a stream begin a new moment. A listing of the root serves all of its logs, where the store
can list a tree; elsewhere their directories are listed many at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from kstore.errors import StorageError
from kstore.files.fs import FileStat
from kstore.files.moment import Moment
from kstore.files.remote import (
    Location,
    RemoteFiles,
    RemoteFileSystem,
    RemoteReading,
    open_remote,
    path_in_store,
    store_of,
)
from kstore.files.threads import side_by_side
from kstore.spark.places import LogPlace

Item = TypeVar("Item")

# A few directories take no longer than a tree, of which a store gives a thousand files at a time.
TREE_LOGS_MIN = 8
# How long a plan and a task put up with a store that fails to serve a request.
RETRY_SECONDS = 20.0


class Stores:
    """``locate`` and ``listing`` are thread-safe, ``begin`` and ``list_logs`` are for one thread."""

    def __init__(self, storage_options: Mapping[str, Any], *, request_count: int) -> None:
        """``request_count``: how many requests are made at once."""
        self._storage_options = storage_options
        self._request_count = request_count
        self._stores: dict[str, tuple[RemoteFiles, Moment]] = {}
        self._located: dict[str, Location] = {}

    def begin(self) -> None:
        """What was listed so far may have changed."""
        for _, moment in self._stores.values():
            moment.begin()

    def locate(self, url: str) -> Location:
        """Raises: as ``open_remote``."""
        location = self._located.get(url)
        if location is None:
            location = self._located[url] = self._locate(url)
        return location

    def _locate(self, url: str) -> Location:
        store = store_of(url)
        if store is None:
            return open_remote(url)
        known = self._stores.get(store)
        if known is None:
            moment = Moment()
            location = open_remote(
                store, storage_options=self._storage_options, reading=RemoteReading(moment, retry_seconds=RETRY_SECONDS)
            )
            assert isinstance(location.fs, RemoteFiles)
            known = self._stores.setdefault(store, (location.fs, moment))
        return Location(known[0], path_in_store(url), None)

    def listing(self, place: LogPlace) -> Mapping[str, FileStat] | None:
        """What is known of a log's directory: the same object as before if no file in it has changed. None for a log on
        this machine's disks."""
        location = self.locate(place.url)
        return location.fs.listed(location.path) if isinstance(location.fs, RemoteFiles) else None

    def telling(self, place: LogPlace, name: str) -> FileStat | None:
        """The stat of a file of a remote log, if every other content of it would have another one."""
        store = store_of(place.url)
        return None if store is None else self._stores[store][1].telling(path_in_store(place.url) / name)

    def ask_again(self, place: LogPlace) -> None:
        """A log is no longer what its directory's listing says: it is listed again."""
        location = self.locate(place.url)
        if isinstance(location.fs, RemoteFiles):
            location.fs.ask_again(location.path)

    def list_logs(self, places: Iterable[LogPlace]) -> None:
        """Lists the directories of remote logs. Those that cannot be listed are asked for again by who needs them."""
        waiting = [location for location in map(self._remote, places) if location is not None]
        by_parent: defaultdict[tuple[RemoteFileSystem, Path], list[Location]] = defaultdict(list)
        for location in waiting:
            by_parent[location.fs, location.path.parent].append(location)
        for together in by_parent.values():
            self._list_tree(together)
        self.each(_list, [location for location in waiting if _is_unlisted(location)])

    def _remote(self, place: LogPlace) -> Location | None:
        location = self.locate(place.url)
        return location if location.local is None and _is_unlisted(location) else None

    def _list_tree(self, together: list[Location]) -> None:
        """Lists the directory above some logs as a tree, if little else is in it."""
        fs, top = together[0].fs, together[0].path.parent
        assert isinstance(fs, RemoteFiles)
        above = fs.listed(top)
        if above is None or len(together) < max(TREE_LOGS_MIN, sum(stat.is_dir for stat in above.values()) / 2):
            return
        with suppress(StorageError):
            fs.list_tree(top)

    def each(self, work: Callable[[Item], object], items: Sequence[Item]) -> None:
        """Calls ``work`` for each item, as many at once as there may be requests. Raises: what a call raised first."""
        side_by_side(work, items, count=self._request_count, name="kstore-plan")


def _is_unlisted(location: Location) -> bool:
    fs = location.fs
    return isinstance(fs, RemoteFiles) and fs.listed(location.path) is None


def _list(location: Location) -> None:
    with suppress(StorageError):
        location.fs.list_stats(location.path)
