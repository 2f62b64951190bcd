"""The queues that kstore's is compared with: each puts, gets and acks items, one by one and in bulk.

``synced``: a put and an ack are on disk when they return; without it nothing is ever synced. In bulk each uses its own
means: one transaction, if its user can start one. Values are bytes or text, as each accepts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import kstore
from tools.bench.peers import KEY, MAP_BYTES


class KstoreQueue:
    def __init__(self, path: Path, synced: bool) -> None:
        self._store = kstore.open(path, durability="sync" if synced else "os")
        self._queue = self._store.queue("jobs")

    def one_by_one(self, value: bytes, count: int) -> None:
        queue = self._queue
        for _ in range(count):
            queue.put(value)
            queue.get().ack()

    def bulk(self, value: bytes, count: int) -> None:
        queue = self._queue
        queue.put_many([value] * count)
        done = 0
        while done < count:
            jobs = queue.get_many(count)
            queue.ack_many(jobs)
            done += len(jobs)

    def close(self) -> None:
        self._store.close()


class LmdbLease:
    """Two tables of lmdb, by hand: a put, a move to the leased, a delete. In bulk each is one transaction."""

    def __init__(self, path: Path, synced: bool) -> None:
        import lmdb

        self._env = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=2, sync=synced, metasync=synced)
        self._waiting = self._env.open_db(b"waiting", integerkey=True)
        self._leased = self._env.open_db(b"leased", integerkey=True)
        self._next = 0
        self.close = self._env.close

    def one_by_one(self, value: bytes, count: int) -> None:
        for _ in range(count):
            self.bulk(value, 1)

    def bulk(self, value: bytes, count: int) -> None:
        keys = [KEY.pack(number) for number in range(self._next, self._next + count)]
        self._next += count
        with self._env.begin(self._waiting, write=True) as transaction:
            transaction.cursor().putmulti([(key, value) for key in keys], append=True)
        with self._env.begin(write=True) as transaction:
            waiting = transaction.cursor(self._waiting)
            waiting.first()
            items = list(islice(iter(waiting), count))
            transaction.cursor(self._leased).putmulti(items, append=True)
            for key, _ in items:
                transaction.delete(key, db=self._waiting)
        with self._env.begin(self._leased, write=True) as transaction:
            for key, _ in items:
                transaction.delete(key)
        assert len(items) == count


class SqliteLease:
    """A table of SQLite in WAL mode, by hand: INSERT, UPDATE ... RETURNING, DELETE. In bulk each is a transaction."""

    def __init__(self, path: Path, synced: bool) -> None:
        path.mkdir()
        self._base = sqlite3.connect(path / "queue.db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute(f"PRAGMA synchronous = {'FULL' if synced else 'OFF'}")
        self._base.execute("CREATE TABLE queue (number INTEGER PRIMARY KEY, leased INTEGER, value BLOB NOT NULL)")
        self._base.execute("CREATE INDEX waiting ON queue (number) WHERE leased IS NULL")
        self.close = self._base.close

    def one_by_one(self, value: bytes, count: int) -> None:
        for _ in range(count):
            self.bulk(value, 1)

    def bulk(self, value: bytes, count: int) -> None:
        base = self._base
        base.execute("BEGIN")
        base.executemany("INSERT INTO queue (value) VALUES (?)", repeat((value,), count))
        base.execute("COMMIT")
        items = base.execute(
            "UPDATE queue SET leased = 1 WHERE number IN"
            " (SELECT number FROM queue WHERE leased IS NULL ORDER BY number LIMIT ?) RETURNING number, value",
            (count,),
        ).fetchall()
        base.execute("BEGIN")
        base.executemany("DELETE FROM queue WHERE number = ?", ((number,) for number, _ in items))
        base.execute("COMMIT")
        assert len(items) == count


class _Peer:
    """A queue as three functions; ``puts`` and ``gets`` surround bulk calls, as a transaction."""

    put: Callable[[Any], object]
    get: Callable[[], Any]
    ack: Callable[[Any], object] | None
    puts: Callable[[], Any] = nullcontext
    gets: Callable[[], Any] = nullcontext
    take: Callable[[bytes], Any] = bytes

    def one_by_one(self, value: bytes, count: int) -> None:
        given, put, get, ack = self.take(value), self.put, self.get, self.ack
        for _ in range(count):
            put(given)
            item = get()
            if ack is not None:
                ack(item)

    def bulk(self, value: bytes, count: int) -> None:
        given, put, get, ack = self.take(value), self.put, self.get, self.ack
        with self.puts():
            for _ in range(count):
                put(given)
        with self.gets():
            for _ in range(count):
                item = get()
                if ack is not None:
                    ack(item)


class PersistQueue(_Peer):
    def __init__(self, path: Path, synced: bool) -> None:
        from persistqueue import SQLiteAckQueue

        queue: Any = SQLiteAckQueue(str(path), auto_commit=True)
        if not synced:
            for connection in {id(base): base for base in (queue._putter, queue._getter)}.values():
                connection.execute("PRAGMA synchronous = OFF")
        self.put, self.get, self.ack = queue.put, queue.get, queue.ack
        self.close = queue.close


class LiteQueue(_Peer):
    """Accepts only text; its ``pop`` is the lease."""

    def __init__(self, path: Path, synced: bool) -> None:
        from litequeue import LiteQueue

        path.mkdir()
        queue = LiteQueue(path / "queue.db")
        queue.conn.execute(f"PRAGMA synchronous = {'FULL' if synced else 'OFF'}")
        self.put, self.get = queue.put, queue.pop
        self.ack = lambda message: queue.done(message.message_id)
        self.puts = queue.transaction  # a pop has its own
        self.close = queue.close

    @staticmethod
    def take(value: bytes) -> str:
        return value.hex()[: len(value)]


class HueyStorage(_Peer):
    """A got item is gone: there is nothing to ack."""

    ack = None

    def __init__(self, path: Path, synced: bool) -> None:
        from huey.storage import SqliteStorage

        path.mkdir()
        storage = SqliteStorage(filename=str(path / "huey.db"), fsync=synced)
        self.put, self.get, self.close = storage.enqueue, storage.dequeue, storage.close


class DiskcacheDeque(_Peer):
    """A got item is gone: there is nothing to ack."""

    ack = None

    def __init__(self, path: Path, synced: bool) -> None:
        from diskcache import Cache, Deque

        cache = Cache(str(path), eviction_policy="none", sqlite_synchronous=2 if synced else 0)
        deque = Deque.fromcache(cache)
        self.put, self.get = deque.append, deque.popleft
        self.puts = self.gets = deque.transact
        self.close = cache.close


QueueOf = Callable[[Path, bool], Any]
QUEUES: dict[str, QueueOf] = {
    "kstore": KstoreQueue,
    "lmdb by hand": LmdbLease,
    "sqlite3 by hand": SqliteLease,
    "persist-queue": PersistQueue,
    "litequeue": LiteQueue,
    "huey": HueyStorage,
    "diskcache": DiskcacheDeque,
}
# The fastest of what an application would write itself.
BY_HAND = ("lmdb by hand", "sqlite3 by hand")
