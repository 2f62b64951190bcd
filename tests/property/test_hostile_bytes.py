"""Every single bit flip and every length of small logs: each record is read as written, or reported as lost."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from kstore.errors import CorruptDataError, KstoreError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.harness.evidence import Hung, Untyped, Wrong
from tests.support.harness.selection import tries
from tests.support.oracles.oracle_legacy import message, wrapper

pytestmark = pytest.mark.promise("hostile file", "bytes")

Count = Callable[[str, int], None]

TIME = 1_700_000_000_000
BASE = 5
SEGMENT = f"{BASE:020d}.log"
SECONDS_MAX = 5
# The distance between bytes in a quick run.
ONE_IN = tries(1, quick=31)
# max_batch_bytes_uncompressed, and what else an open log of a few hundred bytes may take.
UNCOMPRESSED_BYTES_MAX = 4096
MEMORY_SLACK_BYTES = 1 << 20
# One flip in this many is checked against the memory limit, which costs as much as ten others.
MEMORY_EVERY = 16
CODECS_V2 = ("none", "gzip", "snappy", "lz4", "zstd")
CODECS_LEGACY = ("none", "gzip", "snappy", "lz4")
FORMATS = [(2, codec) for codec in CODECS_V2] + [(magic, codec) for magic in (0, 1) for codec in CODECS_LEGACY]
NAMED = pytest.mark.parametrize(("magic", "codec"), FORMATS, ids=[f"v{magic}-{codec}" for magic, codec in FORMATS])


def batches_v2(codec: str) -> bytes:
    first = [
        Record(BASE, TIME, key=b"k", value=b"one"),
        Record(BASE + 1, TIME + 1, value=b"two", headers=[("h", b"x")]),
    ]
    second = [Record(BASE + 2, TIME + 2, value=None), Record(BASE + 3, TIME + 3, value=b"four")]
    return build_batch(first, codec=codec) + build_batch(
        second, codec=codec, producer_id=9, producer_epoch=0, base_sequence=0
    )


def sets_legacy(magic: int, codec: str) -> bytes:
    """Two sets of two messages, or as many plain messages."""
    entries = []
    for base in (BASE, BASE + 2):
        absolute = codec == "none" or magic == 0
        inner = [
            message((base if absolute else 0) + number, b"v%d" % (base + number), magic=magic, timestamp=TIME)
            for number in range(2)
        ]
        entries += inner if codec == "none" else [wrapper(inner, offset=base + 1, codec=codec, magic=magic)]
    return b"".join(entries)


def segment_bytes(magic: int, codec: str) -> bytes:
    return batches_v2(codec) if magic == 2 else sets_legacy(magic, codec)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if possible: thousands of files are written into it."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="kstore-flips-", dir=shared if os.access(shared, os.W_OK) else tmp_path))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def _time_limit() -> Iterator[None]:
    def expired(number: int, frame: FrameType | None) -> None:
        raise Hung(f"more than {SECONDS_MAX} seconds of work for one file")

    before = signal.signal(signal.SIGPROF, expired)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


def flips(data: bytes, positions: Iterable[int] | None = None) -> Iterator[tuple[str, bytes]]:
    damaged = bytearray(data)
    for position in range(len(data)) if positions is None else positions:
        for bit in range(8):
            damaged[position] ^= 1 << bit
            yield f"bit {bit} of byte {position}", bytes(damaged)
            damaged[position] ^= 1 << bit


def truncations(data: bytes) -> Iterator[tuple[str, bytes]]:
    for size in range(0, len(data), tries(1, quick=4)):
        yield f"cut to {size} bytes", data[:size]


def open_log(path: Path, *, read_only: bool = True) -> Log:
    return Log(path, read_only=read_only, durability="os", max_batch_bytes_uncompressed=UNCOMPRESSED_BYTES_MAX)


def written_in(path: Path) -> dict[int, Record]:
    with open_log(path) as log:
        return {record.offset: record for record in log.read()}


def alike(found: Record, written: Record) -> bool:
    # Damage outside the CRC cannot be detected: the leader epoch is only ever reported.
    return (
        found.offset == written.offset
        and found.timestamp == written.timestamp
        and found.timestamp_type == written.timestamp_type
        and found.key == written.key
        and found.value == written.value
        and found.headers == written.headers
    )


def assert_serves_only(log: Log, written: dict[int, Record], said: str) -> list[int]:
    """Only written records are read, in order, and none that is reported as lost; returns the offsets."""
    reader = log.read(on_corrupt="skip")
    served: list[int] = []
    for record in reader:
        if record.offset not in written or not alike(record, written[record.offset]):
            raise Wrong(f"{said}: offset {record.offset} was never written like this")
        if served and record.offset <= served[-1]:
            raise Wrong(f"{said}: offset {record.offset} after {served[-1]}")
        served.append(record.offset)
    if any(lost.first <= offset <= lost.last for lost in reader.corrupt for offset in served):
        raise Wrong(f"{said}: served, but reported as lost")
    missing = {offset for offset in written if offset < log.high_watermark} - set(served)
    if not all(any(lost.first <= offset <= lost.last for lost in reader.corrupt) for offset in missing):
        raise Wrong(f"{said}: {sorted(missing)} are skipped silently")
    try:
        strict = [record.offset for record in log.read()]
    except CorruptDataError:
        return served
    if strict != served:
        raise Wrong(f"{said}: {strict} without an error, {served} when damage is skipped")
    return served


def read_each(
    directory: Path,
    name: str,
    variants: Iterable[tuple[str, bytes]],
    written: dict[int, Record],
    *,
    read_only: bool = True,
) -> int:
    """Opens the log with each variant of the file ``name``; returns their number.

    The file keeps its inode and times, so that a log that was closed cleanly still looks like one.
    """
    path = directory / name
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in directory.iterdir()}
    count = 0
    for said, data in variants:
        if not read_only:
            clear(directory, before)
            restore(directory, before)
        restore(directory, {name: (data, before[name][1])})
        count += 1
        # Tracing costs as much as ten opens.
        measured = count % MEMORY_EVERY == 0
        signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
        if measured:
            tracemalloc.start()
        try:
            with open_log(directory, read_only=read_only) as log:
                assert_serves_only(log, written, f"{name}, {said}")
        except KstoreError as error:
            raise Wrong(f"{name}, {said}: opening or skipping damage raised {error!r}") from error
        except (AssertionError, MemoryError):
            raise
        except Exception as error:
            raise Untyped(f"{name}, {said}: {error!r}") from error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            peak = tracemalloc.get_traced_memory()[1] if measured else 0
            tracemalloc.stop()
        if peak > path.stat().st_size + UNCOMPRESSED_BYTES_MAX + MEMORY_SLACK_BYTES:
            raise Wrong(f"{name}, {said}: {peak} bytes of memory for {len(data)}")
    clear(directory, before)
    restore(directory, before)
    return count


def clear(directory: Path, but: Iterable[str]) -> None:
    """Removes what a writer added."""
    for file in [file for file in directory.iterdir() if file.name not in but]:
        file.unlink()


def restore(directory: Path, files: dict[str, tuple[bytes, int]]) -> None:
    """Writes the files in place, with the times they had."""
    for name, (data, mtime_ns) in files.items():
        path = directory / name
        path.write_bytes(data)
        os.utime(path, ns=(mtime_ns, mtime_ns))


def make(directory: Path, magic: int, codec: str) -> tuple[bytes, dict[int, Record]]:
    """Makes a log of one segment that no writer has opened; returns its bytes and its records."""
    data = segment_bytes(magic, codec)
    (directory / SEGMENT).write_bytes(data)
    written = written_in(directory)
    assert sorted(written) == list(range(BASE, BASE + 4))
    return data, written


def offset_field_of_last(data: bytes) -> range:
    """The one field that no CRC covers and no later batch confirms, unless a writer closed the log."""
    at = 0
    while (size := 12 + int.from_bytes(data[at + 8 : at + 12], "big")) < len(data) - at:
        at += size
    return range(at, at + 8)


@NAMED
@pytest.mark.sampled(1)
def test_no_flipped_bit_makes_a_wrong_record(magic: int, codec: str, directory: Path, tried: Count) -> None:
    data, written = make(directory, magic, codec)
    left_out = offset_field_of_last(data)
    positions = [position for position in range(0, len(data), ONE_IN) if position not in left_out]
    tried("flips", read_each(directory, SEGMENT, flips(data, positions), written))


@NAMED
@pytest.mark.sampled(1)
def test_no_flipped_bit_of_a_closed_log_makes_a_wrong_record(
    magic: int, codec: str, directory: Path, tried: Count
) -> None:
    data, written = make(directory, magic, codec)
    open_log(directory, read_only=False).close()
    tried("flips", read_each(directory, SEGMENT, flips(data, range(0, len(data), ONE_IN)), written))


@NAMED
@pytest.mark.sampled(1)
def test_no_truncation_makes_a_wrong_record(magic: int, codec: str, directory: Path, tried: Count) -> None:
    data, written = make(directory, magic, codec)
    tried("truncations", read_each(directory, SEGMENT, truncations(data), written))
    open_log(directory, read_only=False).close()
    tried("truncations", read_each(directory, SEGMENT, truncations(data), written))


def make_indexed(directory: Path) -> dict[int, Record]:
    """A closed log that is long enough for its indexes to be used."""
    with Log(directory, durability="os", index_interval_bytes=0) as log:
        for number in range(5):
            log.append_many([b"%d" % number * 1200, b"x"], timestamps=[TIME + number, TIME + number])
    return written_in(directory)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_no_flipped_bit_of_an_index_leads_to_a_wrong_record(suffix: str, directory: Path, tried: Count) -> None:
    written = make_indexed(directory)
    path = directory / f"{0:020d}.{suffix}"
    whole = path.read_bytes()
    assert whole
    each = tries(1, quick=3)
    flipped, cut = [*flips(whole)][::each], [*truncations(whole)][::each]
    for said, data in (*flipped, *cut):
        path.write_bytes(data)
        with open_log(directory) as log:
            for offset, record in written.items():
                if next(iter(log.read(offset))) != record:
                    raise Wrong(f"{suffix}, {said}: another record at offset {offset}")
            for number in range(5):
                if log.offset_for_time(TIME + number) != number * 2:
                    raise Wrong(f"{suffix}, {said}: time {number} at {log.offset_for_time(TIME + number)}")
    tried("flips", len(flipped))
    tried("truncations", len(cut))


def test_no_flipped_bit_of_the_state_makes_a_wrong_record(directory: Path, tried: Count) -> None:
    written = make_indexed(directory)
    whole = (directory / "kstore.state").read_bytes()
    # The records are at the start of the three slots, with zeros between them that are never read.
    used = [position for position in range(len(whole)) if position % 512 < 96 and position < 1536][::ONE_IN]
    tried("flips", read_each(directory, "kstore.state", flips(whole, used), written))
    tried("truncations", read_each(directory, "kstore.state", ((f"{n}", whole[:n]) for n in used), written))


@pytest.mark.soak
@NAMED
def test_no_flipped_bit_makes_a_wrong_record_for_a_writer(
    magic: int, codec: str, directory: Path, tried: Count
) -> None:
    data, written = make(directory, magic, codec)
    left_out = offset_field_of_last(data)
    positions = [position for position in range(len(data)) if position not in left_out]
    tried("flips", read_each(directory, SEGMENT, flips(data, positions), written, read_only=False))
    tried("truncations", read_each(directory, SEGMENT, truncations(data), written, read_only=False))
