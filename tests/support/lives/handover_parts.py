"""Stores to hand over, and what is in them."""

from __future__ import annotations

import uuid
from pathlib import Path

from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.upkeep.handover import HandoverReport

ID_A, ID_B = uuid.UUID(int=0xA << 64), uuid.UUID(int=0xB << 64)
IDS = {"a": ID_A, "b": ID_B}
START_A = 7
SEGMENT_BYTES = 1024
Tree = dict[str, tuple[object, ...]]


def two_logs(root: Path) -> Path:
    """Two logs, closed cleanly: a-0 begins at offset 7, inside a segment; b-0 has several segments."""
    with Log(root / "a-0") as log:
        for number in range(10):
            log.append_many([b"%d.%d" % (number, part) for part in range(3)])
        log.delete_records(START_A)
    with Log(root / "b-0", segment_bytes=SEGMENT_BYTES) as log:
        for _ in range(12):
            log.append(bytes(300))
    return root


def tree(root: Path) -> Tree:
    """Everything that a write would change: inode, mode, size, time of change, and bytes."""
    seen: Tree = {}
    for path in (root, *sorted(root.rglob("*"))):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        seen[str(path)] = (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, content)
    return seen


def refused(report: HandoverReport, before: Tree, root: Path, *words: str) -> None:
    assert not report.is_whole
    assert all(any(word in line for line in report.refused) for word in words), report.refused
    assert report.steps == []
    assert {path: known[-1] for path, known in tree(root).items()} == {
        path: known[-1] for path, known in before.items()
    }


A, B = TopicPartition("a", 0), TopicPartition("b", 0)
Rows = list[tuple[int, bytes | None]]


def rows(directory: Path) -> Rows:
    with Log(directory, read_only=True) as log:
        return [(record.offset, record.value) for record in log.read()]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)
