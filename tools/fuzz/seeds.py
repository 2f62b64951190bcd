"""The starting inputs of fuzzing: a real broker's files, and small ones of kstore's own, of each codec and version."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.state.log_state import SLOT_SIZE, SLOTS_POSITION, LogState
from kstore.state.producer_snapshot import ProducerEntry, encode_snapshot
from tests.decoded import payloads
from tests.support.fakes.version_one import version_one_file
from tests.support.harness.golden_data import golden_root
from tests.support.lives.odd_batches import ODD, ODD_LEGACY
from tests.support.oracles.oracle_legacy import message, wrapper
from tools.fuzz.batches import batch_bounds

TREES = ("clean", "crashed", "recovered", "old")
BYTES_MAX = 4096
FILES_MAX = 24
TIME = 1_700_000_000_000
CODEC_NAMES = [codec.name for codec in CODECS]
# Small partitions of a broker, of both message formats, with transactions, gaps and open ends.
PARTITIONS = (
    ("clean", "keyed-2"),
    ("crashed", "txn-open-0"),
    ("crashed", "keyed-0"),
    ("old", "v0-gzip-0"),
    ("old", "v1-snappy-0"),
    ("old", "v1-compacted-0"),
    ("recovered", "keyed-1"),
)


def small_batches(codec: str, base_offset: int = 0) -> bytes:
    """Two batches of a few records with everything that a record can have."""
    records = [
        Record(base_offset, TIME, value=b"first"),
        Record(base_offset + 1, TIME + 5, key=b"key", value=None, headers=[("h", b"1"), ("none", None)]),
        Record(base_offset + 3, TIME + 2, key=b"", value=bytes(40)),
    ]
    others = [Record(base_offset + 4 + number, TIME + number, value=b"v%d" % number) for number in range(3)]
    return build_batch(records, codec=codec) + build_batch(
        others, codec=codec, producer_id=7, producer_epoch=1, base_sequence=3, log_append_time=TIME
    )


def small_sets(codec: str, magic: int) -> bytes:
    """The same of version 0 or 1: plain messages, and a wrapper if there is a codec."""
    plain = [message(offset, b"v%d" % offset, b"k", magic=magic, timestamp=TIME + offset) for offset in range(3)]
    if codec == "none":
        return b"".join(plain)
    inner = [
        message(number if magic else 3 + number, b"w%d" % number, magic=magic, timestamp=TIME + number)
        for number in range(3)
    ]
    return plain[0] + wrapper(inner, offset=5, codec=codec, magic=magic, timestamp=TIME + 2)


@cache
def batch_seeds() -> tuple[bytes, ...]:
    found = [small_batches(codec, base) for codec in CODEC_NAMES for base in (0, 40)]
    found += [small_sets(codec, magic) for magic in (0, 1) for codec in CODEC_NAMES[:4]]
    found += [small_sets("none", 1)[:-1] + b"", small_batches("none") + bytes(64)]
    found += [odd.data for odd in (*ODD.values(), *ODD_LEGACY.values())]
    for path in _golden("*.log")[:FILES_MAX]:
        data = path.read_bytes()
        stops = [stop for _, stop in batch_bounds(data) if stop <= BYTES_MAX]
        if stops:
            found.append(data[: stops[-1]])
    return tuple(found)


@cache
def run_seeds() -> tuple[bytes, ...]:
    """Batches, and those of two producers with transactions that are committed, aborted and left open."""
    fields: dict[str, Any] = {"producer_epoch": 1, "is_transactional": True}
    parts = []
    for number, (producer_id, kind) in enumerate(((5, None), (6, None), (5, "ABORT"), (6, "COMMIT"), (6, None))):
        key, value = b"k", b"value"
        if kind is not None:
            key, value = EndTransactionMarker(ControlRecordType[kind], 3).encode()
        record = Record(number, TIME + number, key=key, value=value)
        owned: dict[str, Any] = {
            "producer_id": producer_id,
            "base_sequence": -1 if kind else number,
            "is_control": kind is not None,
        }
        parts.append(build_batch([record], **fields, **owned))
    return (*batch_seeds(), b"".join(parts), b"".join(parts * 2))


@cache
def codec_seeds() -> tuple[bytes, ...]:
    """A byte that selects codec and version, and a compressed payload."""
    texts = (b"", b"a", bytes(5000), bytes(range(256)) * 3)
    whole = [
        bytes([codec.id | magic << 4]) + codec.compress(text, None)
        for codec in CODECS
        for magic in (0, 2)
        for text in texts
    ]
    # In pieces, cut, and with all that a format allows.
    return (*whole, *[bytes([row.codec_id | row.magic << 4]) + row.data for row in payloads()])


@cache
def file_seeds(pattern: str) -> tuple[bytes, ...]:
    """The distinct contents, or starts, of a broker's files of one kind."""
    return (b"", *dict.fromkeys(path.read_bytes()[:BYTES_MAX] for path in _golden(pattern)[: FILES_MAX * 4]))


