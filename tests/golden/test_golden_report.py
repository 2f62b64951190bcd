"""A report's numbers are those that Kafka's DumpLogSegments printed for a broker's files."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import pytest

import kstore
from tests.support.harness.golden_data import golden_partitions, golden_root

BATCH = re.compile(r"(\w+): (\S+)")
SHALLOW = ".log.shallow.txt"


@cache
def logs() -> dict[str, dict[str, Any]]:
    document = kstore.report(golden_root() / "clean", deep=True).document
    return {log["name"]: log for log in document["partitions"]}


def dumped(name: str) -> dict[int, list[dict[str, str]]]:
    """The batches of each segment by its base offset, as Kafka's tool printed them."""
    found = {}
    for path in sorted((golden_root() / "clean.dumped" / "clean" / name).glob(f"*{SHALLOW}")):
        lines = path.read_text().splitlines()
        found[int(path.name.removesuffix(SHALLOW))] = [
            dict(BATCH.findall(line)) for line in lines if line.startswith("baseOffset: ")
        ]
    return found


@pytest.mark.parametrize("name", golden_partitions("clean"))
@pytest.mark.sampled(12)
def test_counts_are_those_of_kafka_s_dump(name: str) -> None:
    log, segments = logs()[name], dumped(name)
    every = [batch for batches in segments.values() for batch in batches]
    assert log["batches"] == len(every)
    assert log["bytes"] == sum(int(batch["size"]) for batch in every)
    assert log["records"] == sum(int(batch["count"]) for batch in every)
    assert log["transactional_batches"] == sum(batch["isTransactional"] == "true" for batch in every)
    assert log["control_batches"] == sum(batch["isControl"] == "true" for batch in every)
    assert log["producer_batches"] == sum(int(batch["producerId"]) >= 0 for batch in every)
    assert log["empty_batches"] == sum(batch["count"] == "0" for batch in every)
    assert {codec: sizes["batches"] for codec, sizes in log["codecs"].items()} == Counter(
        batch["compresscodec"] for batch in every
    )
    assert [
        (segment["base"], segment["batches"], segment["records"], segment["bytes"]) for segment in log["segment_list"]
    ] == [
        (base, len(batches), sum(int(each["count"]) for each in batches), sum(int(each["size"]) for each in batches))
        for base, batches in segments.items()
    ]
    if every:
        assert (log["start"], log["end"]) == (int(every[0]["baseOffset"]), int(every[-1]["lastOffset"]) + 1)


@pytest.mark.parametrize("name", golden_partitions("clean"))
def test_the_timeline_has_the_times_of_kafka_s_dump(name: str) -> None:
    timeline = logs()[name]["timeline"]
    expected: Counter[int] = Counter()
    for batches in dumped(name).values():
        for batch in batches:
            time = int(batch.get("CreateTime") or batch["LogAppendTime"])
            expected[time // timeline["width"] * timeline["width"] if time >= 0 else -1] += int(batch["size"])
    assert {start: size for start, size, *_ in timeline["buckets"]} == {
        start: size for start, size in expected.items() if start >= 0
    }
    assert timeline["untimed"][0] == expected[-1]
