"""The stores that kstore is compared with, each in its fastest documented way as a log.

All keep values under numbers from 0. ``synced``: an append is on disk when it returns; without it nothing is ever
synced. A lookup sees the latest append, so lmdb starts a transaction for each.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple, Protocol

import kstore

# Larger than the data of any comparison.
MAP_BYTES = 1 << 30
CHUNK_BYTES = 1 << 20
KEY = struct.Struct("=Q")
# The trees that sort keys as bytes need the highest byte first.
SORTED_KEY = struct.Struct(">Q")


class Store(Protocol):
    """A log of values."""

    def append_many(self, values: Sequence[bytes]) -> object: ...
    def append(self, value: bytes) -> object: ...
    def values(self) -> Iterator[bytes | None]: ...
    def value_at(self, number: int) -> bytes | None: ...
    def close(self) -> None: ...


class KstoreLog:
    """One log; every read checks the CRC."""

    def __init__(self, path: Path, synced: bool) -> None:
        self._log = kstore.Log(path, durability="sync" if synced else "os")
        self.append_many = self._log.append_many
        self.append = self._log.append
        self.close = self._log.close

    def values(self) -> Iterator[bytes | None]:
        return iter(self._log.read_values())

    def value_at(self, number: int) -> bytes | None:
        record = self._log.get(number)
        assert record is not None
        return record.value


class SqliteTable:
    """A table of rowid and blob in WAL mode; a transaction for each append."""

    def __init__(self, path: Path, synced: bool) -> None:
        path.mkdir()
        self._base = sqlite3.connect(path / "log.db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute(f"PRAGMA synchronous = {'FULL' if synced else 'OFF'}")
        self._base.execute(f"PRAGMA mmap_size = {MAP_BYTES}")
        self._base.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    def append_many(self, values: Sequence[bytes]) -> None:
        self._base.execute("BEGIN")
        self._base.executemany("INSERT INTO log (value) VALUES (?)", zip(values, strict=True))
        self._base.execute("COMMIT")

    def append(self, value: bytes) -> None:
        self._base.execute("INSERT INTO log (value) VALUES (?)", (value,))

    def values(self) -> Iterator[bytes]:
        return map(itemgetter(0), self._base.execute("SELECT value FROM log ORDER BY number"))

    def value_at(self, number: int) -> bytes:
        # The first number that SQLite gives is 1.
        value: bytes = self._base.execute("SELECT value FROM log WHERE number = ?", (number + 1,)).fetchone()[0]
        return value

    def close(self) -> None:
        self._base.close()


class LmdbTree:
    """A tree of integer keys, appended to at its end; a transaction for each append."""

    def __init__(self, path: Path, synced: bool) -> None:
        import lmdb

        self._env = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=1, sync=synced, metasync=synced)
        self._tree = self._env.open_db(b"log", integerkey=True)
        self._next = 0

    def append_many(self, values: Sequence[bytes]) -> None:
        items = list(zip(map(KEY.pack, range(self._next, self._next + len(values))), values, strict=True))
        with self._env.begin(self._tree, write=True) as transaction:
            transaction.cursor().putmulti(items, append=True)
        self._next += len(values)

    def append(self, value: bytes) -> None:
        with self._env.begin(self._tree, write=True) as transaction:
            transaction.put(KEY.pack(self._next), value, append=True)
        self._next += 1

    def values(self) -> Iterator[bytes]:
        # The transaction ends with its last reference, the iterator's.
        return iter(self._env.begin(self._tree).cursor().iternext(keys=False, values=True))

    def value_at(self, number: int) -> bytes | None:
        with self._env.begin(self._tree) as transaction:
            found: bytes | None = transaction.get(KEY.pack(number))
        return found

    def close(self) -> None:
        self._env.close()


class RocksDb:
    """RocksDB with raw bytes and, like the others, without compression; a write batch for many."""

    def __init__(self, path: Path, synced: bool) -> None:
        from rocksdict import DBCompressionType, Options, Rdict, WriteBatch, WriteOptions

        options = Options(raw_mode=True)
        options.set_compression_type(DBCompressionType.none())
        write_options = WriteOptions()
        write_options.sync = synced
        self._base = Rdict(str(path), options)
        self._base.set_write_options(write_options)
        self._put, self.close = self._base.put, self._base.close
        self._batch = WriteBatch
        self._next = 0

    def append_many(self, values: Sequence[bytes]) -> None:
        batch = self._batch(raw_mode=True)
        put, pack = batch.put, SORTED_KEY.pack
        for number, value in enumerate(values, self._next):
            put(pack(number), value)
        self._base.write(batch)
        self._next += len(values)

    def append(self, value: bytes) -> None:
        self._put(SORTED_KEY.pack(self._next), value)
        self._next += 1

    def values(self) -> Iterator[bytes]:
        values: Iterator[bytes] = self._base.values()
        return values

    def value_at(self, number: int) -> bytes | None:
        value: bytes | None = self._base.get(SORTED_KEY.pack(number))
        return value


class LevelDb:
    """LevelDB without compression; a write batch for many."""

    def __init__(self, path: Path, synced: bool) -> None:
        import plyvel

        self._base = plyvel.DB(str(path), create_if_missing=True, compression=None)
        self._put, self.close = self._base.put, self._base.close
        self._synced = synced
        self._next = 0

    def append_many(self, values: Sequence[bytes]) -> None:
        pack = SORTED_KEY.pack
        with self._base.write_batch(sync=self._synced) as batch:
            put = batch.put
            for number, value in enumerate(values, self._next):
                put(pack(number), value)
        self._next += len(values)

    def append(self, value: bytes) -> None:
        self._put(SORTED_KEY.pack(self._next), value, sync=self._synced)
        self._next += 1

    def values(self) -> Iterator[bytes]:
        return iter(self._base.iterator(include_key=False))

    def value_at(self, number: int) -> bytes | None:
        value: bytes | None = self._base.get(SORTED_KEY.pack(number))
        return value


class PlainFile:
    """Values of one size, one after another: no checks, no offsets, no recovery. The minimal cost."""

    def __init__(self, path: Path, synced: bool) -> None:
        path.mkdir()
        self._fd = os.open(path / "values", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._synced = synced
        self._size = 0

    def append_many(self, values: Sequence[bytes]) -> None:
        self._size = len(values[0])
        self._write(b"".join(values))

    def append(self, value: bytes) -> None:
        self._size = len(value)
        self._write(value)

    def _write(self, data: bytes) -> None:
        os.write(self._fd, data)
        if self._synced:
            os.fdatasync(self._fd)

    def values(self) -> Iterator[bytes]:
        unpack = struct.Struct(f"{self._size}s").iter_unpack
        return chain.from_iterable(chain.from_iterable(map(unpack, self._chunks())))

    def _chunks(self) -> Iterator[bytes]:
        chunk_bytes = CHUNK_BYTES // self._size * self._size
        at = 0
        while chunk := os.pread(self._fd, chunk_bytes, at):
            at += len(chunk)
            yield chunk

    def value_at(self, number: int) -> bytes:
        return os.pread(self._fd, self._size, number * self._size)

    def close(self) -> None:
        os.close(self._fd)


class Peer(NamedTuple):
    """A store's name, and how to create one at an unused path."""

    name: str
    open: Callable[[Path, bool], Store]


PEERS: tuple[Peer, ...] = (
    Peer("kstore", KstoreLog),
    Peer("sqlite3, WAL", SqliteTable),
    Peer("lmdb", LmdbTree),
    Peer("RocksDB", RocksDb),
    Peer("LevelDB", LevelDb),
    Peer("plain file", PlainFile),
)
