"""What kstore writes for Kafka to open: one scenario for each partition directory, each with its own history."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from kstore.log import writer_of
from tests.interop.author import Author, Content, content
from tests.interop.killed_writer import BATCH_RECORD_COUNT, record_at
from tests.support.harness import golden_data
from tests.support.oracles import oracle_legacy
from tools.interop.records import Row, read_consumed

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# Their names in a topic's settings, and their numbers in a batch.
COMPRESSION_TYPES = {codec: codec for codec in CODECS} | {"none": "uncompressed"}
CODEC_IDS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
SMALL_SEGMENT_BYTES = 16 * 1024
DENSE_INDEX_BYTES = 256
ROOMY_BYTES = 1 << 20


@dataclass(frozen=True)
class Scenario:
    """``write`` makes a log in a directory that does not exist yet, and returns its rows."""

    name: str
    write: Callable[[Path], list[Row]]
    # The topic's settings at the broker: those that affect the files are the log's.
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    # A log that no writer closed is for a broker that expects a crash.
    is_closed: bool = True
    # Kafka's dump tool reports such a log as faulty even with its own broker's indexes: for entries of batches of the
    # old formats, and for a batch that compaction emptied, whose header keeps a time.
    has_known_faults: bool = False
    # It has transaction markers: offsets without a record.
    has_markers: bool = False
    # Some of its indexes are a broker's, with another interval between their entries.
    has_foreign_indexes: bool = False


def plain(directory: Path) -> list[Row]:
    with Author(directory, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(400, "plain"), batch_count=60)
        return author.rows


def durable(directory: Path) -> list[Row]:
    with Author(directory, durability="sync") as author:
        author.append(content(30, "durable"), batch_count=10)
        return author.rows


def one_by_one(directory: Path) -> list[Row]:
    with Author(directory, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(50, "one by one", has_headers=True), batch_count=50)
        return author.rows


def empty(directory: Path) -> list[Row]:
    with Author(directory) as author:
        return author.rows


def compressed(codec: str) -> Callable[[Path], list[Row]]:
    def write(directory: Path) -> list[Row]:
        with Author(
            directory, compression_type=COMPRESSION_TYPES[codec], index_interval_bytes=DENSE_INDEX_BYTES
        ) as author:
            author.append(content(200, codec, has_headers=True), batch_count=10)
            # Over the block size of each codec, once text and once noise.
            author.append(content(1500, f"{codec}, long", has_headers=True))
            noise = [random.Random(codec).randbytes(200_000)]
            author.append(Content([*noise, bytes(300_000)], [None, b"zeros"], [1, 2], [(), ()]))
            return author.rows

    return write


def mixed_codecs(directory: Path) -> list[Row]:
    rows: list[Row] = []
    for codec in (*CODECS, *reversed(CODECS)):
        with Author(directory, rows, compression_type=COMPRESSION_TYPES[codec]) as author:
            author.append(content(40, f"mixed {codec}"), batch_count=3)
            rows = author.rows
    return rows


def headers(directory: Path) -> list[Row]:
    with Author(directory) as author:
        author.append(content(150, "headers", has_headers=True), batch_count=12)
        many = tuple((f"h{number}", str(number).encode()) for number in range(300))
        odd: tuple[tuple[str, bytes | None], ...] = (("", None), ("", b""), ("a\nb\0", b"c\nd\0\xff"), ("日志", None))
        author.append(Content([b"many", b"odd"], [None, b""], [5, 6], [many, odd]))
        return author.rows


def null_and_empty(directory: Path) -> list[Row]:
    options = (None, b"", b"x")
    pairs = [(key, value) for key in options for value in options]
    records = Content([v for _, v in pairs], [k for k, _ in pairs], list(range(len(pairs))), [()] * len(pairs))
    with Author(directory) as author:
        author.append(records)
        author.append(records, batch_count=len(pairs))
        return author.rows


def rolled(directory: Path) -> list[Row]:
    with Author(directory, segment_bytes=SMALL_SEGMENT_BYTES, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(900, "rolled"), batch_count=150)
        assert len(list(directory.glob("*.log"))) > 3
        return author.rows


def index_full(directory: Path) -> list[Row]:
    with Author(directory, segment_index_bytes=96, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(300, "index full"), batch_count=60)
        assert len(list(directory.glob("*.log"))) > 3
        return author.rows


def append_time(directory: Path) -> list[Row]:
    settings: dict[str, Any] = {
        "message_timestamp_type": "LogAppendTime",
        "index_interval_bytes": DENSE_INDEX_BYTES,
    }
    rows: list[Row] = []
    for codec in ("none", "lz4"):
        with Author(directory, rows, compression_type=COMPRESSION_TYPES[codec], **settings) as author:
            author.append(content(120, f"append time {codec}"), batch_count=20)
            rows = author.rows
    return rows


def unordered_time(directory: Path) -> list[Row]:
    rng = random.Random("unordered time")
    records = content(300, "unordered time")
    times = [time + rng.randrange(-2_000, 2_000) for time in records.timestamps]
    times[150], times[200] = times[150] + 5_000_000, 0
    with Author(directory, segment_bytes=SMALL_SEGMENT_BYTES, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(records._replace(timestamps=times), batch_count=75)
        return author.rows


def large(directory: Path) -> list[Row]:
    rows: list[Row] = []
    for codec in ("none", "zstd"):
        with Author(directory, rows, compression_type=COMPRESSION_TYPES[codec], max_message_bytes=4 << 20) as author:
            author.append(Content([random.Random(codec).randbytes(2 << 20)], [b"large"], [1], [()]))
            author.append(content(10, f"after {codec}"))
            rows = author.rows
    return rows


def truncated(directory: Path) -> list[Row]:
    with Author(directory, segment_bytes=SMALL_SEGMENT_BYTES, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(600, "truncated"), batch_count=100)
        author.truncate_to(396)  # between two batches of an earlier segment
        author.append(content(50, "truncated, then"), batch_count=10)
        author.truncate_to(author.log.end_offset - 10)
        author.append(content(70, "truncated, at last"), batch_count=11)
        return author.rows


def truncated_inside_a_batch(directory: Path) -> list[Row]:
    """As in Kafka, the whole batch is removed and the log ends at the requested offset: a gap."""
    with Author(directory, segment_bytes=SMALL_SEGMENT_BYTES, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(600, "truncated inside"), batch_count=100)
        author.truncate_to(400)
        assert author.rows[-1].offset == 395
        author.append(content(70, "truncated inside, then"), batch_count=11)
        return author.rows


def restarted(directory: Path) -> list[Row]:
    with Author(directory, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(100, "restarted"), batch_count=20)
        writer_of(author.log).truncate_fully_and_start_at(5_000_000_000)
        author.rows.clear()
        author.append(content(100, "restarted, then"), batch_count=20)
        assert author.rows[0].offset == 5_000_000_000
        return author.rows


def deleted_records(directory: Path) -> list[Row]:
    with Author(directory, segment_bytes=SMALL_SEGMENT_BYTES, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        author.append(content(600, "deleted records"), batch_count=100)
        author.delete_records(437)
        author.append(content(20, "deleted records, then"), batch_count=4)
        return author.rows


def reopened_twice(directory: Path) -> list[Row]:
    rows: list[Row] = []
    for session in ("first", "second", "third"):
        with Author(directory, rows, index_interval_bytes=DENSE_INDEX_BYTES) as author:
            assert author.log.recovery.clean or not rows
            author.append(content(80, session), batch_count=20)
            rows = author.rows
    return rows


def killed(directory: Path) -> list[Row]:
    """SIGKILL in mid-append: the directory as the process left it."""
    acknowledged = _run_and_kill(directory)
    # Open a copy to learn how far the writer came: every record in it must be as intended.
    copy = directory.with_name(f"{directory.name}.copy")
    shutil.copytree(directory, copy)
    with Author(copy) as author:
        end = author.log.end_offset
    shutil.rmtree(copy)
    assert end >= acknowledged
    return [record_at(offset) for offset in range(end)]


def killed_then_reopened(directory: Path) -> list[Row]:
    acknowledged = _run_and_kill(directory)
    with Author(directory, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        assert not author.log.recovery.clean
        assert author.log.end_offset >= acknowledged
        author.rows = [record_at(offset) for offset in range(author.log.end_offset)]
        author.append(content(50, "after the kill"), batch_count=10)
        return author.rows


def torn_then_reopened(directory: Path) -> list[Row]:
    """A kill that left half a batch, which a real process cannot be made to do."""
    _run_and_kill(directory)
    active = max(directory.glob("*.log"))
    with active.open("ab") as file:
        file.write(_v2_batch(content(BATCH_RECORD_COUNT, "torn"), "none")[:-40])
    with Author(directory, index_interval_bytes=DENSE_INDEX_BYTES) as author:
        assert author.log.recovery.bytes_cut > 0
        author.rows = [record_at(offset) for offset in range(author.log.end_offset)]
        author.append(content(50, "after the tear"), batch_count=10)
        return author.rows


def _run_and_kill(directory: Path) -> int:
    """Makes a process append to a new log until it is killed; returns how many records it wrote."""
    program = [sys.executable, "-m", "tests.interop.killed_writer", str(directory)]
    writer = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    with writer.stdout as lines:
        acknowledged = [next(lines) for _ in range(60)]
        writer.send_signal(signal.SIGKILL)
        acknowledged += lines.readlines()
    assert writer.wait() == -signal.SIGKILL
    whole = [line for line in acknowledged if line.endswith("\n")]
    return int(whole[-1])


def foreign_v0_lz4(directory: Path) -> list[Row]:
    """The frame with a checksum over the wrong bytes, which was made part of format v0."""
    records = content(30, "foreign v0 lz4")
    pairs = zip(records.values, records.keys, strict=True)
    messages = [oracle_legacy.message(number, value, key, magic=0) for number, (value, key) in enumerate(pairs)]
    wrapper = oracle_legacy.wrapper(messages, offset=len(messages) - 1, codec="lz4", magic=0)
    with Author(directory) as author:
        author.append_batches(wrapper, _as_kept_by(0, records))
        author.append(content(20, "behind"))
        return author.rows


def foreign(magic: int, codec: str) -> Callable[[Path], list[Row]]:
    """Message sets of format v0 or v1, which are rebuilt as v2, between batches of kstore's own."""

    def write(directory: Path) -> list[Row]:
        with Author(directory) as author:
            author.append(content(20, "before"))
            for number in range(4):
                records = content(30, f"foreign {magic} {codec} {number}")
                author.append_batches(_message_set(magic, codec, records), _as_kept_by(magic, records))
            author.append(content(20, "behind"))
            return author.rows

    return write


