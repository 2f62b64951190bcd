"""Beside a real broker that writes and compacts, every reader finds all records and no damage (``live_cleaner``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kstore
from tests.interop.conftest import Kafka
from tests.interop.live_cleaner import PASSES, TOPICS, Seen, read_beside, records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.long]

SECONDS = 30


def test_every_reader_finds_all_records_and_no_damage_beside_a_brokers_cleaner(kafka: Kafka, directory: Path) -> None:
    beside = read_beside(kafka.broker(directory), kafka.java, kafka.jars, SECONDS)
    assert beside.failures == []
    assert len(beside.passes) == 2 * len(PASSES) * len(TOPICS)
    assert beside.rounds > 5


def test_spark_finds_no_damage_beside_a_brokers_cleaner(kafka: Kafka, spark: SparkSession, directory: Path) -> None:
    """A read up to a planned end sees neither version of a record that was replaced after the plan."""

    def by_spark(log: kstore.Log, seen: Seen) -> None:
        planned = Seen("Spark")
        frame = spark.read.format("kstore").option("subscribe", log.path.name.rpartition("-")[0])
        for row in frame.load(str(log.path.parent)).select("offset", "key", "value").sort("offset").collect():
            planned.add(row.offset, bytes(row.key), bytes(row.value))
        records(log, seen)

    beside = read_beside(kafka.broker(directory), kafka.java, kafka.jars, SECONDS, [by_spark])
    assert beside.failures == []
    assert len(beside.passes) == 2 * len(TOPICS)
    assert beside.rounds > 5
