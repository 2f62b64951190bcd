"""A log's life for ``strace`` to watch: prints, as JSON lines, the requests to its file system.

usage: python -m tests.crash.strace_life DIRECTORY

It uses every operation of ``FileSystem``: appends of each durability, rolls, growing indexes, flushes,
truncations, deleted records, retention, compaction, transactions, foreign batches, closes, opens, recovery, and a store
with its checkpoints.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kstore.files.local import SYSTEM_FS
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.store import Store
from kstore.types import Durability
from tests.support.fakes.fake_fs import CHANGES, READS, RecordingFs

DURABILITIES: tuple[Durability, ...] = ("sync", "interval", "os")
TIME = 1_700_000_000_000


def live(fs: RecordingFs, directory: Path) -> None:
    for durability in DURABILITIES:
        path = directory / f"{durability}-0"
        write(fs, path, durability)
        change(fs, path, durability)
        recover(fs, path, durability)
    compact(fs, directory / "compacted-0")
    transactions(fs, directory / "transactions-0")
    store(fs, directory / "store")


def write(fs: RecordingFs, path: Path, durability: Durability) -> None:
    with Log(path, durability=durability, fs=fs, segment_bytes=4096, index_interval_bytes=0, flush_messages=8) as log:
        for number in range(60):
            log.append(b"value %d" % number, key=b"key %d" % (number % 5))
        log.append_many([b"x" * 100] * 20)
        log.roll()
        log.flush()


def change(fs: RecordingFs, path: Path, durability: Durability) -> None:
    # Small steps, so that one segment's index grows more than once.
    with Log(path, durability=durability, fs=fs, index_interval_bytes=0, file_delete_delay_ms=0) as log:
        for _ in range(600):
            log.append(b"y" * 10)
        log.truncate_to(500)
        log.truncate_to(70)
        log.append(b"behind the cut")
        log.delete_records(30)
        log.append(b"z")
    with Log(path, durability=durability, fs=fs, retention_bytes=100, segment_bytes=1024) as log:
        for _ in range(20):
            log.append(b"r" * 100)
        log.apply_retention()
        writer_of(log).truncate_fully_and_start_at(1000)
        log.append(b"anew")


def recover(fs: RecordingFs, path: Path, durability: Durability) -> None:
    """The state after a crash: no state file, a torn tail, and a whole batch after a damaged one."""
    with Log(path, durability=durability, fs=fs) as log:
        for _ in range(5):
            log.append(b"to be recovered")
    file = fs.open(next(iter(sorted(path.glob("*.log"), reverse=True))), write=True)
    size = file.size()
    file.write_all([b"torn"], size)
    file.close()
    fs.unlink(path / "kstore.state")
    with Log(path, durability=durability, fs=fs) as log:
        assert log.recovery.cut, "the tail is torn"
        log.append(b"after")


def compact(fs: RecordingFs, path: Path) -> None:
    with Log(path, fs=fs, segment_bytes=2000) as log:
        for number in range(50):
            log.append(b"value %d" % number, key=b"key %d" % (number % 3))
        log.roll()
        log.compact()
        log.append(b"last", key=b"k")


def transactions(fs: RecordingFs, path: Path) -> None:
    with Log(path, fs=fs) as log:
        for number, commit in enumerate((True, False)):
            record = Record(0, TIME, value=b"of a transaction")
            data = build_batch([record], producer_id=7, producer_epoch=0, base_sequence=number, is_transactional=True)
            log.append_batches(data)
            log.end_transaction(7, 0, commit=commit)
            log.roll()
        log.truncate_to(2)


def store(fs: RecordingFs, path: Path) -> None:
    with Store(path, fs=fs, background=False) as opened:
        opened.create_topic("orders", partitions=2)
        opened.log("orders", 0).append(b"x")
        opened.log("orders", 1).append(b"y")
        opened.checkpoint()
        opened.delete_topic("orders")
        opened.run_due_tasks()


def main() -> None:
    fs = RecordingFs(SYSTEM_FS)
    live(fs, Path(sys.argv[1]))
    for operation in fs.operations:
        if operation.kind in CHANGES | (READS - {"pread", "list", "stat"}):
            sizes = (operation.position, operation.size, len(operation.data))
            print(json.dumps([operation.kind, operation.path, *sizes, operation.target]))


if __name__ == "__main__":
    main()
