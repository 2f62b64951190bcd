"""Where a committed read of Spark ends and what it leaves out: decided before any task starts, without the records."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import kstore
from kstore.engine import head_search
from kstore.files.remote import RemoteFiles, open_remote
from kstore.log import Log
from kstore.spark import holdings
from kstore.spark.options import ReadOptions
from kstore.spark.schema import spark_schema
from kstore.spark.stream import KStoreStreamReader
from tests.spark.reading import make_reader, offsets_of, splits_of
from tests.support.lives.log_cases import data, marker, segment_bases, transaction

ALL = ReadAllAvailable()
Shown = Callable[[Path], str]


@pytest.fixture(params=["here with snapshots", "here without", "far away with snapshots", "far away without"])
def shown(request: pytest.FixtureRequest, memory: str) -> Shown:
    """Shows a log to a reader: where it is, or a copy far away; as it is, or without its snapshots."""
    here, snapshots = str(request.param).startswith("here"), str(request.param).endswith("with snapshots")

    def show(path: Path) -> str:
        if not snapshots:
            for file in path.glob("*.snapshot"):
                file.unlink()
        if here:
            return str(path)
        fs = open_remote(memory).fs
        for file in path.iterdir():
            if file.name != ".lock":
                fs.put(Path(f"/dir/{path.name}/{file.name}"), [file.read_bytes()])
        return f"{memory}/{path.name}"

    return show


def stream(url: str) -> KStoreStreamReader:
    options = ReadOptions.parse({"path": url, "startingOffsets": "earliest"}, streaming=True)
    return KStoreStreamReader(options, spark_schema())


def rows(source: KStoreStreamReader, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> list[int]:
    batches = [batch for split in source.partitions(start, end) for batch in source.read(split)]
    return [offset for batch in batches for offset in pa.table([batch["offset"]], ["offset"])["offset"].to_pylist()]


def test_a_transaction_begun_in_the_first_segment_and_aborted_in_the_active_one_is_left_out(
    shown: Shown, tmp_path: Path
) -> None:
    with Log(tmp_path / "t-0", durability="os", segment_bytes=16_384) as log:
        log.append_batches(transaction(1, *range(10), size=500), assign_offsets=False)
        for first in range(10, 200, 10):
            log.append_batches(data(*range(first, first + 10), size=500), assign_offsets=False)
        log.append_batches(transaction(1, *range(200, 210), size=500), assign_offsets=False)
        log.append_batches(marker(1, 210, commit=False), assign_offsets=False)
        log.append_batches(data(211), assign_offsets=False)
    assert len(segment_bases(tmp_path / "t-0")) > 3
    reader = make_reader(shown(tmp_path / "t-0"), maxRecordsPerPartition=7)
    splits = splits_of(reader)
    for split in splits:
        for piece in split.pieces:
            # A piece of the first segment has it too, although its marker is in the last one.
            assert [gone.last_offset for gone in piece.aborted] == [210]
    assert offsets_of(reader, splits) == [*range(10, 200), 211]


def test_a_transaction_open_at_one_trigger_and_committed_before_the_next_is_read_by_the_next(
    shown: Shown, tmp_path: Path
) -> None:
    with Log(tmp_path / "t-0", durability="os") as log:
        log.append_batches(data(0, 1, 2), assign_offsets=False)
        log.append_batches(transaction(1, 3, 4), assign_offsets=False)
        log.append_batches(data(5, 6), assign_offsets=False)
        source = stream(shown(log.path))
        start = source.initialOffset()
        first = source.latestOffset(start, ALL)
        assert first == {"t": {"0": 3}}
        log.append_batches(marker(1, 7, commit=True), assign_offsets=False)
        shown(log.path)
        # The end was fixed: what was committed since belongs to the next one.
        assert rows(source, start, first) == [0, 1, 2]
        second = source.latestOffset(first, ALL)
        assert rows(source, first, second) == [3, 4, 5, 6]
        log.append_batches(transaction(1, 8, sequence=2), assign_offsets=False)
        log.append_batches(marker(1, 9, commit=False), assign_offsets=False)
        shown(log.path)
        third = source.latestOffset(second, ALL)
        assert rows(source, second, third) == []
        assert third == {"t": {"0": 10}}
        source.stop()


def test_tasks_that_share_a_transaction_agree_on_it_in_any_order(shown: Shown, tmp_path: Path, seed: int) -> None:
    """Interleaved transactions, some aborted far after a task's piece ends, and one open at the end."""
    with Log(tmp_path / "t-0", durability="os", segment_bytes=16_384) as log:
        for turn, first in enumerate(range(0, 200, 4)):
            producer = turn % 3
            log.append_batches(transaction(producer, *range(first, first + 3), sequence=first), assign_offsets=False)
            ends = turn % 9 >= 6 and turn < 45
            last = marker(producer, first + 3, commit=turn % 18 < 9) if ends else data(first + 3)
            log.append_batches(last, assign_offsets=False)
        expected = [record.offset for record in log.read(isolation_level="read_committed")]
    assert 90 < len(expected) < 150
    assert expected[-1] < 180, "before an open one"
    reader = make_reader(shown(tmp_path / "t-0"), maxRecordsPerPartition=5)
    splits = splits_of(reader)
    assert len(splits) > 30
    random.Random(seed).shuffle(splits)
    assert sorted(offset for split in splits for offset in offsets_of(reader, [split])) == expected