def foreign_v2(directory: Path) -> list[Row]:
    with Author(directory) as author:
        for codec in CODECS:
            one, two = content(25, f"one {codec}", has_headers=True), content(25, f"two {codec}", has_headers=True)
            author.append_batches(_v2_batch(one, codec), one)
            author.append_batches(_v2_batch(one, codec) + _v2_batch(two, codec), one.followed_by(two))
        return author.rows


def recompressed(directory: Path) -> list[Row]:
    with Author(directory, compression_type="zstd") as author:
        for codec in CODECS:
            records = content(25, f"recompressed {codec}", has_headers=True)
            author.append_batches(_v2_batch(records, codec), records)
        return author.rows


def _message_set(magic: int, codec: str, records: Content) -> bytes:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=CODEC_IDS[codec], batch_size=ROOMY_BYTES)
    for offset, (value, key, timestamp, _) in enumerate(zip(*records, strict=True)):
        builder.append(offset, timestamp=timestamp, key=key, value=value)
    return bytes(builder.build())


def _as_kept_by(magic: int, records: Content) -> Content:
    """Format v0 has no timestamps."""
    return records._replace(timestamps=[-1] * len(records.values)) if magic == 0 else records


def _v2_batch(records: Content, codec: str) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODEC_IDS[codec],
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=ROOMY_BYTES,
    )
    for offset, (value, key, timestamp, headers) in enumerate(zip(*records, strict=True)):
        builder.append(offset, timestamp, key, value, list(headers))
    return bytes(builder.build())


