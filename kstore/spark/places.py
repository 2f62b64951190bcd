"""Where logs are: a store, a broker's log directory, one partition, or a glob of these, local or remote.

``find_places(urls)`` returns plain values, which can be sent to the readers; ``open_place`` opens one for reading. A
directory that holds a segment is a partition, named ``<topic>-<partition>``; with any other name it is partition 0 of a
topic of that name. Any other directory is a store: its partitions are the directories with such names.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import translate
from functools import partial
from typing import Any, NamedTuple

from kstore.engine.directory import is_log
from kstore.errors import ConfigError, CorruptFileError, FileMissingError, LogNotFoundError, NotALogError, StorageError
from kstore.files.checkpoint import read_small_file, read_topic_id
from kstore.files.fs import FileStat
from kstore.files.linked import directories_of
from kstore.files.paths import (
    METADATA_TOPIC,
    PARTITION_METADATA,
    TopicPartition,
    classify,
    marked_topic_partition,
    topic_partition,
)
from kstore.files.remote import Location, is_remote, open_remote
from kstore.files.remote_stores import without_password
from kstore.log import Log
from kstore.rules.internal_topics import is_internal
from kstore.rules.topics import KSTORE_TOPICS, TOPICS_SIZE_MAX, TopicEntry, decode_topics

# The directory names no topic id: neither kstore's Store nor a broker created it.
NO_TOPIC_ID = ""

MAGIC = re.compile(r"[*?\[{]")
# One group of alternatives: the first that contains no other.
BRACES = re.compile(r"\{([^{}]*)\}")
# How many patterns one pattern may expand to.
PATTERNS_MAX = 10_000


class LogPlace(NamedTuple):
    """One log: its URL or absolute path, and its topic and partition."""

    url: str
    topic: str
    partition: int

    @property
    def owner(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def shown(self) -> str:
        """The place for people: without a password."""
        return without_password(self.url)


def find_places(
    urls: Iterable[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    named: Collection[str] = (),
    locate: Callable[[str], Location] | None = None,
) -> list[LogPlace]:
    """The logs at ``urls``, by topic and partition. ``locate`` opens a URL, in place of ``open_remote``.

    Deleted, stray and half-created partitions are left out, and internal topics unless they are ``named``, or their own
    directory is.

    Raises: LogNotFoundError if nothing exists; NotALogError for a file; ConfigError for two logs of one partition;
    UnsupportedFormatError, StorageError.
    """
    found: dict[tuple[str, int], LogPlace] = {}
    if locate is None:
        locate = partial(open_remote, storage_options=storage_options)
    for url in urls:
        for place in _places(url, locate(url), named):
            other = found.setdefault((place.topic, place.partition), place)
            if other.url != place.url:
                raise ConfigError(
                    f"partition {place.topic}-{place.partition} exists twice, expected one log of it:"
                    f" {other.shown} and {place.shown}"
                )
    return [found[owner] for owner in sorted(found)]


def open_place(place: LogPlace, storage_options: Mapping[str, Any] | None = None) -> Log:
    """The log, read-only: it takes no lock, so a writer may be at work. Raises: as ``Log``."""
    return open_at(open_remote(place.url, storage_options=storage_options))


def open_at(location: Location, *, known_end: int | None = None) -> Log:
    """As ``open_place``, for a log that has been located. ``known_end``: an end that it had, up to which it is read."""
    return Log(location.path, read_only=True, fs=location.reading, _known_end=known_end)


def topic_id_at(location: Location) -> str | None:
    """The id of the topic to which a log belongs, or NO_TOPIC_ID; None if it cannot be read.

    A topic that is deleted and created again, with the same name and paths, has another id.
    """
    try:
        return str(read_topic_id(location.reading, location.path / PARTITION_METADATA))
    except FileMissingError:
        return NO_TOPIC_ID
    except (CorruptFileError, StorageError):
        return None


# --- one URL ----------------------------------------------------------------------------------------------------------


class _At(NamedTuple):
    """A path, as it is written for opening it again, and as it is accessed."""

    url: str
    location: Location

    def child(self, name: str) -> _At:
        return _At(f"{self.url.rstrip('/')}/{name}", self.location / name)

    @property
    def name(self) -> str:
        return self.location.path.name

    def names(self) -> list[str] | None:
        """The names in the directory, None if it does not exist. Raises: NotALogError for a file."""
        try:
            return self.location.fs.list(self.location.path)
        except FileNotFoundError:
            return None
        except StorageError as error:
            if error.errno != errno.ENOTDIR:
                raise
            what = "a file, expected a directory of logs, or a log"
            raise NotALogError(errno.ENOTDIR, what, self.location.url) from error

    def stats(self) -> dict[str, FileStat]:
        return self.location.fs.list_stats(self.location.path)


def _places(url: str, location: Location, named: Collection[str]) -> Iterator[LogPlace]:
    at = _At(url.rstrip("/") if is_remote(url) else str(location.path), location)
    names = at.names()
    if names is not None:
        yield from _places_in(at, names, named)
    elif MAGIC.search(str(location.path)):
        yield from _places_like(at, named)
    else:
        raise LogNotFoundError(errno.ENOENT, "there is no log, and no directory of logs", location.url)


def _places_in(at: _At, names: list[str], named: Collection[str]) -> Iterator[LogPlace]:
    """The places in a directory that is a log or a store."""
    if is_log(classify(names)):
        yield LogPlace(at.url, *(topic_partition(at.name) or TopicPartition(at.name, 0)))
        return
    entries = _topics(at) if KSTORE_TOPICS in names else {}
    stats = {name: stat for name, stat in at.stats().items() if topic_partition(name)}
    for name in directories_of(at.location.reading, at.location.path, stats).names:
        owner = topic_partition(name)
        assert owner is not None
        if not _is_hidden(owner.topic, named) and _is_there(owner, entries.get(owner.topic)):
            yield LogPlace(at.child(name).url, *owner)


def _is_hidden(topic: str, named: Collection[str]) -> bool:
    return (is_internal(topic) or topic == METADATA_TOPIC) and topic not in named


def _is_there(owner: TopicPartition, entry: TopicEntry | None) -> bool:
    """Whether the store counts a partition as existing, by the topic's entry; without one its directory decides."""
    return entry is None or (not entry.deleting and owner.partition not in range(entry.made, entry.partitions))


