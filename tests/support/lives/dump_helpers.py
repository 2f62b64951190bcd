"""Small files for ``kstore dump-log``, in the current directory; the fixture ``dump`` makes a new one."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

from kstore.record._codec import Record
from kstore.record.builder import build_batch

T = 1_700_000_000_000
BASE = "00000000000000000000"

# Runs the command with arguments; returns its status, standard output and standard error.
Dump = Callable[..., tuple[int, str, str]]


def record(offset: int, value: bytes | None = b"v", key: bytes | None = None, timestamp: int = T) -> Record:
    return Record(offset, timestamp + offset, "CreateTime", key, value)


def batch(first: int, stop: int, **options: object) -> bytes:
    return build_batch([record(offset) for offset in range(first, stop)], base_offset=first, **options)  # type: ignore[arg-type]


def write_log(*parts: bytes, base: str = BASE) -> list[int]:
    """Writes a .log into the current directory; returns where its parts begin."""
    Path(f"{base}.log").write_bytes(b"".join(parts))
    return [sum(map(len, parts[:index])) for index in range(len(parts))]


def write_index(*index_entries: tuple[int, int], base: str = BASE) -> None:
    Path(f"{base}.index").write_bytes(b"".join(struct.pack(">ii", *entry) for entry in index_entries))


def write_time_index(*index_entries: tuple[int, int], base: str = BASE) -> None:
    Path(f"{base}.timeindex").write_bytes(b"".join(struct.pack(">qi", *entry) for entry in index_entries))


def flip(path: str, at: int) -> None:
    data = bytearray(Path(path).read_bytes())
    data[at] ^= 0x10
    Path(path).write_bytes(data)


def objects(out: str, kind: str) -> list[dict[str, object]]:
    return [parsed for parsed in map(json.loads, out.splitlines()) if parsed["type"] == kind]
