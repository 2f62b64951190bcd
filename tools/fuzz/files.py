"""Targets that are one file each: the three indexes, ``kstore.state``, and the small checkpoints."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from kstore.errors import (
    CorruptDataError,
    CorruptFileError,
    CorruptIndexError,
    IndexFullError,
    InvalidOffsetError,
    UnsupportedFormatError,
)
from kstore.files.checkpoint import (
    read_broker_epoch,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
    write_leader_epochs,
    write_offset_checkpoint,
    write_topic_id,
)
from kstore.files.local import SYSTEM_FS
from kstore.index import OffsetIndex, TimeIndex, TransactionIndex
from kstore.state.log_state import LogState, StateFile, read_state
from kstore.types import AbortedTransaction, OffsetPosition, TimestampOffset
from tools.fuzz.findings import expect, within_memory

BASE = 40
FAR = 2**31 - 1
INDEX_BYTES_MAX = 64 << 10
OFFSETS = (0, BASE - 1, BASE, BASE + 1, BASE + 100, BASE + FAR, BASE + FAR + 1, 2**63 - 1)


@cache
def _scratch_of(process: int) -> Path:
    given = os.environ.get("KSTORE_FUZZ_SCRATCH")
    if given:
        return Path(given)
    shared = Path("/dev/shm")
    parent = shared if shared.is_dir() and os.access(shared, os.W_OK) else None
    made = Path(tempfile.mkdtemp(prefix="kstore-fuzz-", dir=parent))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def scratch() -> Path:
    """A directory for this process, in memory if possible."""
    return _scratch_of(os.getpid())


def _write(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.write_bytes(data)
    return path


def offset_index(data: bytes) -> None:
    path = _write("fuzz.index", data)
    with within_memory(len(data)):
        index = OffsetIndex.open_read_only(SYSTEM_FS, path, BASE)
    entries = list(index.entries())
    try:
        index.check()
        sound = True
    except CorruptIndexError:
        sound = False
    for offset in (*OFFSETS, *(entry.offset for entry in entries[:8])):
        found, above = index.lookup(offset), index.ceiling(offset)
        expect(found in entries or found == OffsetPosition(BASE, 0), f"{found}, which is not an entry")
        if sound:
            below = [entry for entry in entries if entry.offset <= offset]
            expect(found == (below[-1] if below else OffsetPosition(BASE, 0)), f"{found} for {offset}")
            first = next((entry for entry in entries if entry.offset >= offset), None)
            expect((above[0] if above else None) == first, f"{above} for {offset}")
    for position in (-1, 0, 1, 100, FAR, FAR + 1, *(entry.position for entry in entries[:8])):
        behind = index.upper_bound(position)
        expect(behind is None or behind.position >= position, f"{behind} for position {position}")
        if sound and position >= 0:
            expect(behind == next((entry for entry in entries if entry.position >= position), None), f"{behind}")
    expect(OffsetIndex.from_bytes(data, BASE, live=True).entry_count <= len(entries), "more entries when live")

    def grow(writable: OffsetIndex) -> None:
        last = writable.last_entry
        writable.append(last.offset + 1, last.position + 1)

    _write_on(OffsetIndex, path, entries, grow)


def time_index(data: bytes) -> None:
    path = _write("fuzz.timeindex", data)
    with within_memory(len(data)):
        index = TimeIndex.open_read_only(SYSTEM_FS, path, BASE)
    entries = list(index.entries())
    try:
        index.check()
        sound = True
    except CorruptIndexError:
        sound = False
    for timestamp in (-1, 0, 1, 2**40, 2**63 - 1, 2**63, *(entry.timestamp for entry in entries[:8])):
        found = index.lookup(timestamp)
        expect(found in entries or found == TimestampOffset(-1, BASE), f"{found}, which is not an entry")
        if sound:
            below = [entry for entry in entries if entry.timestamp <= timestamp]
            expect(found == (below[-1] if below else TimestampOffset(-1, BASE)), f"{found} for {timestamp}")
    expect(TimeIndex.from_bytes(data, BASE, live=True).entry_count <= len(entries), "more entries when live")

    def grow(writable: TimeIndex) -> None:
        last = writable.last_entry
        if last.timestamp < 2**63 - 1:
            writable.maybe_append(last.timestamp + 1, last.offset)

    _write_on(TimeIndex, path, entries, grow)


def _write_on(kind: Any, path: Path, entries: list[Any], grow: Callable[[Any], None]) -> None:
    """A writer's starting point is sound, begins like the file, and is there when read again."""
    writable = kind.open_writable(SYSTEM_FS, path, BASE, index_bytes_max=INDEX_BYTES_MAX)
    try:
        writable.check()
        kept = list(writable.entries())
        expect(kept == entries[: len(kept)], "other entries than those of the file")
        try:
            grow(writable)
        except (IndexFullError, InvalidOffsetError):
            pass
        grown = list(writable.entries())
        writable.truncate_to(BASE + 100)
        expect(all(entry.offset < BASE + 100 for entry in writable.entries()), "entries that were cut")
        cut = list(writable.entries())
        expect(cut == grown[: len(cut)], "other entries than before the cut")
    finally:
        writable.close()
    expect(list(kind.open_read_only(SYSTEM_FS, path, BASE).entries()) == cut, "other entries when read again")


