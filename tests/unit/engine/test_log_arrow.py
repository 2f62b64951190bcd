"""A log as Arrow columns: the same records as ``Log.read`` gives, and back again."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kstore
from kstore.errors import (
    ClosedError,
    ConfigError,
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    KstoreError,
    MissingExtraError,
    OffsetOutOfRangeError,
)
from kstore.log import Log
from kstore.record.columns import COLUMNS
from kstore.types import IsolationLevel
from tests.property.test_hostile_bytes import (
    NAMED,
    SEGMENT,
    flips,
    make,
    offset_field_of_last,
    open_log,
    truncations,
)
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Wrong
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.log_cases import data, marker, transaction
from tests.support.lives.log_helpers import TIME
from tests.unit.engine.test_log_producers import append, interleaved
from tests.unit.project.test_docs import printed
from tests.unit.record.test_columns import found_rows, rows_of

Count = Callable[[str, int], None]

ROOT = Path(__file__).resolve().parents[3]
TREES = ("clean", "crashed", "recovered", "old", "damaged")
PARTITIONS = [pytest.param(tree, name, id=f"{tree}-{name}") for tree in TREES for name in golden_partitions(tree)]
SMALL_BATCHES: dict[str, Any] = {"max_records": 7, "max_bytes": 500}


def filled(path: Path, count: int = 100, **options: Any) -> Log:
    log = Log(path, durability="os", **options)
    for start in range(0, count, 10):
        numbers = range(start, min(start + 10, count))
        log.append_many(
            [b"value %d" % number if number % 5 else None for number in numbers],
            keys=[b"k%d" % number if number % 3 else None for number in numbers],
            timestamps=[TIME + number for number in numbers],
            headers=[[("h", b"%d" % number), ("n", None)] if number % 4 == 0 else None for number in numbers],
        )
    return log


# --- beside the plain reader ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(("tree", "name"), PARTITIONS)
@pytest.mark.promise("bytes")
@pytest.mark.sampled(20)
def test_a_broker_partition_is_the_same_in_columns(tree: str, name: str, isolation_level: Any, tried: Count) -> None:
    with Log(golden_root() / tree / name, read_only=True) as log:
        reader = log.read(isolation_level=isolation_level, on_corrupt="skip")
        expected = rows_of(list(reader))
        for options in ({}, SMALL_BATCHES):
            batches = log.to_arrow_batches(isolation_level=isolation_level, on_corrupt="skip", **options)
            assert found_rows(list(batches)) == expected
            assert batches.corrupt == reader.corrupt
        table = log.to_arrow(isolation_level=isolation_level, on_corrupt="skip", columns=["offset", "value"])
        assert table.to_pylist() == [{"offset": row["offset"], "value": row["value"]} for row in expected]
    tried("reads", len(expected))


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_ranges_of_offsets_are_as_read(codec: str, tmp_path: Path) -> None:
    with filled(tmp_path / "log", compression_type=codec, segment_bytes=1024) as log:
        for start, stop in ((None, None), (0, 0), (3, 57), (55, None), (100, 100), (99, 1000), (None, 11)):
            expected = rows_of(list(log.read(start, stop)))
            assert found_rows(log.to_arrow(start, stop).to_batches()) == expected
            assert found_rows(list(log.to_arrow_batches(start, stop, **SMALL_BATCHES))) == expected


def test_control_records_and_aborted_transactions_never_appear(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        interleaved(log)
        append(log, marker(3, 11, commit=False), data(12), transaction(7, 13))
        isolation_levels: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
        for isolation_level in isolation_levels:
            offsets = [record.offset for record in log.read(isolation_level=isolation_level)]
            table = log.to_arrow(isolation_level=isolation_level, columns=["offset"])
            assert table.column(0).to_pylist() == offsets
        assert 13 not in offsets


def test_columns_end_at_the_high_watermark(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log, Log(log.path, read_only=True) as view:
        batches = view.to_arrow_batches(columns=["offset"], max_records=20)
        assert next(batches).num_rows == 20
        log.append_many([b"later"] * 3)
        assert sum(batch.num_rows for batch in batches) <= 83
        assert view.to_arrow().num_rows == view.high_watermark == 103


def test_an_empty_log_is_an_empty_table_with_all_columns(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        table = log.to_arrow()
        assert table.num_rows == 0
        assert tuple(table.schema.names) == COLUMNS
        assert list(log.to_arrow_batches()) == []


def test_the_schema_is_that_of_spark_s_kafka_source(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        schema = log.to_arrow(timestamp_unit="us").schema
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    assert schema == pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
            ("headers", headers),
        ]
    )


def test_what_cannot_be_asked_for_is_refused_at_once(tmp_path: Path) -> None:
    log = filled(tmp_path / "log", 10)
    with pytest.raises(ConfigError, match="on_corrupt is 'yield'"):
        log.to_arrow(on_corrupt="yield")
    with pytest.raises(ConfigError, match="did you mean 'offset'"):
        log.to_arrow(columns=["ofset"])
    with pytest.raises(OffsetOutOfRangeError):
        log.to_arrow(11)
    with pytest.raises(ConfigError, match="there is no option 'headers', did you mean"):
        log.to_arrow(headers="map")  # type: ignore[call-arg]
    log.close()
    with pytest.raises(ClosedError):
        log.to_arrow()


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(tmp_path: Path) -> Path:
    with filled(tmp_path / "log", 30) as log:
        position = log.fetch(10).position
    file = next((tmp_path / "log").glob("*.log"))
    content = bytearray(file.read_bytes())
    content[position + 70] ^= 1
    file.write_bytes(content)
    return tmp_path / "log"


@pytest.mark.promise("damage below")
def test_what_is_in_front_of_damage_comes_before_its_error(tmp_path: Path) -> None:
    with Log(damaged(tmp_path), read_only=True) as log:
        batches = log.to_arrow_batches(columns=["offset"])
        assert next(batches).column(0).to_pylist() == list(range(10))
        with pytest.raises(CorruptBatchError, match="crc") as caught:
            next(batches)
        assert (caught.value.first_offset, caught.value.last_offset) == (10, 19)
        with pytest.raises(CorruptBatchError):
            log.to_arrow()


def test_damage_is_skipped_and_listed_where_that_is_asked_for(tmp_path: Path) -> None:
    with Log(damaged(tmp_path), read_only=True) as log:
        batches = log.to_arrow_batches(on_corrupt="skip", columns=["offset"])
        assert [each for batch in batches for each in batch.column(0).to_pylist()] == [*range(10), *range(20, 30)]
        assert [(lost.first, lost.last) for lost in batches.corrupt] == [(10, 19)]


@NAMED
@pytest.mark.promise("hostile file")
@pytest.mark.sampled(1)
def test_no_hostile_byte_makes_other_columns_than_records(
    magic: int, codec: str, directory: Path, seed: int, tried: Count
) -> None:
    """Every flipped bit and every length: columns and records agree, or fail alike."""
    content, _ = make(directory, magic, codec)
    left_out = offset_field_of_last(content)
    positions = [position for position in range(len(content)) if position not in left_out]
    path = directory / SEGMENT
    counts = {"flips": 0, "truncations": 0}
    for kind, variants in (("flips", flips(content, positions)), ("truncations", truncations(content))):
        for number, (said, variant) in enumerate(variants):
            # Only some of them, by the seed: the codec is tried with all.
            if (number + seed) % 11:
                continue
            counts[kind] += 1
            path.write_bytes(variant)
            with open_log(directory) as log:
                found, expected = columns_of(log, max_records=1 + number % 3), records_of(log)
                if found != expected:
                    raise Wrong(f"{said}: {found}, records {expected}")
    for kind, count in counts.items():
        tried(kind, count)


def columns_of(log: Log, **options: Any) -> tuple[Any, Any, Any]:
    batches = log.to_arrow_batches(on_corrupt="skip", **options)
    rows = found_rows(list(batches))
    try:
        strict = [batch.num_rows for batch in log.to_arrow_batches(**options)]
        return rows, batches.corrupt, sum(strict)
    except KstoreError as error:
        return rows, batches.corrupt, str(error)


def records_of(log: Log) -> tuple[Any, Any, Any]:
    reader = log.read(on_corrupt="skip")
    rows = rows_of(list(reader))
    try:
        return rows, reader.corrupt, len(list(log.read()))
    except KstoreError as error:
        return rows, reader.corrupt, str(error)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_batches_of_a_large_log_take_the_memory_of_one(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        for _ in range(64):
            log.append_many([b"x" * 1000] * 1000)
        pool_before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            total = sum(batch.nbytes for batch in log.to_arrow_batches(max_bytes=1 << 20))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert total > 64_000_000
        # One record batch, the chunk that is read from the file, and a batch of the log of 1 MB, with room to spare.
        assert peak < 8 << 20
        assert pa.total_allocated_bytes() == pool_before


# --- other libraries --------------------------------------------------------------------------------------------------


def test_a_log_is_a_stream_that_pyarrow_reads(tmp_path: Path) -> None:
    with filled(tmp_path / "log") as log:
        expected = rows_of(list(log.read()))
        assert found_rows(pa.table(log).to_batches()) == expected
        assert found_rows(list(pa.RecordBatchReader.from_stream(log))) == expected
        reader = log.to_arrow_batches(columns=["offset"], **SMALL_BATCHES).reader()
        assert reader.read_all().column(0).to_pylist() == list(range(100))


def test_damage_reaches_the_reader_of_the_stream(tmp_path: Path) -> None:
    with Log(damaged(tmp_path), read_only=True) as log, pytest.raises(Exception, match="bad crc"):
        pa.table(log)


def test_pandas_takes_a_log(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    with filled(tmp_path / "log", 10) as log:
        frame = log.to_pandas(2, columns=["offset", "value"])
        assert list(frame["offset"]) == list(range(2, 10))
        assert next(iter(frame["value"])) == b"value 2"


def test_polars_takes_a_log(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    with filled(tmp_path / "log", 10) as log:
        assert log.to_polars(columns=["value", "offset"]).rows() == log_rows(log)
        assert polars.DataFrame(log).select("value", "offset").rows() == log_rows(log)
        assert polars.from_arrow(log.to_arrow(headers_type="list")).height == 10


def test_duckdb_queries_a_log(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed")
    with filled(tmp_path / "log", 10) as orders:
        events = orders.to_arrow_batches()
        assert events.schema
        assert duckdb.sql('select count(*), max("offset") from events').fetchall() == [(10, 9)]
        assert duckdb.sql('select value, "offset" from orders where "offset" < 20').fetchall() == log_rows(orders)


def log_rows(log: Log) -> list[tuple[bytes | None, int]]:
    return [(record.value, record.offset) for record in log.read()]


@pytest.mark.parametrize(
    ("module", "method", "said"),
    [
        ("pyarrow", "to_arrow", r"pip install 'kstore\[arrow\]'"),
        ("pandas", "to_pandas", "pip install pandas"),
        ("polars", "to_polars", "pip install polars"),
    ],
)
def test_a_missing_package_is_named(
    module: str, method: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with Log(tmp_path / "log", durability="os") as log, pytest.raises(MissingExtraError, match=said) as caught:
        getattr(log, method)()
    assert isinstance(caught.value, ImportError)


def test_pyarrow_is_loaded_only_for_columns() -> None:
    program = "import kstore, sys; kstore.Log; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- back again -------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with Log(tmp_path / "appended", durability="os", clock=ManualClock(TIME)) as made:
        yield made


@pytest.mark.parametrize("headers_type", ["list", "map"])
@pytest.mark.parametrize("binary_type", ["binary", "large_binary"])
@pytest.mark.parametrize("timestamp_unit", ["ms", "us"])
def test_a_log_is_copied_by_its_columns(
    headers_type: Any, binary_type: Any, timestamp_unit: Any, tmp_path: Path, log: Log
) -> None:
    with filled(tmp_path / "log") as source:
        expected = list(source.read())
        for batch in source.to_arrow_batches(
            headers_type=headers_type, binary_type=binary_type, timestamp_unit=timestamp_unit, max_records=30
        ):
            info = log.append_arrow(batch)
    assert (info.first_offset, info.last_offset) == (90, 99)
    assert list(log.read()) == expected


row_lists = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=9),
            "value": st.none() | st.binary(max_size=9),
            "timestamp": st.integers(0, TIME),
            "headers": st.none()
            | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), min_size=1),
        }
    ),
    min_size=1,
)


@settings(deadline=None, max_examples=30)
@given(rows=row_lists)
def test_rows_come_back_as_they_were_appended(rows: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    kind = pa.map_(pa.string(), pa.binary())
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64()), ("headers", kind)])
    with Log(tmp_path_factory.mktemp("rows") / "log", durability="os") as log:
        log.append_arrow(pa.Table.from_pylist(rows, schema=schema))
        found = log.to_arrow(headers_type="map", columns=schema.names)
        found = found.set_column(2, "timestamp", found.column("timestamp").cast(pa.int64()))
        assert found.to_pylist() == rows


def test_text_and_other_kinds_of_bytes_are_taken(log: Log) -> None:
    columns = {
        "value": pa.array(["a", None, "\N{SNOWMAN}"]),
        "key": pa.array(["x", "x", "y"]).dictionary_encode(),
        "timestamp": pa.array([TIME * 1_000_000 + 999_999, None, TIME * 1_000_000], pa.timestamp("ns")),
        "headers": pa.array([[{"key": "h", "value": "text"}], None, []]),
        "topic": pa.array(["t"] * 3),
        "partition": pa.array([0] * 3),
    }
    log.append_arrow(pa.table(columns))
    log.append_arrow(pa.table({"value": pa.array([b"abc"], pa.binary(3)), "headers": pa.nulls(1)}))
    log.append_arrow(pa.table({"value": pa.nulls(1), "timestamp": pa.nulls(1)}))
    log.append_arrow(pa.table({"value": pa.array([b"1"], pa.large_binary())}).to_batches()[0])
    found = list(log.read())
    assert [record.value for record in found] == [b"a", None, "\N{SNOWMAN}".encode(), b"abc", None, b"1"]
    assert [record.key for record in found] == [b"x", b"x", b"y", None, None, None]
    assert {record.timestamp for record in found} == {TIME}
    assert [record.headers for record in found] == [(("h", b"text"),), *[()] * 5]


# Arrow's constructors refuse such a string.
NOT_TEXT = pa.ListArray.from_arrays(
    [0, 1],
    pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([b"\xff"]).buffers()[1:]]),
            pa.array([b"v"]),
        ],
        ["key", "value"],
    ),
)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"key": pa.array([b"k"])}, "expected value among them"),
        ({"value": pa.array([1])}, "'value' is int64"),
        ({"value": pa.array([b"v"]), "valeu": pa.array([1])}, "no column 'valeu'"),
        ({"value": pa.array([b"v"]), "timestamp": pa.array(["now"])}, "'timestamp' is string"),
        ({"value": pa.array([b"v"]), "headers": pa.array([b"v"])}, "'headers' is binary"),
        ({"value": pa.array([b"v"]), "headers": pa.array([[{"name": "v"}]])}, "'headers' is list"),
        ({"value": pa.array([b"v"]), "headers": pa.array([[None, {"key": "k", "value": "v"}]])}, "null"),
        ({"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": "v"}]])}, "without a key"),
        ({"value": pa.array([b"v"]), "headers": NOT_TEXT}, "a string that is not UTF-8"),
    ],
)
def test_columns_that_are_no_records_are_refused(columns: dict[str, Any], said: str, log: Log) -> None:
    with pytest.raises(InvalidRecordError, match=said):
        log.append_arrow(pa.table(columns))
    assert log.end_offset == 0


def test_a_refused_row_leaves_none_of_the_table(log: Log) -> None:
    table = pa.table({"value": pa.array([b"a", b"b"]), "timestamp": pa.array([TIME, -5])})
    with pytest.raises(InvalidTimestampError):
        log.append_arrow(table)
    assert log.end_offset == 0
    with pytest.raises(TypeError, match="not list"):
        log.append_arrow([b"a"])


# --- the guide --------------------------------------------------------------------------------------------------------


def test_the_guide_s_examples_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (ROOT / "docs" / "columns.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert printed("\n\n".join(blocks), tmp_path, monkeypatch, capsys) == said


def test_a_topic_s_table_names_the_partition_of_each_record(tmp_path: Path) -> None:
    with kstore.open(tmp_path, durability="os", background=False) as store:
        store.create_topic("t", partitions=3)
        store.log("t", 2).append_many([b"c", b"d"], keys=[b"1", b"2"])
        store.log("t", 0).append(b"a")
        table = store.to_arrow("t", columns=["value", "offset"], on_corrupt="skip", isolation_level="read_committed")
        assert table.column_names == ["topic", "partition", "value", "offset"]
        assert [tuple(row.values()) for row in table.to_pylist()] == [
            ("t", 0, b"a", 0),
            ("t", 2, b"c", 0),
            ("t", 2, b"d", 1),
        ]
        whole = store.to_arrow("t", columns=None, binary_type="large_binary")
        assert (
            whole.drop_columns(["topic", "partition"]).schema
            == store.log("t").to_arrow(binary_type="large_binary").schema
        )
        store.create_topic("empty")
        assert store.to_arrow("empty").schema == store.to_arrow("t").schema
        assert store.to_arrow("empty").num_rows == 0
        with pytest.raises(kstore.TopicNotFoundError):
            store.to_arrow("u")
