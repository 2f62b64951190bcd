"""The recipes of the Spark guide, as it prints them: each gives what the job gives that it replaces, row for row."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kstore
import kstore.spark
from kstore.spark.jobs import command, compact, rebuild_indexes, repartition, stats
from tests.spark.test_docs import GUIDE
from tests.spark.test_jobs import MINUTE_MS, make_store
from tests.support.lives.log_helpers import TIME
from tests.unit.project.test_docs import code_blocks, section

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.filterwarnings(r"ignore:kstore\.spark\.jobs\..* will be removed:DeprecationWarning")

HEADING = re.compile(r"^### (.*)$", re.MULTILINE)


def recipes() -> dict[str, str]:
    """The code of each recipe, by its heading; the first one's names are used by the second."""
    _, *parts = HEADING.split(section(GUIDE, "Recipes"))
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return {heading: block for heading, text in pairs for block in code_blocks(text, "python")}


def run(spark: SparkSession, *headings: str, **replaced: str) -> dict[str, Any]:
    """The names that recipes define; each quoted word of the guide that is a key of ``replaced`` is its value."""
    code = "\n\n".join(recipes()[heading] for heading in headings)
    for word, other in replaced.items():
        assert f'"{word}"' in code
        code = code.replace(f'"{word}"', repr(other))
    names: dict[str, Any] = {"spark": spark, "kstore": kstore, "print": lambda *_: None}
    # The imports of all recipes are in the first.
    exec(recipes()[compact.RECIPE].split("\n\n")[0], names)
    exec(code, names)
    return names


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys, records without, tombstones, headers, aborted transactions; and times that do not rise."""
    path = make_store(tmp_path_factory.mktemp("recipes") / "store", 1500)
    with kstore.open(path, durability="os") as opened:
        for number in range(60):
            time = TIME + (1500 + number * (-1) ** number) * MINUTE_MS
            headers = [("b", b""), ("n", None)] if number % 2 else []
            log = opened.log("orders", number % 3)
            log.append(b"late", key=b"key-%d" % (number % 7), timestamp=time, headers=headers)
        opened.log("orders", 0).append(None, timestamp=TIME)
    return path


def assert_same(one: DataFrame, two: DataFrame) -> None:
    two = two.select(*one.columns)
    assert one.count() == two.count() > 0
    assert (one.exceptAll(two).count(), two.exceptAll(one).count()) == (0, 0)


def test_every_deprecated_job_has_its_recipe() -> None:
    named = {job.RECIPE for job in (compact, repartition, stats, rebuild_indexes)}
    assert named <= recipes().keys()
    assert command.instead(compact.RECIPE) == 'docs/spark.md has it as a recipe, "The last record of each key"'


@pytest.mark.long
def test_the_last_record_of_each_key_is_what_compact_keeps(spark: SparkSession, store: Path) -> None:
    found = run(spark, compact.RECIPE, data=str(store), clicks="orders")
    assert_same(compact.compact(spark, [str(store)], topics=["orders"]), found["compacted"])
    kept = found["newest"].drop("rank")
    assert_same(compact.compact(spark, [str(store)], topics=["orders"], keep_tombstones=True), kept)


@pytest.mark.long
def test_a_repartitioned_topic_has_the_records_of_the_job_in_its_order(
    spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    run(spark, compact.RECIPE, repartition.RECIPE, data=str(store), clicks="orders", wider=str(tmp_path / "recipe"))
    repartition.repartition(spark, [str(store)], str(tmp_path / "job"), topic="orders", partitions=5)
    by_recipe, by_job = (records_of(tmp_path / name) for name in ("recipe", "job"))
    assert len(by_job) == 5
    assert all(by_job.values())
    assert by_recipe == by_job


def records_of(path: Path) -> dict[int, list[Any]]:
    """The committed records of each partition, in order."""

    def fields(record: Any) -> tuple[Any, ...]:
        return record.offset, record.key, record.value, record.timestamp, tuple(record.headers)

    with kstore.open(path, read_only=True) as opened:
        return {
            partition: [
                fields(record) for record in opened.log("orders", partition).read(isolation_level="read_committed")
            ]
            for partition in opened.partitions("orders")
        }


@pytest.mark.long
def test_counts_over_time_add_up_to_those_of_stats(spark: SparkSession, store: Path) -> None:
    hours = run(spark, "Counts over time", data=str(store))["hours"].where("topic = 'orders'")
    of_records = ("keyed", "tombstones", "key_bytes", "value_bytes")
    found = {row["partition"]: row for row in hours.groupBy("partition").sum("records", *of_records).collect()}
    counted = stats.stats(spark, [str(store)], deep=True).counted
    assert len(found) == 3
    assert len({log for log, _ in counted if "orders-" in log}) == 3
    for partition, row in found.items():
        parts = [part for (log, _), part in counted.items() if log.endswith(f"orders-{partition}")]
        assert all(part.records is not None for part in parts)
        own = [part.records for part in parts if part.records is not None]
        assert row["sum(keyed)"] == sum(each.keyed_count for each in own)
        assert row["sum(tombstones)"] == sum(each.tombstone_count for each in own)
        assert row["sum(key_bytes)"] == sum(each.key_sizes.sum for each in own)
        assert row["sum(value_bytes)"] == sum(each.value_sizes.sum for each in own)
        # The job counts the transactions' markers too.
        markers = sum(part.control_batch_count for part in parts)
        assert row["sum(records)"] == sum(part.record_count for part in parts) - markers


@pytest.mark.long
def test_the_keys_with_the_most_records_are_those_of_stats(spark: SparkSession, store: Path) -> None:
    top = run(spark, stats.RECIPE, data=str(store))["top"]
    assert_same(stats.top_keys(spark, [str(store)], 3, {}), top)
    assert [row["rank"] for row in top.collect()] == [1, 2, 3]


@pytest.mark.long
def test_recovered_indexes_have_the_bytes_that_the_job_gives_them(spark: SparkSession, tmp_path: Path) -> None:
    found = {}
    for name in ("recipe", "job"):
        # Not copies: a copy does not count as cleanly closed, and the job would leave its last segments alone.
        path = make_store(tmp_path / name, 500)
        expected = {str(each.relative_to(path)): each.read_bytes() for each in path.glob("*/*index")}
        for number, each in enumerate(sorted(expected)):
            if number % 2:
                (path / each).unlink()
            else:
                (path / each).write_bytes(b"\xee" * 100)
        if name == "recipe":
            rows = run(spark, rebuild_indexes.RECIPE, data=str(path))["rebuilt"].collect()
            assert Counter(row["done"]["status"] for row in rows) == {0: len({Path(each).parent for each in expected})}
        else:
            rebuild_indexes.rebuild_indexes(spark, [str(path)])
        found[name] = {str(each.relative_to(path)): each.read_bytes() for each in path.glob("*/*index")} == expected
    assert found == {"recipe": True, "job": True}