def transaction_index(data: bytes) -> None:
    path = _write("fuzz.txnindex", data)
    index = TransactionIndex.open(SYSTEM_FS, path, BASE)
    try:
        entries = list(index.entries())
    except CorruptIndexError:
        entries = None
    if entries is not None:
        for start, stop in ((0, 2**63 - 1), (BASE, BASE + 1), (100, 1000)):
            found = index.collect_aborted(start, stop).transactions
            overlapping = [entry for entry in entries if entry.last_offset >= start and entry.first_offset < stop]
            expect(found == overlapping[: len(found)], f"{found} for {start} to {stop}")
    index.close()
    writable = TransactionIndex.open(SYSTEM_FS, path, BASE, writable=True)
    last = min(max(writable.last_offset, BASE), 2**63 - 3) + 1
    try:
        writable.append(AbortedTransaction(7, last - 1, last, last + 1))
        if entries is not None:
            expect(list(writable.entries())[:-1] == entries, "other entries after an append")
        writable.truncate_to(BASE)
    except (CorruptIndexError, InvalidOffsetError):
        pass
    writable.truncate()
    writable.check()
    writable.close()


def state(data: bytes) -> None:
    path = _write("fuzz.state", data)
    try:
        found = read_state(SYSTEM_FS, path)
    except UnsupportedFormatError:
        return
    if found is not None:
        expect(LogState.decode(found.encode()) == found, f"{found}, which is encoded differently")
    handle = StateFile.open(SYSTEM_FS, path, mode=0o600)
    try:
        handle.store(LogState(durable_end=12))
        handle.publish_durable_end(15)
        read_again = read_state(SYSTEM_FS, path)
        expect(read_again is not None and read_again.durable_end == 15, f"{read_again} after a store")
    finally:
        handle.close()


def checkpoints(data: bytes) -> None:
    path = _write("fuzz.checkpoint", data)
    try:
        offsets = read_offset_checkpoint(SYSTEM_FS, path)
        write_offset_checkpoint(SYSTEM_FS, scratch() / "again", offsets)
        expect(read_offset_checkpoint(SYSTEM_FS, scratch() / "again") == offsets, "other offsets")
    except CorruptFileError:
        pass
    try:
        epochs = read_leader_epochs(SYSTEM_FS, path)
        write_leader_epochs(SYSTEM_FS, scratch() / "again", epochs)
        expect(read_leader_epochs(SYSTEM_FS, scratch() / "again") == epochs, "other epochs")
    except CorruptFileError:
        pass
    try:
        topic_id = read_topic_id(SYSTEM_FS, path)
        write_topic_id(SYSTEM_FS, scratch() / "again", topic_id)
        expect(read_topic_id(SYSTEM_FS, scratch() / "again") == topic_id, "another topic id")
    except CorruptDataError:
        pass
    epoch = read_broker_epoch(SYSTEM_FS, path)
    expect(isinstance(epoch, int), f"broker epoch {epoch!r}")
