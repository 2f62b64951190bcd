"""The queues that kstore's is compared with: each puts, gets and acks items, one by one and in bulk.

``synced``: a put and an ack are on disk when they return; without it nothing is ever synced. In bulk each uses its own
means: one transaction, if its user can start one. Values are what each accepts: bytes, or text.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import kstore

__all__ = ["QUEUES", "QueueOf"]


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


class _Peer:
    """A queue as three functions; ``puts`` and ``gets`` surround very many of them, as a transaction."""

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
    """Accepts only text; its ``pop`` is its lease."""

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
    "persist-queue": PersistQueue,
    "litequeue": LiteQueue,
    "huey": HueyStorage,
    "diskcache": DiskcacheDeque,
}
