"""A producer's peers: other ways for a Python program to hand over records, each at its fastest.

``send`` takes records one by one, ``send_many`` all at once; ``commit`` ends a group, and waits for those in progress.
A ``synced`` one is on disk when ``commit`` returns. A peer that cannot be used here raises ``Unavailable`` with the
reason.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import kstore
from kstore.producer._accumulate import Delivery
from tools.bench.peers import KEY, MAP_BYTES

TOPIC = "orders"
# More than any comparison has in progress: the peer never refuses a record.
QUEUE_RECORDS, QUEUE_KIB = 2_000_000, 1 << 21
FLUSH_SECONDS = 60
CHUNK_RECORDS = 100_000
SYSLOG_ERROR = 3


class Unavailable(Exception):
    """Why a peer is not measured, in words for the report."""


class Target(Protocol):
    """Where records go."""

    def send(self, values: Sequence[bytes]) -> object: ...
    def send_many(self, values: Sequence[bytes]) -> object: ...
    def commit(self) -> object: ...
    def count(self) -> int: ...
    def close(self) -> object: ...


class KstoreProducer:
    """One topic of one partition; ``acks=1`` if nothing is synced, else ``acks=all``."""

    def __init__(self, path: Path, synced: bool) -> None:
        self._store = kstore.open(path, durability="sync" if synced else "os")
        self._store.create_topic(TOPIC)
        self._producer = self._store.producer(acks="all" if synced else "1")
        self._last: Delivery | None = None

    def send(self, values: Sequence[bytes]) -> None:
        send = self._producer.send
        for value in values:
            self._last = send(TOPIC, value)

    def send_many(self, values: Sequence[bytes]) -> None:
        self._last = self._producer.send_many(TOPIC, values)[-1]

    def commit(self) -> None:
        """In one partition the last record arrives last."""
        assert self._last is not None
        self._last.result()

    def count(self) -> int:
        return self._store.log(TOPIC).end_offset

    def close(self) -> None:
        self._producer.close()
        self._store.close()


class ConfluentProducer:
    """confluent-kafka with its defaults, except for ``acks=1``, into librdkafka's mock broker: in memory."""

    def __init__(self, path: Path, synced: bool) -> None:
        if synced:
            raise Unavailable("its mock broker has no disk")
        try:
            from confluent_kafka import Producer
        except ImportError as error:
            raise Unavailable("not installed") from error
        path.mkdir()
        self._delivered = 0
        self._producer = Producer(
            {
                "bootstrap.servers": "mock",
                "test.mock.num.brokers": 1,
                "log_level": SYSLOG_ERROR,
                "acks": 1,
                "queue.buffering.max.messages": QUEUE_RECORDS,
                "queue.buffering.max.kbytes": QUEUE_KIB,
            }
        )
        # This creates the topic.
        self._producer.produce(TOPIC, b"first")
        self.commit()
        self._sent = 0

    def send(self, values: Sequence[bytes]) -> None:
        produce = self._producer.produce
        for value in values:
            produce(TOPIC, value)
        self._sent += len(values)

    def send_many(self, values: Sequence[bytes]) -> None:
        self._sent += self._producer.produce_batch(TOPIC, [{"value": value} for value in values])

    def commit(self) -> None:
        left = self._producer.flush(FLUSH_SECONDS)
        assert not left, f"{left} records are not delivered after {FLUSH_SECONDS} s"

    def count(self) -> int:
        return self._sent

    def close(self) -> None:
        self._producer.close()


class SqliteTable:
    """A table of rowid and blob in WAL mode; a transaction from one commit to the next."""

    def __init__(self, path: Path, synced: bool) -> None:
        path.mkdir()
        self._base = sqlite3.connect(path / "log.db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute(f"PRAGMA synchronous = {'FULL' if synced else 'OFF'}")
        self._base.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, value BLOB NOT NULL)")
        self._base.execute("BEGIN")
        self.close = self._base.close

    def send(self, values: Sequence[bytes]) -> None:
        execute = self._base.execute
        for value in values:
            execute("INSERT INTO log (value) VALUES (?)", (value,))

    def send_many(self, values: Sequence[bytes]) -> None:
        self._base.executemany("INSERT INTO log (value) VALUES (?)", zip(values, strict=True))

    def commit(self) -> None:
        self._base.execute("COMMIT")
        self._base.execute("BEGIN")

    def count(self) -> int:
        count: int = self._base.execute("SELECT count(*) FROM log").fetchone()[0]
        return count


class LmdbTree:
    """A tree of integer keys, appended to at its end; a transaction from one commit to the next."""

    def __init__(self, path: Path, synced: bool) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise Unavailable("not installed") from error
        self._env = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=1, sync=synced, metasync=synced)
        self._tree = self._env.open_db(b"log", integerkey=True)
        self._next = 0
        self._transaction = self._env.begin(self._tree, write=True)

    def send(self, values: Sequence[bytes]) -> None:
        put, pack = self._transaction.put, KEY.pack
        for number, value in enumerate(values, self._next):
            put(pack(number), value, append=True)
        self._next += len(values)

    def send_many(self, values: Sequence[bytes]) -> None:
        items = list(zip(map(KEY.pack, range(self._next, self._next + len(values))), values, strict=True))
        self._transaction.cursor().putmulti(items, append=True)
        self._next += len(values)

    def commit(self) -> None:
        self._transaction.commit()
        self._transaction = self._env.begin(self._tree, write=True)

    def count(self) -> int:
        count: int = self._transaction.stat(self._tree)["entries"]
        return count

    def close(self) -> None:
        self._transaction.abort()
        self._env.close()


class PersistQueue:
    """persist-queue: its file of pickles, its fastest; if synced its table, which syncs each ``put``.

    It has no call for many records, and no groups: each record is its own group.
    """

    def __init__(self, path: Path, synced: bool) -> None:
        try:
            from persistqueue import Queue, SQLiteQueue
        except ImportError as error:
            raise Unavailable("not installed") from error
        # On the same file system; otherwise it would warn.
        path.mkdir()
        self._queue = (
            SQLiteQueue(str(path)) if synced else Queue(str(path / "q"), chunksize=CHUNK_RECORDS, tempdir=str(path))
        )
        self.count = self._queue.qsize

    def send(self, values: Sequence[bytes]) -> None:
        put = self._queue.put
        for value in values:
            put(value)

    send_many = send

    def commit(self) -> None:
        """Each record is already committed."""

    def close(self) -> None:
        if hasattr(self._queue, "close"):
            self._queue.close()


class Peer(NamedTuple):
    """A target's name, how to create one at an unused path, and how much of it is measured.

    ``records`` is their number without syncs, ``commits`` that of synced ones. ``commits_itself``: without syncs it
    commits in the background; else after each thousand, on request.
    """

    name: str
    open: Callable[[Path, bool], Target]
    records: int
    commits: int = 60
    commits_itself: bool = False


PEERS: tuple[Peer, ...] = (
    Peer("kstore", KstoreProducer, 400_000, commits_itself=True),
    Peer("confluent-kafka", ConfluentProducer, 200_000, commits_itself=True),
    Peer("lmdb", LmdbTree, 200_000),
    Peer("sqlite3", SqliteTable, 200_000),
    Peer("persist-queue", PersistQueue, 1_000, commits=1),
)

# Otherwise it logs each step.
logging.getLogger("persistqueue").setLevel(logging.WARNING)
