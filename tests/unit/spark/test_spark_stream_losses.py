"""A stream whose next records are gone fails and names them, or goes on if failOnDataLoss is false."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kstore
from kstore.errors import DataLossError, LogNotFoundError
from tests.unit.spark.test_spark_stream import ALL, Query, append, read, reader


@pytest.fixture(name="store")
def opened_store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store(tmp_path / "store") as opened:
        opened.create_topic("t", 2)
        yield opened


def test_retention_that_overtakes_a_query_is_an_error_or_skipped(store: kstore.Store) -> None:
    values = append(store, 20)
    start = {"t": {"0": 5, "1": 0}}
    store.log("t", 0).delete_records(12)
    source = reader(store)
    end = source.latestOffset(start, ALL)
    with pytest.raises(DataLossError, match=r"Could not read records in offset \[5, 12\) for topic partition t-0"):
        source.partitions(start, end)
    going_on = reader(store, failOnDataLoss="false")
    assert read(going_on, start, going_on.latestOffset(start, ALL)) == values[12:]


@pytest.mark.parametrize("going_on", [False, True])
def test_retention_between_plan_and_read(store: kstore.Store, going_on: bool) -> None:
    values = append(store, 20)
    source = reader(store, startingOffsets="earliest", failOnDataLoss=str(not going_on))
    start = source.initialOffset()
    (split,) = source.partitions(start, source.latestOffset(start, ALL))
    store.log("t", 0).delete_records(12)
    if going_on:
        assert [value for batch in source.read(split) for value in batch["value"].to_pylist()] == values[12:]
    else:
        with pytest.raises((DataLossError, LookupError), match="0"):
            list(source.read(split))


@pytest.mark.parametrize("going_on", [False, True])
def test_a_deleted_topic_is_an_error_or_left_out(store: kstore.Store, going_on: bool) -> None:
    store.create_topic("u", 1)
    append(store, 3, topic="u")
    values = append(store, 3)
    source = reader(store, startingOffsets="earliest", failOnDataLoss=str(not going_on))
    start = source.initialOffset()
    source.latestOffset(start, ALL)
    store.delete_topic("u")
    end = source.latestOffset(start, ALL)
    assert end == {"t": {"0": 3, "1": 0}}
    if going_on:
        assert read(source, start, end) == values
    else:
        with pytest.raises(DataLossError, match=r"Partitions \{u-0\} have been deleted"):
            source.partitions(start, end)


@pytest.mark.parametrize("going_on", [False, True])
def test_a_recreated_topic_is_an_error_or_read_from_its_end(store: kstore.Store, going_on: bool) -> None:
    append(store, 10)
    source = reader(store, startingOffsets="earliest", failOnDataLoss=str(not going_on))
    query = Query(source)
    query.begin()
    query.step()
    store.delete_topic("t")
    store.create_topic("t", 2)
    append(store, 4)
    if not going_on:
        with pytest.raises(DataLossError, match="Partition t-0: the topic was deleted and created again"):
            query.step()
        # A restarted query knows only its offsets.
        with pytest.raises(DataLossError, match="Partition t-0 offset was changed from 10 to 4"):
            reader(store).latestOffset(query.at, ALL)
        return
    assert query.step() == 0
    new = append(store, 3)
    assert query.step() == 3
    assert query.values[-3:] == new


def test_a_store_that_is_gone_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    with kstore.Store(tmp_path / "store") as store:
        store.create_topic("t", 1)
        append(store, 3)
    source = reader(tmp_path / "store")
    start = source.initialOffset()
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(LogNotFoundError):
        source.latestOffset(start, ALL)