def taken_over(folder: str, partition: str, *, is_believed: bool = False) -> Callable[[Path], list[Row]]:
    """A partition that a broker wrote, which kstore opens for writing and continues.

    ``is_believed``: with the broker's checkpoints and its mark of a clean stop; else alone.
    """

    def write(directory: Path) -> list[Row]:
        root = golden_data.golden_root() / folder
        consumed = golden_data.golden_root() / f"{folder}.consumed" / f"{partition}.jsonl"
        if not (root / partition).is_dir() or not consumed.is_file():
            pytest.skip(f"no {folder}/{partition} in the golden data")
        store = directory.with_name(f"{directory.name}.store")
        shutil.copytree(root / partition, store / partition)
        if is_believed:
            for mark in root.iterdir():
                if mark.is_file():
                    shutil.copy(mark, store)
        epochs = (root / partition / "leader-epoch-checkpoint").read_text().split()
        # A log without a broker continues with the latest epoch of its directory, the last one in the checkpoint.
        settings: dict[str, Any] = {"leader_epoch": int(epochs[-2]), "index_interval_bytes": DENSE_INDEX_BYTES}
        with Author(store / partition, read_consumed(consumed).rows, **settings) as author:
            assert author.log.recovery.clean == is_believed
            author.append(content(200, f"taken over {partition}", has_headers=True), batch_count=40)
        (store / partition).rename(directory)
        shutil.rmtree(store)
        return author.rows

    return write


