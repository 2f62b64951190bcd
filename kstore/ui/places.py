"""The logs by their addresses. An address is looked up here and never becomes a path.

A topic's address is its name if Kafka could have given it, and otherwise a hash: a directory may have any name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kstore.engine.directory import is_log
from kstore.errors import NotALogError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.paths import classify, topic_partition
from kstore.upkeep.verify import find_logs, is_log_in

PLAIN = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}", re.ASCII)
# What follows a page's address for the same numbers as JSON.
TWIN = ".json"
# The name of a log whose directory has no partition's name.
NO_PARTITION = "log"


class Place(NamedTuple):
    """One log. ``root`` is the directory that holds it, ``number`` its place among all of them."""

    path: Path
    root: Path
    number: int
    topic: str
    partition: int | None

    @property
    def topic_key(self) -> str:
        return key_of(self.topic)

    @property
    def partition_key(self) -> str:
        return NO_PARTITION if self.partition is None else str(self.partition)

    @property
    def key(self) -> tuple[str, str, str]:
        """The parts of its address."""
        return str(self.number), self.topic_key, self.partition_key

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def topic_url(self) -> str:
        return f"/logs/{self.number}/{self.topic_key}"

    @property
    def url(self) -> str:
        return f"{self.topic_url}/{self.partition_key}"


class Places(NamedTuple):
    """All logs that were found, at one moment; ``problems`` are directories that could not be searched."""

    by_key: dict[tuple[str, str, str], Place]
    by_topic: dict[tuple[str, str], list[Place]]
    roots: list[Path]
    problems: list[str]


def key_of(name: str) -> str:
    """The part of an address that stands for a topic or a group."""
    if PLAIN.fullmatch(name) and not name.endswith(TWIN):
        return name
    # A character that no plain name has: one cannot be mistaken for the other.
    return "~" + hashlib.blake2b(os.fsencode(name), digest_size=10).hexdigest()


def ensure_logs(paths: Sequence[Path], fs: FileSystem) -> None:
    """Raises: NotALogError for a path that neither is nor holds a log; StorageError. It stops at the first log."""
    for path in paths:
        names = fs.list(path)
        if not is_log(classify(names)) and not any(is_log_in(path, name, fs=fs) for name in names):
            find_logs(path, fs=fs)


def find_places(paths: Sequence[Path], fs: FileSystem, roots: Sequence[Path] = ()) -> Places:
    """The logs in ``paths``, each once. Addresses number the ``roots`` that are known first: they stay the same."""
    problems: list[str] = []
    found: dict[Path, None] = {}
    for path in paths:
        try:
            found |= dict.fromkeys(find_logs(path, fs=fs))
        except (NotALogError, StorageError) as error:
            problems.append(str(error))
    numbers = {root: number for number, root in enumerate(dict.fromkeys([*roots, *(log.parent for log in found)]))}
    by_key: dict[tuple[str, str, str], Place] = {}
    by_topic: dict[tuple[str, str], list[Place]] = defaultdict(list)
    for log in found:
        owner = topic_partition(log.name)
        topic, partition = (log.name, None) if owner is None else (owner.topic, owner.partition)
        place = Place(log, log.parent, numbers[log.parent], topic, partition)
        by_key[place.key] = place
        by_topic[place.key[:2]].append(place)
    for members in by_topic.values():
        members.sort(key=lambda place: -1 if place.partition is None else place.partition)
    return Places(by_key, dict(by_topic), list(numbers), problems)
