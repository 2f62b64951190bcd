"""What the logs of a query hold now; the logs stay open, so that asking again costs little.

It lives in the process that plans a query, and is never pickled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from kstore.engine.head_search import HeadSearch
from kstore.engine.view import LogView
from kstore.errors import LogNotFoundError, NotALogError, StorageError
from kstore.files.fs import FileStat
from kstore.files.lifetime import Closing
from kstore.files.paths import KSTORE_STATE, LOG_SUFFIX, PARTITION_METADATA, parse_segment_name
from kstore.log import Log, reads_of
from kstore.spark.notes import note_search
from kstore.spark.options import ReadOptions
from kstore.spark.places import LogPlace, find_places, open_at, topic_id_at
from kstore.spark.ranges import Held, chosen
from kstore.spark.stores import Stores

# What a search for transactions may read of one log without a word.
SEARCH_BYTES_MAX = 16 << 20


class _Seen(NamedTuple):
    """What a remote log held when its directory was listed like this."""

    listing: Mapping[str, FileStat]
    held: Held


class Holdings(Closing):
    """The logs that ``options`` select. Not thread-safe; it asks for several logs at once itself."""

    def __init__(self, options: ReadOptions, wants: Callable[[LogPlace], bool] = lambda place: True) -> None:
        """``wants``: selects logs; others are not opened."""
        self._options = options
        self._wants = wants
        self._committed = options.isolation_level == "read_committed"
        self._stores = Stores(options.storage_options, request_count=options.plan_requests)
        # All stay open: their files are those that the process's caches keep, a share of its descriptors.
        self._logs: dict[LogPlace, Log] = {}
        self._seen: dict[LogPlace, _Seen] = {}
        # How many requests each of the remote logs may make at a time, and whether the cost of a search was noted.
        self._requests_each = 1
        self._noting = threading.Lock()
        self._has_noted_search = False

    def look(self, *, must_exist: bool = False) -> list[Held]:
        """What each log holds, by topic and partition. A log that disappears in the meantime counts as gone.

        Raises: TopicNotFoundError with ``must_exist``; as ``find_places`` and ``Log``.
        """
        options, stores = self._options, self._stores
        stores.begin()
        found = find_places(options.paths, named=options.topics.named, locate=stores.locate)
        places = chosen(found, options.topics, must_exist=must_exist)
        for place in self._logs.keys() - set(places):
            self._drop(place)
        self._seen = {place: self._seen[place] for place in places if place in self._seen}
        places = [place for place in places if self._wants(place)]
        stores.list_logs(places)
        held: dict[LogPlace, Held | None] = {}

        def ask(place: LogPlace) -> None:
            held[place] = self._held(place)

        remote = [place for place in places if stores.listing(place) is not None]
        self._requests_each = max(options.plan_requests // max(len(remote), 1), 1)
        self.each(ask, places)
        return [log for log in map(held.__getitem__, places) if log is not None]

    def each(self, work: Callable[[LogPlace], object], places: Iterable[LogPlace]) -> None:
        """Calls ``work`` for each place, for many remote ones at a time. Raises: what a call raised."""
        remote: list[LogPlace] = []
        local: list[LogPlace] = []
        for place in places:
            (local if self._stores.listing(place) is None else remote).append(place)
        self._stores.each(work, remote)
        for place in local:
            work(place)

    def _held(self, place: LogPlace) -> Held | None:
        listing, seen = self._stores.listing(place), self._seen.get(place)
        if seen is not None and seen.listing is listing:
            return seen.held
        held = self._held_now(place)
        # Not what it is now, if it was listed again.
        # A broker's log may start elsewhere while its directory stays the same: a file next to it says where.
        is_own = listing is not None and KSTORE_STATE in listing
        if held is not None and listing is not None and is_own and listing is self._stores.listing(place):
            self._seen[place] = _Seen(listing, held)
        else:
            self._seen.pop(place, None)
        return held

    def _held_now(self, place: LogPlace) -> Held | None:
        try:
            return self._ask(place)
        except (LogNotFoundError, NotALogError, StorageError):
            # The open log may have been replaced: it is opened again, and then it must work.
            self._drop(place)
            self._stores.ask_again(place)
        try:
            return self._ask(place)
        except (LogNotFoundError, NotALogError):
            return None

    def _ask(self, place: LogPlace) -> Held:
        # Before the offsets: those of a topic that has just been created are never taken for the deleted one's.
        topic_id = topic_id_at(self._stores.locate(place.url))
        is_new = place not in self._logs
        log = self.log(place)
        # What was just opened was just looked at.
        high_watermark = reads_of(log).read_bound(committed=False).high_watermark if is_new else log.high_watermark
        end_offset = reads_of(log).read_bound(committed=self._committed).high_watermark
        start_offset = reads_of(log).start_offset
        stop = max(min(end_offset, high_watermark), start_offset)
        topic_file = self._stores.telling(place, PARTITION_METADATA) if topic_id else None
        return Held(place, start_offset, stop, high_watermark, topic_id, topic_file)

    def log(self, place: LogPlace) -> Log:
        """The log at ``place``, open until it is gone. For each place one thread asks. Raises: as ``Log``."""
        log = self._logs.get(place)
        if log is None:
            log = self._logs[place] = open_at(self._stores.locate(place.url))
            view = reads_of(log).source
            assert isinstance(view, LogView)
            view.search_by_heads(
                HeadSearch(
                    bytes_max=SEARCH_BYTES_MAX,
                    on_much=partial(self._note_search, place),
                    request_count=self._requests_each,
                )
            )
        return log

    def _note_search(self, place: LogPlace, size: int) -> None:
        with self._noting:
            has_noted, self._has_noted_search = self._has_noted_search, True
        if not has_noted:
            note_search(place.owner, size, SEARCH_BYTES_MAX)

    def _drop(self, place: LogPlace) -> None:
        log = self._logs.pop(place, None)
        if log is not None:
            log.close()

    def sizes(self, place: LogPlace) -> dict[int, int]:
        """The bytes of each segment by its base offset, as they were listed; nothing for a log on this machine's disks,
        where the few that matter are looked up."""
        found = {}
        for name, stat in (self._stores.listing(place) or {}).items():
            segment = parse_segment_name(name)
            if segment is not None and segment.suffix == LOG_SUFFIX and not segment.state:
                found[segment.base_offset] = stat.size
        return found

    def offset_for_time(self, place: LogPlace, timestamp_ms: int) -> int | None:
        """The first offset at or after a time; None if there is none."""
        return self.log(place).offset_for_time(timestamp_ms)

    def size_between(self, place: LogPlace, start: int, stop: int) -> int:
        """The bytes of the batches from offset ``start`` to below ``stop``, in whole batches; 0 within one batch."""
        log = self.log(place)
        size = 0
        while start < stop:
            found = reads_of(log).segment_for(start)
            if found is None:
                break
            segment, segment_stop = found
            first = segment.locate(start, segment.size).position
            last = segment.size if stop >= segment_stop else segment.locate(stop, segment.size).position
            size += max(last - first, 0)
            start = segment_stop
        return size

    def close(self) -> None:
        for place in list(self._logs):
            self._drop(place)
