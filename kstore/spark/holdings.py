"""What the logs of a query hold now; the logs stay open, so that asking again costs little.

It lives in the process that plans a query, and is never pickled.
"""

from __future__ import annotations

import resource
from collections import OrderedDict
from collections.abc import Callable
from types import TracebackType
from typing import Self

from kstore.errors import LogNotFoundError, NotALogError, StorageError
from kstore.files.remote import open_remote
from kstore.log import Log, reads_of
from kstore.spark.options import ReadOptions
from kstore.spark.places import LogPlace, find_places, open_place, topic_id_at
from kstore.spark.ranges import Held, chosen

__all__ = ["Holdings"]

# Each log has at least one file open, more if it is divided: a share of the process's limit.
OPEN_LOGS_MIN, OPEN_LOGS_MAX = 32, 2048
FILES_PER_LOG = 8


class Holdings:
    """The logs that ``options`` select. Not thread-safe."""

    def __init__(self, options: ReadOptions, wants: Callable[[LogPlace], bool] = lambda place: True) -> None:
        """``wants``: selects logs; others are not opened."""
        self._options = options
        self._wants = wants
        self._committed = options.isolation_level == "read_committed"
        self._logs: OrderedDict[LogPlace, Log] = OrderedDict()
        files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._count_max = min(max(files_max // FILES_PER_LOG, OPEN_LOGS_MIN), OPEN_LOGS_MAX)

    def look(self, *, must_exist: bool = False) -> list[Held]:
        """What each log holds, by topic and partition. A log that disappears meanwhile counts as gone.

        Raises: TopicNotFoundError with ``must_exist``; as ``find_places`` and ``Log``.
        """
        options = self._options
        named = options.topics.named
        found = find_places(options.paths, storage_options=options.storage_options, named=named)
        places = chosen(found, options.topics, must_exist=must_exist)
        for place in self._logs.keys() - set(places):
            self._logs.pop(place).close()
        held = (self._held(place) for place in places if self._wants(place))
        return [log for log in held if log is not None]

    def _held(self, place: LogPlace) -> Held | None:
        try:
            return self._ask(place)
        except (LogNotFoundError, NotALogError, StorageError):
            # The open log may have been replaced: it is opened again, and then it must work.
            self._drop(place)
        try:
            return self._ask(place)
        except (LogNotFoundError, NotALogError):
            return None

    def _ask(self, place: LogPlace) -> Held:
        # Before the offsets: those of a topic that has just been created are never taken for the deleted one's.
        topic_id = topic_id_at(open_remote(place.url, storage_options=self._options.storage_options))
        log = self.log(place)
        high_watermark = log.high_watermark
        end_offset = reads_of(log).read_bound(committed=self._committed).high_watermark
        start_offset = log.start_offset
        return Held(place, start_offset, max(min(end_offset, high_watermark), start_offset), high_watermark, topic_id)

    def log(self, place: LogPlace) -> Log:
        """The log at ``place``, open until other logs are requested. Raises: as ``Log``."""
        log = self._logs.pop(place, None) or open_place(place, self._options.storage_options)
        self._logs[place] = log
        while len(self._logs) > self._count_max:
            self._logs.popitem(last=False)[1].close()
        return log

    def _drop(self, place: LogPlace) -> None:
        log = self._logs.pop(place, None)
        if log is not None:
            log.close()

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
        while self._logs:
            self._logs.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