# --- what the search costs --------------------------------------------------------------------------------------------


@pytest.fixture(name="said")
def warnings_of_kstore() -> Iterator[list[str]]:
    texts: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name == "kstore.spark.notes":
                texts.append(record.getMessage())

    handler, logger = Handler(), logging.getLogger("kstore")
    logger.addHandler(handler)
    yield texts
    logger.removeHandler(handler)


@pytest.fixture
def far(tmp_path: Path, memory: str) -> str:
    """Three logs of one transaction of large batches each, of which no snapshot tells."""
    fs = open_remote(memory).fs
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.topic("t", partitions=3)
        for partition in range(3):
            log = store.log("t", partition)
            for number in range(10):
                log.append_batches(transaction(1, number, sequence=number, size=150_000), assign_offsets=False)
            log.append_batches(marker(1, 10, commit=False), assign_offsets=False)
            log.append_batches(data(11), assign_offsets=False)
    for file in (tmp_path / "s").rglob("*"):
        if file.is_file() and file.suffix not in (".snapshot", ".txnindex") and ".lock" not in file.name:
            fs.put(Path("/dir") / file.relative_to(tmp_path / "s"), [file.read_bytes()])
    return memory


def test_a_plan_without_snapshots_fetches_headers_and_no_records(
    far: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    read_range = RemoteFiles.read_range

    def noted(files: RemoteFiles, path: str, start: int, stop: int) -> bytes:
        fetched.append(stop - start)
        return read_range(files, path, start, stop)

    with monkeypatch.context() as patch:
        patch.setattr(head_search, "PIECE_BYTES", 100_000)
        patch.setattr(RemoteFiles, "read_range", noted)
        reader = make_reader(far)
        splits = splits_of(reader)
    # Of 1.5 MB in each log.
    assert sum(fetched) < 3 * 200_000
    assert not any("planning reads" in text for text in said)
    assert offsets_of(reader, splits) == [11] * 3


def test_a_plan_that_reads_much_says_once_what_it_costs_and_what_avoids_it(
    far: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holdings, "SEARCH_BYTES_MAX", 1_000)
    reader = make_reader(far, isolationLevel="read_committed")
    assert offsets_of(reader) == [11] * 3, "and it goes on reading"
    (text,) = said
    assert text.startswith("t-")
    assert "of 1.4 MiB" in text
    assert "isolationLevel=read_uncommitted" in text
    assert len(offsets_of(make_reader(far, isolationLevel="read_uncommitted"))) == 33
    assert len(said) == 1
    source = stream(far)
    at = source.initialOffset()
    for _ in range(3):
        end = source.latestOffset(at, ALL)
        source.partitions(at, end)
        at = end
    assert len([text for text in said if "read_uncommitted gives" in text]) == 2, "one for each query"
    source.stop()
