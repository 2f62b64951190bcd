"""Writes ``kstore.state`` as version 1 of the format, which kstore itself only reads."""

from __future__ import annotations

import struct
from pathlib import Path

import crc32c

from kstore.state.log_state import LogState
from kstore.types import DURABILITIES

RECORD = struct.Struct(">4shbbqqqq16sqqqqq")
SLOT_SIZE = 512
FILE_SIZE = 4096


def encode_version_one(state: LogState) -> bytes:
    record = RECORD.pack(
        b"KST1",
        1,
        DURABILITIES.index(state.durability),
        1 if state.clean else 0,
        state.generation,
        state.recovery_point,
        state.log_start_offset,
        state.durable_end,
        state.boot_id,
        state.clean_base,
        state.clean_inode,
        state.clean_size,
        state.clean_mtime_ns,
        max(state.txn_bytes, 0),
    )
    return record + struct.pack(">I", crc32c.crc32c(record))


def version_one_file(*states: LogState) -> bytes:
    """A whole file with each of ``states``, at most two, in the slot of its generation."""
    slots = [bytes(SLOT_SIZE), bytes(SLOT_SIZE)]
    for state in states:
        slots[state.generation % 2] = encode_version_one(state).ljust(SLOT_SIZE, b"\0")
    return b"".join(slots).ljust(FILE_SIZE, b"\0")


def restamp(directory: Path) -> bool:
    """Makes the clean mark of a copied log fit the copy's inode and time; returns whether the log has one."""
    path = directory / "kstore.state"
    data = bytearray(path.read_bytes())
    slots = {at: LogState.decode_old(bytes(data[at : at + SLOT_SIZE])) for at in (0, SLOT_SIZE)}
    at, state = max(
        ((at, state) for at, state in slots.items() if state is not None), key=lambda slot: slot[1].generation
    )
    if not state.clean:
        return False
    stat = (directory / f"{state.clean_base:020d}.log").stat()
    assert stat.st_size == state.clean_size
    state = state._replace(clean_inode=stat.st_ino, clean_mtime_ns=stat.st_mtime_ns)
    record = encode_version_one(state)
    data[at : at + len(record)] = record
    path.write_bytes(data)
    return True
