"""What a consumer counts, and how its store and Prometheus report it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import kstore
from kstore import CommitFailedError
from kstore.consumer.consumer import Consumer
from kstore.metrics import CONSUMER_METRICS, CONSUMER_PARTITION_METRICS, collector
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.consumer_helpers import T0, T1, consumer, fill


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with kstore.open(tmp_path / "data", durability="os", clock=clock, background=False) as store:
        store.create_topic("t", partitions=3)
        yield store


def exported(*sources: Store | Consumer) -> list[str]:
    registry = CollectorRegistry()
    registry.register(collector(*sources))
    return [line for line in generate_latest(registry).decode().splitlines() if "# " not in line]


def test_it_has_every_metric_of_the_tables_in_their_order(store: Store) -> None:
    fill(store, T0, 1)
    with consumer(store, "t") as reading:
        reading.poll()
        assert list(reading.metrics()) == [metric.name for metric in CONSUMER_METRICS]
        assert list(reading.partition_metrics()[T0]) == [metric.name for metric in CONSUMER_PARTITION_METRICS]


@pytest.mark.parametrize("how", ["poll", "iteration", "values", "columns", "next"])
def test_records_count_that_were_handed_out(store: Store, how: str) -> None:
    fill(store, T0, 30)
    size = store.log("t", 0).metrics()["size_bytes"]
    with consumer(store) as reading:
        reading.assign([T0])
        if how == "poll":
            reading.poll(max_records=14)
        elif how == "columns":
            pytest.importorskip("pyarrow")
            reading.to_arrow(14)
        elif how == "next":
            for _ in range(14):
                next(reading)
        else:
            for count, _ in enumerate(reading if how == "iteration" else reading.values(), 1):
                if count == 14:
                    break
        assert reading.position(T0) == 14
        reading.pause()  # ends the iteration's share
        assert reading.metrics()["records"] == 14
        assert reading.metrics()["bytes"] > 0
        reading.resume()
        reading.poll()
        assert reading.metrics()["records"] == 30
        if how == "poll":
            assert reading.metrics()["bytes"] == size


def test_lag_is_reported_by_partition_and_in_all(store: Store) -> None:
    fill(store, T0, 10)
    fill(store, T1, 4)
    with consumer(store) as reading:
        reading.assign([T0, T1])
        assert reading.partition_metrics() == {}  # not started
        reading.seek(T0, 3)
        reading.seek(T1, 1)
        assert reading.partition_metrics() == {
            T0: {"position": 3, "lag_records": 7},
            T1: {"position": 1, "lag_records": 3},
        }
        found = reading.metrics()
        assert (found["partitions"], found["lag_records"], found["lag_max_records"]) == (2, 10, 7)
        next(reading)
        assert reading.metrics()["lag_records"] == 9  # also within the iteration's share


def test_commits_rebalances_and_silence_are_reported(store: Store, clock: ManualClock) -> None:
    fill(store, T0, 10)
    with consumer(store, "t", group="g") as reading, consumer(store, "t", group="g") as other:
        reading.poll()
        clock.advance(2500)
        assert reading.metrics()["last_poll_age_seconds"] == 2.5
        reading.commit()
        reading.commit()  # nothing new
        other.poll()
        with pytest.raises(CommitFailedError):
            reading.commit({next(iter(other.assignment())): 1})
        found = reading.metrics()
        assert (found["commits"], found["commit_errors"]) == (2, 1)
        assert found["rebalances"] == 2
        reading.poll()
        assert reading.metrics()["rebalances"] == 2
        assert reading.metrics()["last_poll_age_seconds"] == 0


def test_a_store_tells_of_its_open_consumers(store: Store) -> None:
    fill(store, T0, 10)
    with consumer(store, client_id="web") as first, consumer(store, client_id="web") as second:
        assert store.live_consumers() == {"web": first, "web#2": second}
        second.assign([T0])
        second.poll(max_records=4)
        told = exported(store)
        assert f'kstore_consumer_records_total{{client_id="web#2",store="{store.path}"}} 4.0' in told
        labels = f'client_id="web#2",partition="0",store="{store.path}",topic="t"'
        assert f"kstore_consumer_partition_lag_records{{{labels}}} 6.0" in told
        # It also reports itself, under its own name.
        assert len([line for line in exported(first, store) if line.startswith("kstore_consumer_records_total")]) == 2
    assert store.live_consumers() == {}
    assert not [line for line in exported(store, first) if "client_id" in line]


def test_a_store_does_not_keep_a_consumer_alive(store: Store) -> None:
    with pytest.warns(ResourceWarning, match="unclosed"):
        consumer(store, client_id="lost")
    assert store.live_consumers() == {}
