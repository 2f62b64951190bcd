"""Which of the logs' offsets a query reads, when its records are lost, and how much a batch takes."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable

import pytest

from kstore.errors import ConfigError, DataLossError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.spark.admission import TriggerDelay, limit_bytes, limit_offsets
from kstore.spark.options import ReadOptions, Topics
from kstore.spark.places import LogPlace
from kstore.spark.ranges import (
    Held,
    batch_ranges,
    chosen,
    from_json,
    latest_offsets,
    resolve_start,
    stream_ranges,
    to_json,
)
from tests.support.fakes.fake_clock import ManualClock

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def held(owner: TopicPartition, start: int, end: int, high_watermark: int | None = None) -> Held:
    place = LogPlace(f"/logs/{owner}", owner.topic, owner.partition)
    return Held(place, start, end, end if high_watermark is None else high_watermark)


def options(streaming: bool = False, /, **given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs", **given}, streaming=streaming)


def times_ten(place: LogPlace, timestamp_ms: int) -> int | None:
    """Offset n has the time 10 n, up to offset 99."""
    offset = -(-timestamp_ms // 10)
    return offset if offset < 100 else None


def ranges(*logs: Held, **given: str) -> list[tuple[str, int, int]]:
    found = batch_ranges(options(**given), logs, times_ten)
    return [(f"{place.topic}-{place.partition}", start, stop) for place, start, stop in found]


# --- which logs ------------------------------------------------------------------------------------------------------


def test_what_is_asked_for_by_name_has_to_be_there() -> None:
    places = [held(owner, 0, 1).place for owner in (A0, A1, B0)]
    assert chosen(places, Topics()) == places
    assert chosen(places, Topics(subscribe=("a",))) == places[:2]
    assert chosen(places, Topics(pattern="none")) == []
    with pytest.raises(TopicNotFoundError, match="there is no topic c, which option subscribe names"):
        chosen(places, Topics(subscribe=("a", "c")))
    with pytest.raises(TopicNotFoundError, match=r"there are no partitions \{b-1\}, which option assign names"):
        chosen(places, Topics(assign=(A0, TopicPartition("b", 1))))
    assert chosen(places, Topics(subscribe=("a", "c")), must_exist=False) == places[:2]


# --- a batch ---------------------------------------------------------------------------------------------------------


def test_a_batch_reads_all_there_is() -> None:
    assert ranges(held(A1, 5, 10), held(A0, 0, 7), held(B0, 3, 3)) == [("a-0", 0, 7), ("a-1", 5, 10)]


def test_offsets_bound_each_partition() -> None:
    both = held(A0, 10, 100), held(A1, 10, 100)
    start = '{"a":{"0":20,"1":-2}}'
    end = '{"a":{"0":30,"1":-1}}'
    assert ranges(*both, startingOffsets=start, endingOffsets=end) == [("a-0", 20, 30), ("a-1", 10, 100)]
    assert ranges(*both, endingOffsets='{"a":{"0":10,"1":11}}') == [("a-1", 10, 11)]


def test_times_bound_partitions() -> None:
    both = held(A0, 10, 100), held(A1, 10, 50)
    assert ranges(*both, startingTimestamp="195", endingTimestamp="300") == [("a-0", 20, 30), ("a-1", 20, 30)]
    # No record of a-1 is at or after the ending time: it is read to its end.
    assert ranges(*both, endingTimestamp="600") == [("a-0", 10, 60), ("a-1", 10, 50)]
    each = '{"a":{"0":400,"1":300}}'
    assert ranges(*both, startingOffsetsByTimestamp=each) == [("a-0", 40, 100), ("a-1", 30, 50)]
    assert ranges(*both, endingOffsetsByTimestamp=each) == [("a-0", 10, 40), ("a-1", 10, 30)]


def test_the_latest_and_the_earliest_may_stand_in_place_of_a_time() -> None:
    both = held(A0, 10, 100), held(A1, 10, 50)
    assert ranges(*both, startingTimestamp="-1") == []
    assert ranges(*both, startingTimestamp="-2", endingTimestamp="-1") == [("a-0", 10, 100), ("a-1", 10, 50)]
    assert ranges(*both, startingOffsetsByTimestamp='{"a":{"0":-1,"1":400}}') == [("a-1", 40, 50)]
    assert ranges(*both, endingOffsetsByTimestamp='{"a":{"0":-2,"1":-1}}') == [("a-1", 10, 50)]
    start = resolve_start(options(True, startingTimestamp="-1"), both, times_ten)
    assert start.offsets == {A0: 100, A1: 50}
    assert start.at_end == {A0, A1}, "it moves with the log"


@pytest.mark.parametrize("given", [{"startingTimestamp": "600"}, {"startingOffsetsByTimestamp": '{"a":{"0":600}}'}])
def test_no_record_at_or_after_the_start_is_an_error_or_the_end(given: dict[str, str]) -> None:
    # The one after the last stable offset does not count.
    log = held(A0, 10, 50, high_watermark=100)
    with pytest.raises(ConfigError, match="No offset matched from request of topic-partition a-0 and timestamp 600"):
        ranges(log, **given)
    assert ranges(log, **given, startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"startingOffsets": '{"a":{"0":1}}'},
            "Partitions specified for Kafka start offsets don't match what are assigned. Maybe topic partitions are "
            "created or deleted while the query is running. Use -1 for latest, -2 for earliest. "
            "Specified: {a-0} Assigned: {a-0, a-1}",
        ),
        ({"endingOffsets": '{"a":{"0":1,"1":1,"2":1}}'}, "Specified: {a-0, a-1, a-2} Assigned: {a-0, a-1}"),
        (
            {"startingOffsetsByTimestamp": '{"b":{"0":1}}'},
            "Partitions specified for Kafka timestamp based start offsets don't match what are assigned. Maybe topic "
            "partitions are created or deleted while the query is running, or you didn't specify all the partitions. "
            "Specified: {b-0} Assigned: {a-0, a-1}",
        ),
        ({"endingOffsetsByTimestamp": "{}"}, "Kafka timestamp based end offsets don't match"),
        (
            {"startingOffsets": '{"a":{"0":20,"1":-2}}', "endingTimestamp": "150"},
            "The resolved start offset 20 is greater than the resolved end offset 15 for topic a partition 0.",
        ),
        ({"startingTimestamp": "300", "endingTimestamp": "200"}, "The resolved start offset 30 is greater than"),
        ({"startingOffsets": '{"a":{"0":101,"1":-2}}'}, "The resolved start offset 101 is greater than"),
    ],
)
def test_bounds_that_do_not_fit(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ranges(held(A0, 10, 100), held(A1, 10, 100), **given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "reason", "left"),
    [
        ({"startingOffsets": '{"a":{"0":4}}'}, "offset [4, 10) for topic partition a-0: it holds [10, 100)", (10, 100)),
        ({"endingOffsets": '{"a":{"0":120}}'}, "offset [100, 120) for topic partition a-0", (10, 100)),
        ({"endingOffsets": '{"a":{"0":5}}'}, "The end offset 5 for a-0 is below the first existing one, 10.", None),
        (
            {"startingOffsets": '{"a":{"0":2}}', "endingOffsets": '{"a":{"0":5}}'},
            "Could not read records in offset [2, 5) for topic partition a-0",
            None,
        ),
    ],
)
def test_records_that_are_gone_are_an_error_or_a_warning(
    given: dict[str, str], reason: str, left: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    log = held(A0, 10, 100)
    with pytest.raises(DataLossError) as caught:
        ranges(log, **given)
    message = str(caught.value)
    assert message.startswith("Some data may have been lost because they are not available any more; either the data")
    assert "set the source option failOnDataLoss to false. Reason: " in message
    assert reason in message
    with caplog.at_level(logging.WARNING, logger="kstore"):
        assert ranges(log, **given, failOnDataLoss="false") == ([("a-0", *left)] if left else [])
    assert 'set the source option "failOnDataLoss" to "true"' in caplog.text
    assert reason in caplog.text


# --- where a stream begins -------------------------------------------------------------------------------------------


def test_a_stream_begins_at_the_end_and_knows_that_it_does() -> None:
    start = resolve_start(options(True), [held(A0, 3, 9, 12), held(A1, 0, 0)], times_ten)
    assert start.offsets == {A0: 9, A1: 0}
    assert start.at_end == {A0, A1}


def test_only_what_moves_with_the_log_is_at_the_end() -> None:
    given = options(True, startingOffsets='{"a":{"0":9,"1":-1},"b":{"0":-2}}')
    start = resolve_start(given, [held(A0, 3, 9), held(A1, 0, 7), held(B0, 2, 5)], times_ten)
    assert start.offsets == {A0: 9, A1: 7, B0: 2}
    assert start.at_end == {A1}


def test_a_time_that_no_record_has_reached_is_the_end() -> None:
    given = options(True, startingTimestamp="600", startingOffsetsByTimestampStrategy="latest")
    start = resolve_start(given, [held(A0, 3, 90), held(A1, 0, 50)], times_ten)
    assert start.offsets == {A0: 60, A1: 50}
    assert start.at_end == {A1}


@pytest.mark.parametrize(
    ("offset", "reason", "left"),
    [
        (4, "Starting offset for a-0 was 4 but consumer reset to 10.", 10),
        (101, "Partition a-0 offset was changed from 101 to 90. This could either be a user error that the start", 90),
    ],
)
def test_a_start_outside_of_the_log_is_an_error_or_is_reset(offset: int, reason: str, left: int) -> None:
    start = json.dumps({"a": {"0": offset}})
    log = held(A0, 10, 90, high_watermark=100)
    with pytest.raises(DataLossError) as caught:
        resolve_start(options(True, startingOffsets=start), [log], times_ten)
    assert reason in str(caught.value)
    going_on = options(True, startingOffsets=start, failOnDataLoss="false")
    assert resolve_start(going_on, [log], times_ten).offsets == {A0: left}


def test_a_start_has_to_name_all_partitions() -> None:
    with pytest.raises(ConfigError, match="Kafka start offsets don't match what are assigned"):
        resolve_start(options(True, startingOffsets='{"a":{"0":1}}'), [held(A1, 0, 9)], times_ten)


# --- how far a stream can read, and what a batch of it reads ---------------------------------------------------------


def test_a_stream_goes_no_further_than_what_is_decided_and_never_back() -> None:
    given = options(True)
    logs = [held(A0, 0, 50, high_watermark=100), held(A1, 0, 5), held(B0, 7, 7)]
    # Before its restart the query read a-0 uncommitted, beyond the last stable offset.
    assert latest_offsets({A0: 80, A1: 2}, logs, given) == {A0: 80, A1: 5, B0: 7}


def test_a_log_that_lost_its_end_is_an_error_or_a_new_beginning() -> None:
    with pytest.raises(DataLossError, match="Partition a-0 offset was changed from 80 to 50"):
        latest_offsets({A0: 80}, [held(A0, 0, 50)], options(True))
    given = options(True, failOnDataLoss="false")
    assert latest_offsets({A0: 80}, [held(A0, 0, 50)], given) == {A0: 50}


def batch_of(start: dict[TopicPartition, int], end: dict[TopicPartition, int], *logs: Held, **given: str) -> object:
    found = stream_ranges(start, end, logs, options(True, **given))
    return {TopicPartition(place.topic, place.partition): (first, stop) for place, first, stop in found}


def test_a_batch_reads_from_start_to_end() -> None:
    assert batch_of({A0: 3, A1: 4}, {A0: 9, A1: 4}, held(A0, 0, 20), held(A1, 0, 20)) == {A0: (3, 9)}


def test_a_start_above_the_end_reads_nothing() -> None:
    """A failed first batch is planned again with a later start and its old end."""
    assert batch_of({A0: 1800, A1: 50}, {A0: 1000}, held(A0, 0, 1800), held(A1, 0, 50)) == {}


def test_a_new_partition_begins_with_its_first_record() -> None:
    assert batch_of({A0: 3}, {A0: 3, A1: 7}, held(A0, 0, 3), held(A1, 0, 9)) == {A1: (0, 7)}


LOSSES: list[tuple[str, dict[TopicPartition, int], dict[TopicPartition, int], list[Held], object]] = [
    ("Added partition a-1 starts from 4 instead of 0.", {A0: 3}, {A0: 3, A1: 7}, [held(A0, 0, 3), held(A1, 4, 9)],
     {A1: (4, 7)}),
    ("Partitions {a-1} have been deleted.", {A0: 3, A1: 5}, {A0: 9}, [held(A0, 0, 9)], {A0: (3, 9)}),
    ("Partitions {a-1} have been deleted.", {A0: 3, A1: 5}, {A0: 9, A1: 6}, [held(A0, 0, 9)], {A0: (3, 9)}),
    ("Cannot find initial offsets for partitions {a-1}. They may have been deleted.", {A0: 3}, {A0: 9, A1: 6},
     [held(A0, 0, 9)], {A0: (3, 9)}),
    ("Could not read records in offset [3, 5) for topic partition a-0: it holds [5, 20).", {A0: 3}, {A0: 9},
     [held(A0, 5, 20)], {A0: (5, 9)}),
    ("Could not read records in offset [3, 9) for topic partition a-0: it holds [15, 20).", {A0: 3}, {A0: 9},
     [held(A0, 15, 20)], {}),
    ("Could not read records in offset [7, 9) for topic partition a-0: it holds [0, 7).", {A0: 3}, {A0: 9},
     [held(A0, 0, 7)], {A0: (3, 7)}),
    ("Could not read records in offset [7, 9) for topic partition a-0: it holds [0, 7).", {A0: 3}, {A0: 9},
     [held(A0, 0, 7, high_watermark=20)], {A0: (3, 7)}),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "start", "end", "logs", "left"), LOSSES)
def test_what_a_batch_of_a_stream_has_lost(
    reason: str,
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    logs: list[Held],
    left: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(DataLossError) as caught:
        batch_of(start, end, *logs)
    assert reason in str(caught.value)
    with caplog.at_level(logging.WARNING, logger="kstore"):
        assert batch_of(start, end, *logs, failOnDataLoss="false") == left
    assert reason in caplog.text


# --- as Spark keeps them ---------------------------------------------------------------------------------------------


def test_offsets_have_the_form_of_sparks_kafka_source() -> None:
    offsets = {B0: 5, A1: 2, A0: 1}
    assert to_json(offsets) == {"a": {"0": 1, "1": 2}, "b": {"0": 5}}
    assert from_json(to_json(offsets)) == offsets
    assert from_json({}) == {}


@pytest.mark.parametrize("other", [[], {"logOffset": 5}, {"a": {"x": 5}}, {"a": {"0": "5"}}, None])
def test_the_checkpoint_of_another_source_is_refused(other: object) -> None:
    with pytest.raises(ConfigError, match=r"the checkpoint holds .*: it is another source's"):
        from_json(other)


# --- how much a batch takes ------------------------------------------------------------------------------------------


def test_a_limit_is_shared_by_what_there_is() -> None:
    starts = {A0: 100, A1: 0, B0: 7}
    ends = {A0: 1000, A1: 100, B0: 7}
    assert limit_offsets(100, starts, ends) == {A0: 190, A1: 10, B0: 7}
    assert limit_offsets(1000, starts, ends) == ends


def test_every_partition_that_has_something_gets_at_least_one() -> None:
    starts = {TopicPartition("a", number): 0 for number in range(50)}
    ends = dict.fromkeys(starts, 1) | {A0: 10**12}
    taken = limit_offsets(5, starts, ends)
    assert taken[A0] == 4
    assert all(taken[owner] == 1 for owner in starts if owner != A0)


def test_limits_come_to_the_end_whatever_there_is(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(200):
        owners = [TopicPartition("a", number) for number in range(draw.randint(1, 6))]
        at = {owner: draw.randint(0, 5) for owner in owners}
        ends = {owner: at[owner] + draw.choice([0, 1, 7, 500]) for owner in owners}
        limit = draw.randint(1, 300)
        total = sum(ends.values()) - sum(at.values())
        for _ in range(total + 1):
            if at == ends:
                break
            taken = limit_offsets(limit, at, ends)
            assert all(at[owner] <= taken[owner] <= ends[owner] for owner in owners)
            assert sum(taken.values()) - sum(at.values()) <= limit + len(owners)
            assert taken != at
            at = taken
        assert at == ends


def batches_of(count: int, size: int) -> Callable[[TopicPartition, int, int], int]:
    """Every log has batches of ``count`` records and ``size`` bytes; sizes are in whole batches, as for logs."""

    def measure(owner: TopicPartition, start: int, stop: int) -> int:
        return (stop // count - start // count) * size

    return measure


def test_bytes_are_counted_in_whole_batches() -> None:
    measure = batches_of(10, 1000)
    assert limit_bytes(3500, {A0: 0}, {A0: 1000}, measure) == {A0: 30}
    assert limit_bytes(3000, {A0: 30}, {A0: 1000}, measure) == {A0: 60}
    # From within a batch: the rest of the batch is included.
    assert limit_bytes(3500, {A0: 5}, {A0: 1000}, measure) == {A0: 30}
    assert limit_bytes(100_000, {A0: 5}, {A0: 1000}, measure) == {A0: 1000}


def test_the_first_batch_is_taken_whatever_its_size() -> None:
    assert limit_bytes(1, {A0: 0, A1: 3}, {A0: 100, A1: 100}, batches_of(10, 1000)) == {A0: 10, A1: 10}


def test_bytes_are_shared_by_what_there_is() -> None:
    starts, ends = {A0: 0, A1: 0, B0: 4}, {A0: 900, A1: 100, B0: 4}
    assert limit_bytes(50_000, starts, ends, batches_of(10, 1000)) == {A0: 450, A1: 50, B0: 4}


def test_a_batch_waits_for_enough_but_not_for_ever() -> None:
    clock = ManualClock()
    delay = TriggerDelay(100, 60_000, clock)
    starts = {A0: 0}
    assert not delay.holds_back(starts, {A0: 5})  # the first one
    assert delay.holds_back(starts, {A0: 99})
    assert not delay.holds_back(starts, {A0: 100})
    clock.advance(59_999)
    assert delay.holds_back(starts, {A0: 99})
    clock.advance(1)
    assert not delay.holds_back(starts, {A0: 99})
    assert delay.holds_back(starts, {A0: 99})