def _topics(at: _At) -> dict[str, TopicEntry]:
    fs, path = at.location.reading, at.location.path / KSTORE_TOPICS
    try:
        return decode_topics(read_small_file(fs, path, TOPICS_SIZE_MAX), path)
    except (CorruptFileError, FileNotFoundError):
        return {}  # the topics are those with directories


# --- globs ------------------------------------------------------------------------------------------------------------


def _places_like(at: _At, named: Collection[str]) -> Iterator[LogPlace]:
    """The places that match a pattern: ``*``, ``?``, ``[a-z]`` within a name, and ``{one,other}``."""
    path = str(at.location.path)
    matches: dict[str, _At] = {}
    for pattern in _alternatives(path):
        parts = pattern.strip("/").split("/")
        prefix = at.url[: len(at.url) - len(path)] if at.url.endswith(path) else ""
        root = _At(prefix + "/", at.location._replace(path=at.location.path.__class__("/")))
        for match in _matches(root, parts):
            matches[match.url] = match
    for match in matches.values():
        is_partition = topic_partition(match.name)
        if marked_topic_partition(match.name) or (is_partition and _is_hidden(is_partition.topic, named)):
            continue
        with suppress(NotALogError):  # a pattern matches files too
            names = match.names()
            if names is not None:
                yield from _places_in(match, names, named)
    if not matches:
        raise LogNotFoundError(errno.ENOENT, "nothing matches this pattern", at.location.url)


def _matches(at: _At, parts: list[str]) -> Iterator[_At]:
    """The paths below ``at`` whose names match ``parts``, one each."""
    if not parts:
        yield at
        return
    part, rest = parts[0], parts[1:]
    if not MAGIC.search(part):
        child = at.child(part)
        if rest or child.location.fs.exists(child.location.path):
            yield from _matches(child, rest)
        return
    fits = re.compile(translate(part)).match
    try:
        names = at.names()
    except NotALogError:
        return
    for name in sorted(names or ()):
        if fits(name) and (part.startswith(".") or not name.startswith(".")):
            yield from _matches(at.child(name), rest)


def _alternatives(pattern: str) -> list[str]:
    """``a{b,c}d`` -> ``abd``, ``acd``."""
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        one = waiting.pop()
        group = BRACES.search(one)
        if group is None:
            done.append(one)
        else:
            waiting += [one[: group.start()] + choice + one[group.end() :] for choice in group[1].split(",")]
        if len(done) + len(waiting) > PATTERNS_MAX:
            raise ConfigError(f"{pattern!r:.200} expands to over {PATTERNS_MAX} paths")
    return done