@cache
def snapshot_seeds() -> tuple[bytes, ...]:
    entries = [ProducerEntry(7, 1, 4, 40, 2, TIME, 3, -1), ProducerEntry(9, 0, -1, -1, 0, TIME, -1, 12)]
    return (*file_seeds("*.snapshot"), encode_snapshot([]), encode_snapshot(entries))


@cache
def state_seeds() -> tuple[bytes, ...]:
    first = LogState(generation=1, durable_end=40, boot_id=bytes(range(16)))
    second = LogState("interval", True, 2, 40, 3, 60, bytes(16), 40, 1234, 500, 10**18)
    third = first._replace(generation=3, lost=((3, 5), (9, 9)), accepted=((20, 29),))
    slots = [state.encode().ljust(SLOT_SIZE, b"\0") for state in (second, first, third)]
    return (
        b"",
        slots[0],
        bytes(SLOTS_POSITION) + slots[0] + slots[1],
        bytes(SLOTS_POSITION) + slots[0] + slots[2],
        version_one_file(second),
        _own_log("none")["kstore.state"],
    )


@cache
def checkpoint_seeds() -> tuple[bytes, ...]:
    return (
        *file_seeds("*-checkpoint"),
        *file_seeds("partition.metadata"),
        *file_seeds(".kafka_cleanshutdown"),
        b'{"version":0,"brokerEpoch":399}',
        b"0\n2\norders 0 12\norders 1 9223372036854775807\n",
    )


@cache
def directory_files() -> tuple[dict[str, bytes], ...]:
    """Whole logs, as the content of each file by its name."""
    own = [_own_log(codec) for codec in CODEC_NAMES]
    own += [_legacy_log(codec, magic) for magic in (0, 1) for codec in ("none", "gzip")]
    return (*own, *(_partition(golden_root() / tree / name) for tree, name in PARTITIONS))


def _own_log(codec: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as directory:
        compression = "uncompressed" if codec == "none" else codec
        path = Path(directory) / "log"
        with Log(path, durability="os", compression_type=compression, index_interval_bytes=0) as log:  # type: ignore[arg-type]  # a parameter of the program
            for part in range(3):
                for number in range(3):
                    offset = part * 6 + number * 2
                    log.append_many([b"value %d" % offset, b"x" * 20], timestamps=[TIME + offset, TIME + offset])
                if part < 2:
                    log.roll()
        return _partition(path)


def _legacy_log(codec: str, magic: int) -> dict[str, bytes]:
    return {"00000000000000000000.log": small_sets(codec, magic) + small_batches("none", 6)}


def _partition(path: Path) -> dict[str, bytes]:
    # In an index with free space, the zeros after the first page add nothing.
    return {file.name: file.read_bytes()[: 4 * BYTES_MAX] for file in sorted(path.iterdir()) if file.name != ".lock"}


def _golden(pattern: str) -> list[Path]:
    """A broker's files, the smallest first."""
    paths = [path for tree in TREES for path in (golden_root() / tree).rglob(pattern) if path.stat().st_size]
    return sorted(paths, key=lambda path: (path.stat().st_size, str(path)))
