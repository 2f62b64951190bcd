"""An object store of terabytes that is not there: ``far://``, for fsspec, in this process.

Each partition has the same segments. Their bytes are made when they are read: one batch again and again, whose base
offset alone differs, which its CRC does not cover. Each request takes a time, and so do the bytes of one connection.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

from kstore.files.paths import KSTORE_STATE, PARTITION_METADATA
from kstore.indexes.offset_index import ENTRY
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.state.log_state import SLOTS_POSITION, LogState
from kstore.state.producer_snapshot import encode_snapshot

spec: Any = import_module("fsspec.spec")
WHEN = datetime(2026, 1, 1, 1, 1, 1, 123_456, UTC)
# Object stores list so many files in one answer.
PAGE_FILES = 1_000
RECORDS_A_BATCH = 1_000


class Shape(NamedTuple):
    """How much there is, and how far away. ``rate``: bytes a second of one connection."""

    partitions: int = 5_000
    segments: int = 10
    segment_bytes: int = 200 << 20
    record_bytes: int = 120
    seconds: float = 0.02
    rate: float = 100e6
    # Whether each log has a producer snapshot at its end, as brokers leave them when they stop.
    has_snapshots: bool = True


class FarStore(spec.AbstractFileSystem):  # type: ignore[misc]
    """``far://bucket/store``: directories orders-0, orders-1, ..."""

    protocol = "far"
    cachable = False
    shape = Shape()
    requests = 0
    # What has been appended to a partition: batches.
    grown: ClassVar[dict[int, int]] = {}
    _lock = threading.Lock()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        shape = self.shape
        records = [
            Record(number, 1_700_000_000_000 + number, key=b"user-%d" % (number % 77), value=b"v" * shape.record_bytes)
            for number in range(RECORDS_A_BATCH)
        ]
        self._batch = build_batch(records)
        self._batch_count = shape.segment_bytes // len(self._batch)
        self._log_bytes = self._batch_count * len(self._batch)
        end = shape.segments * self._batch_count * RECORDS_A_BATCH
        state = LogState("os", recovery_point=end, durable_end=end, generation=1).encode()
        self._small = {
            KSTORE_STATE: (bytes(SLOTS_POSITION) + state).ljust(4096, b"\0"),
            PARTITION_METADATA: b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        }
        if shape.has_snapshots:
            self._small[f"{end:020d}.snapshot"] = encode_snapshot([])
        self._entries = [
            ENTRY.pack((number + 1) * RECORDS_A_BATCH - 1, number * len(self._batch))
            for number in range(1, self._batch_count)
        ]

    # --- what is there ------------------------------------------------------------------------------------------------

    def _sizes(self, partition: int) -> dict[str, int]:
        """The files of a partition."""
        found = {name: len(data) for name, data in self._small.items()}
        for segment in range(self.shape.segments):
            stem = f"{segment * self._batch_count * RECORDS_A_BATCH:020d}"
            found |= {f"{stem}.log": self._log_bytes, f"{stem}.index": 8 * len(self._entries), f"{stem}.timeindex": 0}
        found[f"{stem}.log"] += self.grown.get(partition, 0) * len(self._batch)
        return found

    def _entry(self, name: str, size: int) -> dict[str, Any]:
        return {"name": name, "size": size, "type": "file", "created": WHEN, "ETag": f"{size}"}

    def _bytes(self, name: str, start: int, stop: int) -> bytes:
        if name in self._small:
            return self._small[name][start:stop]
        if name.endswith("index"):
            return b"".join(self._entries)[start:stop] if name.endswith(".index") else b""
        base, size = int(name.partition(".")[0]), len(self._batch)
        first, last = start // size, -(-stop // size)
        batches = [
            (base + number * RECORDS_A_BATCH).to_bytes(8, "big") + self._batch[8:] for number in range(first, last)
        ]
        return b"".join(batches)[start - first * size : stop - first * size]

    # --- requests -----------------------------------------------------------------------------------------------------

    def _asked(self, count: int = 1, size: int = 0) -> None:
        with self._lock:
            FarStore.requests += count
        time.sleep(count * self.shape.seconds + size / self.shape.rate)

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[dict[str, Any]]:
        name = path.strip("/")
        if name == "bucket/store":
            entries = [
                {"name": f"{name}/orders-{number}", "size": 0, "type": "directory"}
                for number in range(self.shape.partitions)
            ]
        else:
            partition = int(name.rpartition("-")[2])
            entries = [self._entry(f"{name}/{each}", size) for each, size in self._sizes(partition).items()]
        self._asked(1 + len(entries) // PAGE_FILES)
        return entries

    def find(
        self, path: str, maxdepth: Any = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        top = path.strip("/")
        found = {}
        for partition in range(self.shape.partitions):
            for each, size in self._sizes(partition).items():
                name = f"{top}/orders-{partition}/{each}"
                found[name] = self._entry(name, size)
        self._asked(1 + len(found) // PAGE_FILES)
        return found

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        directory, _, name = path.strip("/").rpartition("/")
        self._asked()
        size = self._sizes(int(directory.rpartition("-")[2])).get(name)
        if size is None:
            raise FileNotFoundError(path)
        return self._entry(path.strip("/"), size)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        directory, _, name = path.strip("/").rpartition("/")
        size = self._sizes(int(directory.rpartition("-")[2])).get(name)
        if size is None:
            raise FileNotFoundError(path)
        stop = size if end is None else min(end, size)
        data = self._bytes(name, start or 0, stop)
        self._asked(size=len(data))
        return data


def register() -> None:
    """Makes ``far://`` known to fsspec."""
    import_module("fsspec").register_implementation("far", FarStore, clobber=True)
