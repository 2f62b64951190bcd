"""``Log.read`` gives what a broker's consumer read from its partitions, in place and opened for writing."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.log import Log
from kstore.record._codec import Record
from tests.support.harness.golden_data import golden_root

TREES = ("clean", "crashed", "recovered", "old", "v1.1.1")


def consumed_files(ending: str) -> list[Any]:
    root = golden_root()
    return [
        pytest.param(tree, path, id=f"{tree}-{path.name.removesuffix(ending)}")
        for tree in TREES
        for path in sorted((root / f"{tree}.consumed").glob(f"*{ending}"))
        if ending != ".jsonl" or not path.name.endswith(".read_committed.jsonl")
    ]


def decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def expected_records(path: Path) -> tuple[dict[str, int], list[dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        first, *rest = (json.loads(line) for line in lines)
    for record in rest:
        record["key"], record["value"] = decoded(record["key"]), decoded(record["value"])
        record["headers"] = [(base64.b64decode(name).decode(), decoded(value)) for name, value in record["headers"]]
    return first, rest


def as_consumed(records: Iterator[Record]) -> list[dict[str, Any]]:
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": record.timestamp_type,
            "epoch": record.leader_epoch if record.leader_epoch >= 0 else None,
            "key": record.key,
            "value": record.value,
            "headers": list(record.headers),
        }
        for record in records
    ]


def assert_reads_as_consumed(log: Log, path: Path, **options: Any) -> None:
    bounds, expected = expected_records(path)
    found = as_consumed(log.read(**options))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == other
    assert log.start_offset == bounds["begin"]
    assert log.high_watermark == bounds["end"]


@pytest.mark.parametrize(("tree", "path"), consumed_files(".jsonl"))
@pytest.mark.sampled(25)
def test_a_broker_partition_reads_as_its_consumer_read_it(tree: str, path: Path) -> None:
    with Log(golden_root() / tree / path.name.removesuffix(".jsonl"), read_only=True) as log:
        assert_reads_as_consumed(log, path)


@pytest.mark.parametrize(("tree", "path"), consumed_files(".jsonl"))
@pytest.mark.sampled(25)
def test_a_broker_partition_opened_for_writing_reads_the_same(tree: str, path: Path, tmp_path: Path) -> None:
    store = tmp_path / tree
    name = path.name.removesuffix(".jsonl")
    shutil.copytree(golden_root() / tree, store, copy_function=shutil.copyfile, ignore=only(name))
    with Log(store / name) as log:
        assert not log.recovery.corrupt
        assert not log.recovery.cut
        assert_reads_as_consumed(log, path)
        log.check()
        end = log.end_offset
        assert log.append(b"one more", key=b"k") == end
        assert [record.value for record in log.read(end)] == [b"one more"]
    with Log(store / name) as log:
        assert log.recovery.clean
        assert [record.value for record in log.read(end)] == [b"one more"]


@pytest.mark.parametrize(("tree", "path"), consumed_files(".read_committed.jsonl"))
def test_committed_reads_leave_out_what_the_consumer_left_out(tree: str, path: Path) -> None:
    with Log(golden_root() / tree / path.name.removesuffix(".read_committed.jsonl"), read_only=True) as log:
        _, expected = expected_records(path)
        assert as_consumed(log.read(isolation_level="read_committed")) == expected


def only(name: str) -> Any:
    """For copytree: the partition ``name`` and the files of the whole store."""

    def ignore(directory: str, names: list[str]) -> set[str]:
        path = Path(directory)
        return {each for each in names if (path / each).is_dir() and each != name}

    return ignore
