"""The target of a whole log: any files with any names in a directory, opened for reading and for writing.

An input is the files one after another: uint8 length of the name | name | uint32 size | content.
"""

from __future__ import annotations

import logging
import random
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

from kstore.errors import CorruptBatchError, CorruptDataError, KstoreError
from kstore.log import Log
from kstore.record._codec import Record
from tools.fuzz.batches import mend_snapshot, mend_state, mutate_batches
from tools.fuzz.files import scratch
from tools.fuzz.findings import UNCOMPRESSED_BYTES_MAX, expect
from tools.fuzz.mutate import Mutator, mended, mutate
from tools.fuzz.seeds import TIME, directory_files

FILES_MAX = 16
FILE_BYTES_MAX = 64 << 10
# How a file is damaged, by the end of its name.
MUTATORS: tuple[tuple[str, Mutator], ...] = (
    (".log", mutate_batches),
    (".snapshot", mended(mutate, mend_snapshot)),
    ("kstore.state", mended(mutate, mend_state)),
    ("", mutate),
)
LOOKUPS_MAX = 6


def pack(files: dict[str, bytes]) -> bytes:
    return b"".join(
        bytes([len(name.encode())]) + name.encode() + struct.pack(">I", len(data)) + data
        for name, data in files.items()
    )


def unpack(data: bytes) -> dict[str, bytes]:
    """The files that ``data`` names, as far as they can be created."""
    files: dict[str, bytes] = {}
    at = 0
    while at < len(data) and len(files) < FILES_MAX:
        raw = data[at + 1 : at + 1 + data[at]]
        at += 1 + data[at]
        size = int.from_bytes(data[at : at + 4], "big")
        at += 4
        name = raw.decode("ascii", "replace").replace("\ufffd", "_")
        if name.strip(".") and "/" not in name and "\0" not in name:
            files[name] = data[at : at + min(size, FILE_BYTES_MAX)]
        at += size
    return files


def directory_seeds() -> list[bytes]:
    return [pack(files) for files in directory_files()]


def mutate_directory(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    files = unpack(data)
    if not files or rng.random() < 0.05:
        return mutate(data, rng, pool)
    other = unpack(rng.choice(pool)) if pool else {}
    for _ in range(rng.randint(1, 2)):
        name = rng.choice(list(files))
        # Most can go wrong in the log itself.
        if rng.random() < 0.5:
            name = rng.choice([found for found in files if found.endswith(".log")] or [name])
        step = rng.random()
        if step < 0.05 and len(files) > 1:
            del files[name]
        elif step < 0.1 and other:
            taken = rng.choice(list(other))
            files[taken] = other[taken]
        elif step < 0.15:
            files[f"{rng.choice((0, 1, 6, 12, 40, 2**31, 2**63 - 1)):020d}{Path(name).suffix}"] = files[name]
        else:
            mutator = next(mutator for end, mutator in MUTATORS if name.endswith(end))
            files[name] = mutator(files[name], rng, [other[name]] if name in other else ())
    return pack(files)


def directory(data: bytes) -> None:
    """Opens, reads in every way, then writes: damage is reported, and not raised if it should be skipped."""
    path = scratch() / "log"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, content in unpack(data).items():
        (path / name).write_bytes(content)
    logging.disable()
    viewed = _look(path)
    _write(path, viewed)


def _look(path: Path) -> dict[int, Record] | None:
    """The records that a reader gets; None if the log cannot be opened."""
    try:
        log = _open(path, read_only=True)
    except CorruptDataError:
        raise
    except KstoreError:
        return None
    with log:
        found = _served(log)
        for isolation_level in ("read_uncommitted", "read_committed"):
            _read_strictly(log, isolation_level, found)
        _look_up(log, found)
        log.offset_for_time(TIME)
        log.offset_for_time("max_timestamp")
        log.verify()
    return found


def _write(path: Path, viewed: dict[int, Record] | None) -> None:
    try:
        log = _open(path)
    except CorruptDataError:
        raise
    except KstoreError:
        return
    with log:
        found = _served(log)
        for offset in found.keys() & (viewed or {}).keys():
            expect(viewed is not None and found[offset] == viewed[offset], f"another record {offset} for the writer")
        end = log.end_offset
        if end < log.start_offset:
            return  # what was between is lost: nothing can be read there
        try:
            appended = log.append(b"behind it all", timestamp=TIME)
        except KstoreError as error:
            expect(end >= 2**62, f"no append at {end}: {error}")
            return
        expect(appended >= end, f"offset {appended} after an end of {end}")
        found[appended] = Record(appended, TIME, value=b"behind it all", leader_epoch=_epoch_of(log, appended))
        expect(_served(log) == found, "other records after an append")
    with _open(path) as log:
        expect(_served(log) == found, "other records when opened again")
        expect(log.end_offset == appended + 1, f"an end of {log.end_offset} after {appended}")


def _open(path: Path, *, read_only: bool = False) -> Log:
    return Log(path, read_only=read_only, durability="os", max_batch_bytes_uncompressed=UNCOMPRESSED_BYTES_MAX)


def _epoch_of(log: Log, offset: int) -> int:
    return next(iter(log.read(offset))).leader_epoch


def _served(log: Log) -> dict[int, Record]:
    """Everything that can be read; offsets increase within the log, and skipped records are not served."""
    reader = log.read(on_corrupt="skip")
    found: dict[int, Record] = {}
    last = -1
    for record in reader:
        expect(last < record.offset, f"offset {record.offset} behind {last}")
        last = record.offset
        found[last] = record
    expect(all(log.start_offset <= offset < log.end_offset for offset in found), "offsets outside the log")
    for lost in reader.corrupt:
        expect(not any(lost.first <= offset <= lost.last for offset in found), f"{lost}, but records of it are served")
    expect(list(log.read_values(on_corrupt="skip")) == [record.value for record in found.values()], "other values")
    return found


def _read_strictly(log: Log, isolation_level: str, found: dict[int, Record]) -> None:
    try:
        strict = list(log.read(isolation_level=isolation_level))  # type: ignore[arg-type]  # one of the two
    except CorruptDataError:
        return
    expect(all(found.get(record.offset) == record for record in strict), "other records than with 'skip'")
    if isolation_level == "read_uncommitted":
        expect(len(strict) == len(found), "fewer records, but no error")


def _look_up(log: Log, found: dict[int, Record]) -> None:
    """Single records, through the index: the same ones."""
    offsets = list(found)
    for offset in offsets[:: max(len(offsets) // LOOKUPS_MAX, 1)]:
        expect(next(iter(log.read(offset, on_corrupt="skip")), None) == found[offset], f"another record {offset}")
    if offsets:
        try:
            log.fetch(offsets[-1]).read()
        except CorruptBatchError:
            pass
