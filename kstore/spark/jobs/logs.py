"""The logs of a job: listed in the driver, opened in the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kstore.errors import ConfigError
from kstore.files.paths import LOG_SUFFIX, classify, segment_name
from kstore.files.remote import Location, is_remote, open_remote
from kstore.spark.places import LogPlace, find_places, open_place
from kstore.types import OFFSET_MAX, IsolationLevel
from kstore.upkeep.verify import find_logs
from kstore.upkeep.verify.changing import is_live


class LogAt(NamedTuple):
    """A log's directory, by its URL or path."""

    url: str
    storage_options: tuple[tuple[str, Any], ...] = ()

    @property
    def location(self) -> Location:
        return open_remote(self.url, storage_options=dict(self.storage_options))

    @property
    def shown(self) -> str:
        """For people: without a password."""
        return self.location.url


class Segment(NamedTuple):
    """A ``.log`` of ``size`` bytes; offsets at or above ``offset_stop`` belong to the next one."""

    base_offset: int
    offset_stop: int
    size: int


class Stretch(NamedTuple):
    """Offsets ``start`` to ``stop`` of the log at ``place``: one segment's or several's, about ``size`` bytes."""

    place: LogPlace
    start: int
    stop: int
    size: int


def find_all_logs(urls: Iterable[str], storage_options: Mapping[str, Any]) -> list[LogAt]:
    """Every log at ``urls``, each a log or a directory of them, whatever its name.

    Raises: NotALogError, ConfigError for a log that appears twice, StorageError.
    """
    found: dict[str, LogAt] = {}
    options = tuple(sorted(storage_options.items()))
    for url in urls:
        location = open_remote(url, storage_options=storage_options)
        for path in find_logs(location.path, fs=location.reading):
            # As given, for opening it again: what is shown has no password.
            inner = str(path)[len(str(location.path)) :]
            at = LogAt(str(path) if location.local is not None else url.rstrip("/") + inner, options)
            if at.url in found:
                raise ConfigError(f"{at.url} is named twice")
            found[at.url] = at
    return list(found.values())


def places_of(urls: Sequence[str], storage_options: Mapping[str, Any], topics: Sequence[str] = ()) -> list[LogPlace]:
    """The logs at ``urls`` of ``topics``, by default of all but internal ones.

    Raises: as ``find_places``; ConfigError for a topic that does not exist.
    """
    places = find_places(urls, storage_options=storage_options, named=topics)
    if not topics:
        return places
    missing = sorted(set(topics) - {place.topic for place in places})
    if missing:
        raise ConfigError(f"there is no topic {missing[0]!r}")
    return [place for place in places if place.topic in topics]


def segments_of(location: Location) -> list[Segment]:
    """The segments of a log, in order; their sizes are for planning. Raises: StorageError."""
    stats = location.fs.list_stats(location.path)
    bases = classify(stats).bases[LOG_SUFFIX]
    sizes = [stats[segment_name(base_offset, LOG_SUFFIX)].size for base_offset in bases]
    return [
        Segment(base_offset, stop, size)
        for base_offset, stop, size in zip(bases, [*bases[1:], OFFSET_MAX], sizes, strict=False)
    ]


def writer_at_work(location: Location) -> bool:
    """Whether a writer holds the log, as far as known: not of one on another machine."""
    return is_live(location.reading, location.path)


def readable(place: LogPlace, storage_options: Mapping[str, Any], isolation_level: IsolationLevel) -> tuple[int, int]:
    """The first offset of a log, and the one after the last that can be read. Raises: StorageError, NotALogError."""
    with open_place(place, storage_options) as log:
        return log.start_offset, log.last_stable_offset if isolation_level == "read_committed" else log.high_watermark


def stretches_of(
    place: LogPlace, storage_options: Mapping[str, Any], start: int, stop: int, *, size_max: int
) -> list[Stretch]:
    """Offsets ``start`` to ``stop`` of a log, cut at segment starts, about ``size_max`` bytes or a segment each.

    Raises: StorageError.
    """
    found: list[Stretch] = []
    for segment in segments_of(open_remote(place.url, storage_options=storage_options)):
        first, last = max(segment.base_offset, start), min(segment.offset_stop, stop)
        if first >= last:
            continue
        if found and found[-1].size + segment.size <= size_max:
            found[-1] = found[-1]._replace(stop=last, size=found[-1].size + segment.size)
        else:
            found.append(Stretch(place, first, last, segment.size))
    return found


def local_or_url(url: str) -> str:
    """An absolute local path, since the executors may have another directory; a URL unchanged."""
    return url if is_remote(url) else str(open_remote(url).path)
