"""Reads logs as a Spark task does, without a session: through the reader's own ``partitions`` and ``read``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kstore.spark.options import ReadOptions
from kstore.spark.plan import Split
from kstore.spark.reader import KStoreReader
from kstore.spark.schema import arrow_schema, spark_schema
from kstore.types import TIMESTAMP_TYPES


def make_reader(path: str | Path, *, columns: Sequence[str] | None = None, **options: object) -> KStoreReader:
    """A reader of ``path``; options are written as users do, but as Python values."""
    text = {"path": str(path), "includeHeaders": "true", **{name: _text(value) for name, value in options.items()}}
    parsed = ReadOptions.parse(text, streaming=False)
    schema = spark_schema(columns, include_headers=parsed.include_headers, header_keys=parsed.header_keys)
    return KStoreReader(parsed, schema)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def splits_of(reader: KStoreReader) -> list[Split]:
    splits = reader.partitions()
    assert all(isinstance(split, Split) for split in splits)
    return splits


def batches(reader: KStoreReader, splits: Sequence[Split] | None = None) -> Iterator[pa.RecordBatch]:
    for split in splits_of(reader) if splits is None else splits:
        yield from reader.read(split)


def table_of(reader: KStoreReader, splits: Sequence[Split] | None = None) -> pa.Table:
    """Everything that ``reader`` reads, in the order of the splits. Each batch must have exactly the schema that Spark
    checks."""
    schema = arrow_schema(reader.spark_schema)
    found = list(batches(reader, splits))
    for batch in found:
        assert batch.schema.equals(schema), batch.schema
        batch.validate(full=True)
    return pa.Table.from_batches(found, schema)


def offsets_of(reader: KStoreReader, splits: Sequence[Split] | None = None) -> list[int]:
    found: list[int] = table_of(reader, splits).column("offset").to_pylist()
    return found


def record_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows in the form of ``tests.golden.test_golden_reads``, without the leader epoch."""
    columns = {name: table.column(name).to_pylist() for name in ("offset", "key", "value", "headers", "timestampType")}
    columns["timestamp"] = table.column("timestamp").cast(pa.int64()).to_pylist()
    return [
        {
            "offset": row["offset"],
            "timestamp": row["timestamp"] // 1000,
            "timestamp_type": TIMESTAMP_TYPES[row["timestampType"]],
            "key": row["key"],
            "value": row["value"],
            "headers": [(header["key"], header["value"]) for header in row["headers"] or ()],
        }
        for row in (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    ]