def replicated(folder: str, partition: str) -> Callable[[Path], list[Row]]:
    """The batches of all of a broker's segments, appended to a new log with their own offsets.

    Every file is then kstore's: the segments, the transaction indexes, the producer snapshots.
    """

    def write(directory: Path) -> list[Row]:
        root = golden_data.golden_root()
        segments = sorted((root / folder / partition).glob("*.log"))
        settings: dict[str, Any] = {"segment_bytes": SMALL_SEGMENT_BYTES, "index_interval_bytes": DENSE_INDEX_BYTES}
        with Author(directory, **settings) as author:
            for batch in _batches(b"".join(path.read_bytes() for path in segments)):
                author.log.append_batches(batch, assign_offsets=False)
        return read_consumed(root / f"{folder}.consumed" / f"{partition}.jsonl").rows

    return write


def _batches(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12])
        yield data[position : position + size]
        position += size


SMALL_SEGMENTS = {"internal.segment.bytes": str(SMALL_SEGMENT_BYTES)}
DENSE = {"index.interval.bytes": str(DENSE_INDEX_BYTES)}
SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("plain", plain, DENSE),
        Scenario("durable", durable),
        Scenario("one-by-one", one_by_one, DENSE),
        Scenario("empty", empty),
        *(Scenario(f"codec-{codec}", compressed(codec), DENSE) for codec in CODECS),
        Scenario("mixed-codecs", mixed_codecs),
        Scenario("headers", headers),
        Scenario("null-and-empty", null_and_empty),
        Scenario("rolled", rolled, DENSE | SMALL_SEGMENTS),
        Scenario("index-full", index_full, DENSE | {"segment.index.bytes": "96"}),
        Scenario("append-time", append_time, DENSE | {"message.timestamp.type": "LogAppendTime"}),
        Scenario("unordered-time", unordered_time, DENSE | SMALL_SEGMENTS),
        Scenario("large", large, {"max.message.bytes": str(4 << 20)}),
        Scenario("truncated", truncated, DENSE | SMALL_SEGMENTS),
        Scenario(
            "truncated-inside-a-batch",
            truncated_inside_a_batch,
            DENSE | SMALL_SEGMENTS,
        ),
        Scenario("restarted", restarted, DENSE),
        Scenario("deleted-records", deleted_records, DENSE | SMALL_SEGMENTS),
        Scenario("reopened-twice", reopened_twice, DENSE),
        Scenario("killed", killed, DENSE, is_closed=False),
        Scenario("killed-then-reopened", killed_then_reopened, DENSE),
        Scenario("torn-then-reopened", torn_then_reopened, DENSE),
        *(Scenario(f"foreign-v0-{codec}", foreign(0, codec)) for codec in ("none", "gzip", "snappy")),
        *(Scenario(f"foreign-v1-{codec}", foreign(1, codec)) for codec in ("none", "gzip", "snappy", "lz4")),
        Scenario("foreign-v0-lz4", foreign_v0_lz4),
        Scenario("foreign-v2", foreign_v2),
        Scenario("recompressed", recompressed),
        *(
            Scenario(f"taken-over-{partition}", taken_over("clean", f"{partition}-0"), DENSE)
            for partition in ("plain", "headers", "zstd", "rolled", "compacted", "unordered-time")
        ),
        *(
            Scenario(f"taken-over-{partition}", taken_over("clean", f"{partition}-0"), DENSE, has_markers=True)
            for partition in ("txn", "txn-rolled")
        ),
        *(
            Scenario(
                f"believed-{partition}",
                taken_over("clean", f"{partition}-0", is_believed=True),
                has_foreign_indexes=True,
            )
            for partition in ("plain", "rolled", "deleted-records", "retained", "zstd")
        ),
        *(
            Scenario(f"replicated-{name}", replicated("clean", f"{name}-0"), DENSE | SMALL_SEGMENTS, has_markers=True)
            for name in ("txn", "txn-rolled", "txn-open")
        ),
        Scenario(
            "replicated-compacted-txn",
            replicated("clean", "compacted-txn-0"),
            DENSE | SMALL_SEGMENTS,
            has_markers=True,
            has_known_faults=True,
        ),
        *(
            Scenario(f"replicated-{name}", replicated("clean", f"{name}-0"), DENSE | SMALL_SEGMENTS)
            for name in ("compacted", "epochs", "mixed-codecs", "unordered-time", "append-time")
        ),
        Scenario("taken-over-crashed", taken_over("crashed", "crash-0"), DENSE),
        Scenario("taken-over-upgraded", taken_over("old", "upgraded-0"), DENSE, has_known_faults=True),
    )
}
