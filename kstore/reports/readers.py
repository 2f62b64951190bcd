"""The readers of a store: the committed offsets of consumer groups, and the state of queues. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kstore.errors import KstoreError
from kstore.files.paths import TopicPartition
from kstore.queue.view import QueueCounts, QueueView
from kstore.rules.internal_topics import journal_of
from kstore.store import Store


class GroupPosition(NamedTuple):
    """Where a group continues in a partition, and when it said so."""

    group: str
    owner: TopicPartition
    committed: int
    commit_timestamp: int


class QueueState(NamedTuple):
    """A queue with what it holds; ``dead_count`` items were given up."""

    name: str
    counts: QueueCounts
    dead_count: int


@dataclass(slots=True)
class Readers:
    """All readers of the store in ``path``; ``problem`` is why they, or some of them, are not known, or ""."""

    path: Path
    positions: list[GroupPosition] = field(default_factory=list)
    queues: list[QueueState] = field(default_factory=list)
    problem: str = ""


def readers_of(path: Path, *, with_queues: bool) -> Readers:
    """The readers of the store, or broker's directory, in ``path``; counting a queue's items reads them."""
    readers = Readers(path)
    try:
        with Store(path, read_only=True) as store:
            readers.positions = [each for group in store.consumer_offsets.groups() for each in _positions(store, group)]
            readers.problem = store.consumer_offsets.unseen()
            if with_queues:
                readers.queues = list(_queues(store))
    except KstoreError as error:
        readers.problem = str(error)
    return readers


def _positions(store: Store, group: str) -> Iterator[GroupPosition]:
    for owner, committed in sorted(store.consumer_offsets.committed(group).items()):
        yield GroupPosition(group, owner, committed.offset, committed.commit_timestamp)


def _queues(store: Store) -> Iterator[QueueState]:
    """Those that can be read: the findings say why another one cannot."""
    topics = set(store.topics(internal=True))
    for name in sorted(topics):
        if journal_of(name) not in topics:
            continue
        with suppress(KstoreError):
            dead = f"{name}.dead"
            dead_count = _counts(store, dead, topics).pending if dead in topics else 0
            yield QueueState(name, _counts(store, name, topics), dead_count)


def _counts(store: Store, name: str, topics: set[str]) -> QueueCounts:
    journal = journal_of(name)
    return QueueView(store.log(name), store.log(journal) if journal in topics else None).counts()
