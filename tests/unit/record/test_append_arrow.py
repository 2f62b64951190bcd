"""Rows of Arrow columns, appended from Arrow's buffers, give the same bytes and errors as single values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kstore.engine.read import columns
from kstore.errors import KstoreError
from kstore.log import Log
from kstore.types import AppendInfo
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.selection import tries
from tests.support.lives.log_helpers import TIME

TABLES = tries(200, quick=20)
KINDS = (pa.binary(), pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary(3))
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"max_message_bytes": 400},
    {"compression_type": "zstd"},
    {"compression_type": "gzip", "max_message_bytes": 300},
    {"message_timestamp_type": "LogAppendTime"},
    {"cleanup_policy": "compact"},
    {"message_timestamp_before_max_ms": 1000},
)


def texts(generator: random.Random, count: int, kind: pa.DataType) -> pa.Array:
    if kind == pa.binary(3):
        return pa.array([generator.choice([b"abc", None]) for _ in range(count)], kind)
    sizes = generator.choice([(0, 1, 5), (40, 200), (150,)])
    found: list[bytes | None] = [b"v" * generator.choice(sizes) for _ in range(count)]
    if generator.random() < 0.4:
        found = [generator.choice([each, None]) for each in found]
    made = pa.array(found, pa.binary()).cast(kind)
    return made.dictionary_encode() if generator.random() < 0.1 else made


def times(generator: random.Random, count: int) -> pa.Array:
    wanted: list[int | None] = [TIME + generator.randrange(-2000, 2000) for _ in range(count)]
    if generator.random() < 0.3:
        wanted[generator.randrange(count)] = generator.choice([None, None, -1, -5, TIME + 2**40])
    unit = generator.choice(["s", "ms", "us", "ns", None, None])
    if unit is None:
        return pa.array(
            wanted,
            generator.choice([pa.int64(), pa.int64(), pa.uint64()])
            if -5 not in wanted and -1 not in wanted
            else pa.int64(),
        )
    scale = {"s": 0.001, "ms": 1, "us": 1000, "ns": 1_000_000}[unit]
    return pa.array(
        [None if each is None else min(int(each * scale) + 7, 2**62) for each in wanted], pa.timestamp(unit)
    )


def headers(generator: random.Random, count: int) -> pa.Array:
    rows: list[Any] = [
        generator.choice([None, [], [{"key": "h", "value": b"1"}], [{"key": "\u00e9", "value": None}] * 2])
        for _ in range(count)
    ]
    kind = generator.randrange(6)
    if kind == 0:
        return pa.nulls(count)
    if kind == 1:
        pairs = [None if each is None else [(one["key"], one["value"]) for one in each] for each in rows]
        return pa.array(pairs, pa.map_(pa.string(), pa.binary()))
    if kind == 2:
        rows[generator.randrange(count)] = generator.choice([[None], [{"key": None, "value": b"x"}]])
    key = pa.binary() if kind == 3 else pa.string()
    if kind == 3:
        rows[generator.randrange(count)] = [{"key": generator.choice([b"\xff", b"k"]), "value": b""}]
        rows = [
            each
            and [{**one, "key": one["key"].encode() if isinstance(one["key"], str) else one["key"]} for one in each]
            for each in rows
        ]
    return pa.array(rows, pa.list_(pa.struct([("key", key), ("value", pa.binary())])))


def table(generator: random.Random) -> pa.Table:
    count = generator.choice([1, 1, 3, 30])
    made = {"value": texts(generator, count, generator.choice(KINDS))}
    if generator.random() < 0.6:
        made["key"] = texts(generator, count, generator.choice(KINDS))
    if generator.random() < 0.6:
        made["timestamp"] = times(generator, count)
    if generator.random() < 0.4:
        made["headers"] = headers(generator, count)
    if generator.random() < 0.2:
        made["partition"] = pa.array([3] * count)
    parts = [pa.table(made)]
    if generator.random() < 0.4:
        parts.append(parts[0].slice(generator.randrange(count)))
    return pa.concat_tables(parts)


def appended(path: Path, given: pa.Table, settings: dict[str, Any]) -> tuple[object, bytes]:
    said: list[object] = []
    with Log(path, durability="os", clock=ManualClock(TIME), **settings) as log:
        log.append(b"first", key=b"k")
        for _ in range(2):
            try:
                said.append(log.append_arrow(given))
            except (KstoreError, TypeError, ValueError) as error:
                said.append((type(error), str(error), getattr(error, "record_errors", None)))
    return said, b"".join(file.read_bytes() for file in sorted(path.glob("*.log")))


def test_a_table_becomes_the_bytes_that_its_values_become(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    fast = 0
    for number in range(TABLES):
        given, settings = table(generator), generator.choice(SETTINGS)
        found = appended(tmp_path / f"{number}", given, settings)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "_objects_of", lambda *_: 1 / 0)
            try:
                fast += isinstance(appended(tmp_path / f"fast-{number}", given, settings)[0][0], AppendInfo)  # type: ignore[index]
            except ZeroDivisionError:
                pass
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(columns, "table_rows", lambda *_: None)
            assert found == appended(tmp_path / f"plain-{number}", given, settings)
    assert TABLES // 4 < fast < TABLES
