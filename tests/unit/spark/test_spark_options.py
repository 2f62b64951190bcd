"""Every option of a read: its default, its values, and its errors."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable

import pytest

from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition
from kstore.spark import option_values
from kstore.spark.options import (
    EARLIEST,
    LATEST,
    NAMES,
    STREAM_ONLY,
    AtOffsets,
    AtTime,
    AtTimes,
    ReadOptions,
    Topics,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def batch(**options: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs", **options}, streaming=False)


def stream(**options: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs", **options}, streaming=True)


# --- every option: its default, and what a value becomes -------------------------------------------------------------

# Option, field, default, a text, its value. For a batch, unless it is only for streams.
VALUES: list[tuple[str, str, object, str, object]] = [
    ("storage_options", "storage_options", {}, '{"endpointUrl": "x"}', {"endpointUrl": "x"}),
    ("subscribe", "topics", Topics(), "a, b,a,", Topics(subscribe=("a", "b"))),
    ("subscribePattern", "topics", Topics(), " ev.* ", Topics(pattern="ev.*")),
    ("assign", "topics", Topics(), '{"b":[0],"a":[1,0]}', Topics(assign=(A0, A1, B0))),
    ("startingOffsets", "starting", EARLIEST, '{"a":{"0":23,"1":-2}}', AtOffsets({A0: 23, A1: -2})),
    ("startingOffsets", "starting", EARLIEST, "EARLIEST", EARLIEST),
    ("endingOffsets", "ending", LATEST, '{"a":{"0":50,"1":-1}}', AtOffsets({A0: 50, A1: -1})),
    ("endingOffsets", "ending", LATEST, " latest ", LATEST),
    ("startingTimestamp", "starting", EARLIEST, "1700000000000", AtTime(1_700_000_000_000)),
    ("endingTimestamp", "ending", LATEST, " 17 ", AtTime(17)),
    ("startingOffsetsByTimestamp", "starting", EARLIEST, '{"a":{"0":5}}', AtTimes({A0: 5})),
    ("endingOffsetsByTimestamp", "ending", LATEST, '{"a":{"0":5,"1":6}}', AtTimes({A0: 5, A1: 6})),
    ("failOnDataLoss", "fail_on_data_loss", True, "False", False),
    ("minPartitions", "min_partitions", None, "12", 12),
    ("maxRecordsPerPartition", "max_records_per_partition", None, "3000000000", 3_000_000_000),
    ("includeHeaders", "include_headers", False, "true", True),
    ("headerKeys", "header_keys", "string", "BINARY", "binary"),
    ("columns", "columns", None, "offset, value", ("offset", "value")),
    ("isolationLevel", "isolation_level", "read_committed", "READ_UNCOMMITTED", "read_uncommitted"),
    ("checkCrcs", "check_crcs", True, "false", False),
    ("timestampOutOfRange", "timestamp_out_of_range", None, "Null", "null"),
    ("pruneWhere", "prune_where", "", "offset > 5", "offset > 5"),
    ("batchRows", "batch_rows", 20_000, "500", 500),
    ("batchBytes", "batch_bytes", 8 << 20, "16m", 16 << 20),
    ("maxPartitionBytes", "max_partition_bytes", 128 << 20, "1.5g", 3 << 29),
    ("taskPerPartition", "task_per_partition", False, "TRUE", True),
    ("planRequests", "plan_requests", 32, "8", 8),
    ("filterPushdown", "filter_pushdown", False, "true", True),
]
STREAM_VALUES: list[tuple[str, str, object, str, object]] = [
    ("startingOffsets", "starting", LATEST, "earliest", EARLIEST),
    ("startingOffsets", "starting", LATEST, '{"a":{"0":-1}}', AtOffsets({A0: -1})),
    ("startingOffsets", "starting", LATEST, "latest", LATEST),
    ("maxOffsetsPerTrigger", "max_offsets_per_trigger", None, "1000000", 1_000_000),
    ("minOffsetsPerTrigger", "min_offsets_per_trigger", None, "10", 10),
    ("maxTriggerDelay", "max_trigger_delay_ms", 15 * 60_000, "90s", 90_000),
    ("maxTriggerDelay", "max_trigger_delay_ms", 15 * 60_000, "2h", 7_200_000),
    ("maxBytesPerTrigger", "max_bytes_per_trigger", None, "64 MiB", 64 << 20),
]


@pytest.mark.parametrize(("option", "field", "default", "text", "value"), VALUES)
def test_an_option_of_a_batch_has_its_default_and_takes_its_values(
    option: str, field: str, default: object, text: str, value: object
) -> None:
    assert getattr(batch(), field) == default
    assert getattr(batch(**{option: text}), field) == value


@pytest.mark.parametrize(("option", "field", "default", "text", "value"), STREAM_VALUES)
def test_an_option_of_a_stream_has_its_default_and_takes_its_values(
    option: str, field: str, default: object, text: str, value: object
) -> None:
    assert getattr(stream(), field) == default
    assert getattr(stream(**{option: text}), field) == value


def test_every_option_has_a_row_above_or_a_test_below() -> None:
    below = {"path", "paths", "startingOffsetsByTimestampStrategy"}
    assert {row[0] for row in VALUES + STREAM_VALUES} | below == set(NAMES)


@pytest.mark.parametrize("change", [str.lower, str.upper, str.title])
def test_names_are_taken_without_regard_to_case(change: Callable[[str], str]) -> None:
    given = {change(option): text for option, _, _, text, _ in STREAM_VALUES[3:]}
    assert ReadOptions.parse({"PATH": "/logs", **given}, streaming=True) == stream(
        **{option: text for option, _, _, text, _ in STREAM_VALUES[3:]}
    )


def test_options_go_to_tasks_as_they_are() -> None:
    options = stream(assign='{"a":[0]}', startingOffsets='{"a":{"0":5}}', columns="key", maxBytesPerTrigger="1k")
    assert pickle.loads(pickle.dumps(options)) == options


# --- which logs ------------------------------------------------------------------------------------------------------


def test_a_path_is_one_and_paths_are_a_list() -> None:
    assert batch().paths == ("/logs",)
    assert ReadOptions.parse({"paths": '["/a", "s3://b/*"]'}, streaming=False).paths == ("/a", "s3://b/*")


@pytest.mark.parametrize("options", [{}, {"path": " "}, {"subscribe": "a"}])
def test_no_path_is_an_error_that_says_where_tables_lose_it(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"there is no path: give the directory.*CREATE TABLE"):
        ReadOptions.parse(options, streaming=False)


def test_path_and_paths_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="path and paths are both set"):
        batch(paths='["/a"]')


@pytest.mark.parametrize("text", ["/a", "[]", '["/a", 5]', '[""]', "{}", "[" * 10_000])
def test_paths_that_are_no_list_of_paths(text: str) -> None:
    with pytest.raises(ConfigError, match=r"paths is .*, expected a JSON list of paths"):
        ReadOptions.parse({"paths": text}, streaming=False)


def test_all_topics_are_wanted_unless_an_option_says_which() -> None:
    assert [Topics().wants(owner) for owner in (A0, A1, B0)] == [True] * 3
    assert [Topics(subscribe=("b",)).wants(owner) for owner in (A0, B0)] == [False, True]
    assert [Topics(assign=(A1,)).wants(owner) for owner in (A0, A1, B0)] == [False, True, False]


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("ev", ["ev", "eve", "old-ev-1"]),
        ("^ev", ["ev", "eve"]),
        ("^ev$", ["ev"]),
        ("e.*1$", ["old-ev-1"]),
        ("x|^eve", ["eve"]),
    ],
)
def test_a_pattern_matches_a_part_of_a_name_as_in_sparks_kafka_source(pattern: str, topics: list[str]) -> None:
    chosen = Topics(pattern=pattern)
    names = ["ev", "eve", "old-ev-1", "users"]
    assert [name for name in names if chosen.wants(TopicPartition(name, 0))] == topics


def test_topics_that_are_named() -> None:
    assert Topics(subscribe=("b", "a")).named == ("b", "a")
    assert Topics(assign=(A0, A1, B0)).named == ("a", "b")
    assert Topics(pattern="a").named == Topics().named == ()


def test_storage_options_come_one_by_one_or_as_json() -> None:
    options = batch(
        **{
            "storage_options": '{"Key": "k", "anon": false}',
            "storage_options.anon": "TRUE",
            "storage_options.port": "9870",
            "storage_options.timeout": "2.5",
            "storage_options.user": "me",
            "storage_options.secret": '"0123"',
            "storage_options.code": "0123",
            "storage_options.config": '{"a": [1]}',
        }
    )
    assert options.storage_options == {
        "Key": "k",
        "anon": True,
        "port": 9870,
        "timeout": 2.5,
        "user": "me",
        "secret": "0123",
        "code": "0123",
        "config": {"a": [1]},
    }


def test_no_password_is_shown() -> None:
    options = batch(**{"storage_options.password": "hunter2"})
    assert "hunter2" not in repr(options)
    for bad in ({"storage_options": "hunter2"}, {"storage_options.password": '{"hunter2'}):
        with pytest.raises(ConfigError) as caught:
            batch(**bad)
        assert "hunter2" not in str(caught.value)


# --- precedence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["starting", "ending"])
def test_one_time_for_all_goes_before_times_and_these_before_offsets(which: str) -> None:
    offsets = {f"{which}Offsets": '{"a":{"0":1}}'}
    times = {f"{which}OffsetsByTimestamp": '{"a":{"0":2}}'}
    for_all = {f"{which}Timestamp": "3"}
    assert getattr(batch(**offsets), which) == AtOffsets({A0: 1})
    assert getattr(batch(**offsets, **times), which) == AtTimes({A0: 2})
    assert getattr(batch(**offsets, **times, **for_all), which) == AtTime(3)


def test_what_happens_where_no_record_is_at_the_time_goes_with_the_time() -> None:
    latest = {"startingOffsetsByTimestampStrategy": "Latest"}
    assert batch(startingTimestamp="3", **latest).starting == AtTime(3, "latest")
    assert batch(startingOffsetsByTimestamp='{"a":{"0":2}}', **latest).starting == AtTimes({A0: 2}, "latest")
    assert batch(startingTimestamp="3", startingOffsetsByTimestampStrategy="error").starting == AtTime(3, "error")


# --- errors ----------------------------------------------------------------------------------------------------------

OFFSETS = r'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}, got '
TIMES = r'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}, got '

ERRORS: list[tuple[dict[str, str], str]] = [
    # as in Spark's Kafka source
    ({"subscribe": " , "}, "No topics to subscribe to as specified value for option 'subscribe' is ' , '"),
    (
        {"subscribePattern": " "},
        "Pattern to subscribe is empty as specified value for option 'subscribePattern' is ' '",
    ),
    ({"assign": "a"}, "No topicpartitions to assign as specified value for option 'assign' is 'a'"),
    ({"assign": "{}"}, "No topicpartitions to assign as specified value for option 'assign' is '{}'"),
    ({"assign": '{"a":0}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got \'{"a":0}\''),
    ({"assign": '{"a":[-1]}'}, 'Expected e.g. {"topicA":[0,1],"topicB":[0,1]}, got '),
    (
        {"subscribe": "a", "assign": '{"a":[0]}'},
        "Only one of the following options can be specified for kstore source: subscribe, subscribePattern, assign. "
        "See the docs for more details. Found subscribe, assign",
    ),
    ({"startingOffsets": "first"}, OFFSETS + "'first'"),
    ({"startingOffsets": "[]"}, OFFSETS),
    ({"startingOffsets": '{"a":5}'}, OFFSETS),
    ({"startingOffsets": '{"a":{"0":"5"}}'}, OFFSETS),
    ({"startingOffsets": '{"a":{"0":-3}}'}, OFFSETS),
    ({"startingOffsets": '{"a":{"0":true}}'}, OFFSETS),
    ({"startingOffsets": '{"a":{"x":5}}'}, OFFSETS),
    ({"endingOffsets": '{"a":{"0":9223372036854775808}}'}, OFFSETS),
    ({"startingOffsetsByTimestamp": "now"}, TIMES + "'now'"),
    ({"endingOffsetsByTimestamp": '{"a":[1]}'}, TIMES),
    ({"startingTimestamp": "now"}, "startingTimestamp: Expected a single long value, got 'now'"),
    ({"endingTimestamp": "1.5"}, "endingTimestamp: Expected a single long value, got '1.5'"),
    ({"minPartitions": "0"}, "minPartitions must be positive"),
    ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
    (
        {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
        "The value of minOffsetPerTrigger(11) is higher than the maxOffsetsPerTrigger(10).",
    ),
    # an error of kstore's own
    ({"subscribePattern": "("}, "subscribePattern is '(', expected a regular expression ("),
    ({"startingOffsetsByTimestampStrategy": "first"}, "Strategy is 'first', expected one of error, latest"),
    ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes', expected true or false"),
    ({"minPartitions": "many"}, "minPartitions is 'many', expected a whole number"),
    ({"minPartitions": "3000000000"}, "minPartitions is '3000000000', expected a whole number of at most 2147483647"),
    ({"includeHeaders": "1"}, "includeHeaders is '1', expected true or false"),
    ({"columns": "key,,value"}, "columns is 'key,,value', expected names of columns separated by commas"),
    ({"isolationLevel": "serializable"}, "expected one of read_committed, read_uncommitted"),
    ({"headerKeys": "text"}, "expected one of string, binary"),
    ({"checkCrcs": "maybe"}, "checkCrcs is 'maybe', expected true or false"),
    ({"timestampOutOfRange": "ignore"}, "expected one of clamp, null, error"),
    ({"filterPushdown": "yes"}, "filterPushdown is 'yes', expected true or false"),
    ({"batchRows": "0"}, "batchRows must be positive"),
    ({"batchBytes": "3g"}, "batchBytes is '3g', expected at most 2147483647 bytes"),
    ({"taskPerPartition": "1"}, "taskPerPartition is '1', expected true or false"),
    ({"planRequests": "257"}, "planRequests is '257', expected a whole number of at most 256"),
    ({"maxPartitionBytes": "64 monkeys"}, "maxPartitionBytes is '64 monkeys', expected bytes as a number, or like 64m"),
    ({"maxBytesPerTrigger": "0"}, "maxBytesPerTrigger must be positive"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is 'soon', expected a time like 500ms, 30s, 15m or 1h"),
    ({"maxOffsetsPerTrigger": "1e6"}, "maxOffsetsPerTrigger is '1e6', expected a whole number"),
    ({"minOffsetsPerTrigger": "-5"}, "minOffsetsPerTrigger must be positive"),
    # names
    ({"startingOffset": "earliest"}, "has no option 'startingoffset', did you mean 'startingOffsets'?"),
    ({"pollTimeoutMs": "5"}, "the kstore source has no option 'polltimeoutms'"),
    ({"groupIdPrefixes": "x"}, "the kstore source has no option 'groupidprefixes'"),
    ({"kafka.isolation.level": "serializable"}, "kafka.isolation.level is 'serializable', expected one of"),
]

BATCH_ERRORS: list[tuple[dict[str, str], str]] = [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
    ({"startingOffsets": '{"a":{"1":-1}}'}, "startingOffsets for a-1 can't be latest for batch queries"),
    ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
    ({"endingOffsets": '{"a":{"1":-2}}'}, "ending offset for a-1 can't be earliest for batch queries"),
    (
        {"startingOffsets": '{"a":{"0":6}}', "endingOffsets": '{"a":{"0":5}}'},
        "The specified start offset 6 is greater than the end offset 5 for topic a partition 0.",
    ),
    (
        {"startingOffsets": '{"a":{"0":6}}', "endingOffsets": '{"a":{"1":7}}'},
        "The specified start offset and end offset should have the same topic-partitions. "
        "Topic-partitions for start offset: {a-0}, topic-partitions for end offset: {a-1}.",
    ),
    (
        {"startingOffsetsByTimestamp": '{"a":{"0":6}}', "endingOffsetsByTimestamp": '{"a":{"0":5}}'},
        "The specified start timestamp 6 is greater than the end timestamp 5 for topic a partition 0.",
    ),
]

STREAM_ERRORS: list[tuple[dict[str, str], str]] = [
    ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    ({"endingOffsetsByTimestamp": '{"a":{"0":5}}'}, "ending timestamp not valid in streaming queries"),
    ({"endingTimestamp": "5"}, "ending timestamp not valid in streaming queries"),
    ({"pruneWhere": "offset > 5"}, "only a batch query may skip what a condition excludes (pruneWhere)"),
]


@pytest.mark.parametrize("streaming", [False, True, None])
@pytest.mark.parametrize(("options", "message"), ERRORS)
@pytest.mark.sampled(45)
def test_what_is_wrong_everywhere(options: dict[str, str], message: str, streaming: bool | None) -> None:
    with pytest.raises(ConfigError) as caught:
        ReadOptions.parse({"path": "/logs", **options}, streaming=streaming)
    assert message in str(caught.value)


@pytest.mark.parametrize(("options", "message"), BATCH_ERRORS)
def test_what_is_wrong_in_a_batch(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        batch(**options)
    assert message in str(caught.value)
    ReadOptions.parse({"path": "/logs", **options}, streaming=None)


@pytest.mark.parametrize(("options", "message"), STREAM_ERRORS)
def test_what_is_wrong_in_a_stream(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stream(**options)
    assert message in str(caught.value)
    ReadOptions.parse({"path": "/logs", **options}, streaming=None)


def test_every_option_but_lists_of_paths_and_names_has_an_error() -> None:
    tried = {name.lower() for options, _ in ERRORS + BATCH_ERRORS + STREAM_ERRORS for name in options}
    elsewhere = {"path", "paths", "storage_options"}
    assert {name.lower() for name in NAMES} - elsewhere <= tried


@pytest.mark.parametrize("option", STREAM_ONLY)
def test_a_batch_takes_no_notice_of_what_is_for_streams_and_says_so(
    option: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="kstore"):
        batch(**{option: "10"})
    assert f"{option} option ignored in batch queries" in caplog.text


def test_offsets_that_stand_for_others_are_not_compared() -> None:
    options = batch(startingOffsets='{"a":{"0":9}}', endingOffsets='{"a":{"0":-1}}')
    assert options.ending == AtOffsets({A0: -1})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "9" * 5000])
def test_hostile_json_is_refused(text: str) -> None:
    for name in ("assign", "startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp", "storage_options"):
        with pytest.raises(ConfigError):
            batch(**{name: text})


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1b", 1), ("1k", 1024), ("1KB", 1024), ("1 KiB", 1024), ("0.5m", 1 << 19), ("2t", 2 << 40)],
)
def test_sizes_are_powers_of_1024_as_in_spark(text: str, size: int) -> None:
    assert option_values.to_size("size", text) == size


@pytest.mark.parametrize(("text", "ms"), [("0", 0), ("5", 5), ("500ms", 500), ("1 min", 60_000), ("1D", 86_400_000)])
def test_times_have_sparks_units(text: str, ms: int) -> None:
    assert option_values.to_duration_ms("time", text) == ms
