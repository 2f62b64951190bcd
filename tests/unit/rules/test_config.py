"""Settings of a log: defaults, accepted values, limits, and messages of refusals."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kstore
import kstore.consumer.config as consumer_config
import kstore.producer.config as producer_config
import kstore.queue.config as queue_config
from kstore import config
from kstore.config import LogConfig, settings
from kstore.consumer.config import ConsumerConfig
from kstore.errors import ConfigError
from kstore.producer.config import ProducerConfig
from kstore.queue.config import QueueConfig
from kstore.setting_rules import Rule

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DAY_MS = 86_400_000


class Integer:
    """A number that is not an int, like numpy's."""

    def __index__(self) -> int:
        return 4096


def test_the_defaults_are_kafkas_but_for_what_kstore_says_otherwise() -> None:
    assert dataclasses.asdict(LogConfig()) == {
        "segment_bytes": 1073741824,
        "segment_ms": 604800000,
        "segment_jitter_ms": 0,
        "segment_index_bytes": 10485760,
        "index_interval_bytes": 4096,
        "flush_messages": 9223372036854775807,
        "flush_ms": 1000,
        "max_message_bytes": 1048588,
        "compression_type": "producer",
        "compression_gzip_level": -1,
        "compression_lz4_level": 9,
        "compression_zstd_level": 3,
        "message_timestamp_type": "CreateTime",
        "message_timestamp_before_max_ms": 9223372036854775807,
        "message_timestamp_after_max_ms": 3600000,
        "cleanup_policy": "delete",
        # Kafka: seven days.
        "retention_ms": -1,
        "retention_bytes": -1,
        # Kafka has no such setting.
        "retention_groups": (),
        # Kafka, and a store: a minute.
        "file_delete_delay_ms": 0,
        "min_cleanable_dirty_ratio": 0.5,
        "min_compaction_lag_ms": 0,
        "max_compaction_lag_ms": 9223372036854775807,
        "delete_retention_ms": 86400000,
        "producer_id_expiration_ms": 86400000,
        "file_mode": 0o600,
        "max_batch_bytes_uncompressed": 67108864,
        "open_files_max": 256,
    }


@pytest.mark.parametrize(
    ("value", "size"),
    [
        pytest.param(2000, 2000, id="int"),
        pytest.param(Integer(), 4096, id="index"),
        pytest.param("2000", 2000, id="digits"),
        pytest.param("2000B", 2000, id="bytes"),
        pytest.param("2kB", 2000, id="decimal-kilo"),
        pytest.param("3MB", 3_000_000, id="decimal-mega"),
        pytest.param("1GB", 1_000_000_000, id="decimal-giga"),
        pytest.param("2KiB", 2048, id="kibi"),
        pytest.param("64MiB", 64 << 20, id="mebi"),
        pytest.param("1GiB", 1 << 30, id="gibi"),
        pytest.param("1.5 GiB", 3 << 29, id="fraction"),
        pytest.param(" 1MiB ", 1 << 20, id="blanks"),
    ],
)
def test_a_size_reads_as_a_number_or_with_a_unit(value: Any, size: int) -> None:
    assert LogConfig.from_settings(segment_bytes=value).segment_bytes == size


@pytest.mark.parametrize(
    ("value", "time_ms"),
    [
        pytest.param(5, 5, id="int"),
        pytest.param("5", 5, id="digits"),
        pytest.param("500ms", 500, id="milliseconds"),
        pytest.param("90s", 90_000, id="seconds"),
        pytest.param("15min", 900_000, id="minutes"),
        pytest.param("15m", 900_000, id="short-minutes"),
        pytest.param("12h", DAY_MS // 2, id="hours"),
        pytest.param("7d", 7 * DAY_MS, id="days"),
        pytest.param("1.5s", 1500, id="fraction"),
        pytest.param(timedelta(days=2, milliseconds=1), 2 * DAY_MS + 1, id="timedelta"),
    ],
)
def test_a_time_reads_as_ms_a_timedelta_or_with_a_unit(value: Any, time_ms: int) -> None:
    assert LogConfig.from_settings(segment_ms=value).segment_ms == time_ms


@pytest.mark.parametrize(
    "name", ["flush_messages", "message_timestamp_before_max_ms", "message_timestamp_after_max_ms"]
)
def test_none_is_no_limit_where_there_may_be_none(name: str) -> None:
    assert getattr(LogConfig.from_settings(**{name: None}), name) == INT64_MAX


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("segment_bytes", 1024, INT32_MAX),
        ("segment_ms", 1, INT64_MAX),
        ("segment_jitter_ms", 0, INT64_MAX),
        ("segment_index_bytes", 24, INT32_MAX),
        ("index_interval_bytes", 0, INT32_MAX),
        ("flush_messages", 1, INT64_MAX),
        ("flush_ms", 1, INT64_MAX),
        ("max_message_bytes", 68, INT32_MAX),
        ("compression_gzip_level", -1, 9),
        ("compression_lz4_level", 1, 17),
        ("compression_zstd_level", -131_072, 22),
        ("message_timestamp_before_max_ms", 0, INT64_MAX),
        ("message_timestamp_after_max_ms", 0, INT64_MAX),
        ("file_mode", 0o600, 0o777),
        ("max_batch_bytes_uncompressed", 1024, INT32_MAX),
        ("open_files_max", 1, INT32_MAX),
    ],
)
def test_a_number_may_lie_on_its_borders_and_not_beyond(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(LogConfig.from_settings(**{name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=f"{name} is {value}, expected .* from .* to "):
            LogConfig.from_settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("compression_type", ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        ("message_timestamp_type", ("CreateTime", "LogAppendTime")),
        ("cleanup_policy", ("delete", "compact", "compact,delete")),
    ],
)
def test_a_choice_takes_its_words_only(name: str, choices: tuple[str, ...]) -> None:
    for choice in choices:
        assert getattr(LogConfig.from_settings(**{name: choice}), name) == choice
    for wrong in ("", choices[0].upper(), "foobar", None, 3, b"delete"):
        with pytest.raises(ConfigError, match=f"{name} is .*, expected one of {choices[0]!r}"):
            LogConfig.from_settings(**{name: wrong})


@pytest.mark.parametrize(
    ("value", "policy"),
    [
        pytest.param("delete,compact", "compact,delete", id="order"),
        pytest.param("compact, delete", "compact,delete", id="blanks"),
        pytest.param(["delete", "compact"], "compact,delete", id="list"),
        pytest.param(("compact",), "compact", id="tuple"),
        pytest.param("delete,delete", "delete", id="twice"),
    ],
)
def test_a_cleanup_policy_is_a_list_in_any_order(value: Any, policy: str) -> None:
    assert LogConfig.from_settings(cleanup_policy=value).cleanup_policy == policy


@pytest.mark.parametrize(
    ("value", "mode"),
    [("0640", 0o640), ("0o660", 0o660), (0o666, 0o666)],
    ids=["octal-text", "python-octal-text", "int"],
)
def test_a_file_mode_reads_as_octal_text_or_int(value: Any, mode: int) -> None:
    assert LogConfig.from_settings(file_mode=value).file_mode == mode


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("segment_bytes", "64 potatoes", id="unknown-unit"),
        pytest.param("segment_bytes", "64mib", id="unit-in-the-wrong-case"),
        pytest.param("segment_bytes", "1.0001kB", id="part-of-a-byte"),
        pytest.param("segment_bytes", "-1", id="negative-text"),
        pytest.param("segment_bytes", "", id="empty"),
        pytest.param("segment_bytes", "٦٤MiB", id="foreign-digits"),
        pytest.param("segment_bytes", "9" * 5000, id="endless-digits"),
        pytest.param("segment_bytes", 1e6, id="float"),
        pytest.param("segment_bytes", True, id="bool"),
        pytest.param("segment_bytes", b"4096", id="bytes"),
        pytest.param("segment_bytes", None, id="none"),
        pytest.param("segment_bytes", "7d", id="a-time-for-a-size"),
        pytest.param("segment_ms", "64MiB", id="a-size-for-a-time"),
        pytest.param("segment_ms", timedelta(microseconds=1500), id="part-of-a-ms"),
        pytest.param("segment_ms", timedelta(days=-1), id="negative-timedelta"),
        pytest.param("flush_messages", "1000", id="text-for-a-count"),
        pytest.param("compression_gzip_level", 0, id="gzip-level-0"),
        pytest.param("file_mode", 0o400, id="mode-that-cannot-write"),
        pytest.param("file_mode", 0o4600, id="mode-with-setuid"),
        pytest.param("file_mode", "rw-------", id="mode-in-letters"),
        pytest.param("file_mode", "0800", id="mode-of-bad-digits"),
        pytest.param("cleanup_policy", ["delete", 3], id="policy-of-a-number"),
    ],
)
def test_a_bad_value_is_refused_with_name_found_and_expected(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is .*, expected ") as refused:
        LogConfig.from_settings(**{name: value})
    assert len(str(refused.value)) < 300


def test_a_refusal_says_what_would_do() -> None:
    with pytest.raises(ConfigError) as refused:
        LogConfig.from_settings(segment_bytes="64 potatoes")
    assert str(refused.value) == (
        "segment_bytes is '64 potatoes', expected bytes as an int or like '64MiB', from 1024 to 2147483647"
    )


def test_the_constructor_and_replace_check_too() -> None:
    with pytest.raises(ConfigError, match="segment_ms is 0"):
        LogConfig(segment_ms=0)
    with pytest.raises(ConfigError, match="segment_ms is 0"):
        dataclasses.replace(LogConfig(), segment_ms=0)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        pytest.param("segment_byte", "segment_bytes", id="a-letter-short"),
        pytest.param("segment.byts", "segment_bytes", id="kafkas-spelling"),
        pytest.param("log.segment.bytes", "segment_bytes", id="brokers-spelling"),
        pytest.param("max_message_byts", "max_message_bytes", id="typing-error"),
        pytest.param("cleanup_polcy", "cleanup_policy", id="letter-left-out"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"no setting '{name}', did you mean '{nearest}'"):
        LogConfig.from_settings(**{name: 1})


def test_an_unknown_setting_like_no_other_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="no setting 'replicas': there are segment_bytes, segment_ms, "):
        LogConfig.from_settings(replicas=3)


ALL_RULES = [
    pytest.param(LogConfig.from_settings, config.RULES, id="log"),
    pytest.param(ProducerConfig.from_settings, producer_config.RULES, id="producer"),
    pytest.param(ConsumerConfig.from_settings, consumer_config.RULES, id="consumer"),
    pytest.param(QueueConfig.from_settings, queue_config.RULES, id="queue"),
]


@pytest.mark.parametrize(
    ("kind", "rules"),
    [
        pytest.param(LogConfig, config.RULES, id="log"),
        pytest.param(config.StoreConfig, config.STORE_RULES, id="store"),
        pytest.param(ProducerConfig, producer_config.RULES, id="producer"),
        pytest.param(ConsumerConfig, consumer_config.RULES, id="consumer"),
        pytest.param(QueueConfig, queue_config.RULES, id="queue"),
    ],
)
def test_a_default_is_what_its_rule_makes_of_it_and_so_need_not_be_parsed(
    kind: type[Any], rules: Mapping[str, Rule]
) -> None:
    for field in dataclasses.fields(kind):
        parsed = rules[field.name].parse(field.default)
        if field.default is not None:
            assert (type(parsed), parsed) == (type(field.default), field.default), field.name
        assert type(getattr(kind(), field.name)) is type(parsed), field.name


@pytest.mark.parametrize(("from_settings", "rules"), ALL_RULES)
def test_kafkas_dotted_names_are_accepted(from_settings: Callable[..., Any], rules: Mapping[str, Rule]) -> None:
    defaults = from_settings()
    for name, rule in rules.items():
        if not rule.kafka_name:
            continue
        value = getattr(defaults, name)
        assert getattr(from_settings(**{rule.kafka_name: value}), name) == value
        if "." in rule.kafka_name:
            with pytest.raises(ConfigError, match=f"{name} is given twice, also by its Kafka name"):
                from_settings(**{name: value, rule.kafka_name: value})


@pytest.mark.parametrize(
    "module", [config, producer_config, consumer_config, queue_config], ids=lambda one: one.__name__
)
def test_a_hint_is_for_a_name_that_is_no_setting_and_names_only_settings_that_exist(module: ModuleType) -> None:
    arguments = {"durability", "read_only", "partitions", "timeout", "group"}
    for name, hint in module.HINTS.items():
        assert name not in module.RULES
        assert "." not in name
        assert set(re.findall(r"(\w+)=", hint)) <= {*module.RULES, *arguments}


@pytest.mark.parametrize("name", ["group_id", "group.id"])
def test_a_setting_of_another_client_is_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"there is no setting {name!r} of a consumer: use group=")):
        ConsumerConfig.from_settings(**{name: "billing"})


def test_a_store_accepts_the_dotted_names_of_its_own_settings_and_of_its_topics(tmp_path: Path) -> None:
    names: dict[str, Any] = {"log.flush.offset.checkpoint.interval.ms": "2m", "retention.ms": "7d"}
    with kstore.open(tmp_path, background=False, **names) as store:
        own: dict[str, Any] = {"segment.bytes": "64MiB"}
        store.create_topic("t", **own)
        assert store.config.checkpoint_interval_ms == 120_000
        assert store.describe_topic("t").config.retention_ms == 604_800_000
        assert store.describe_topic("t").settings == {"segment_bytes": 64 << 20}
        other: dict[str, Any] = {"retention.bytes": "1GiB"}
        store.alter_topic("t", reset=["segment.bytes"], **other)
        assert store.describe_topic("t").settings == {"retention_bytes": 1 << 30}


def test_a_config_is_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        LogConfig().segment_bytes = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("policy", "compacted"), [("delete", False), ("compact", True), ("compact,delete", True)], ids=str
)
def test_a_log_with_compact_in_its_policy_is_compacted(policy: str, compacted: bool) -> None:
    assert LogConfig.from_settings(cleanup_policy=policy).is_compacted is compacted


@pytest.mark.parametrize(
    ("compression_type", "target"),
    [("producer", "gzip"), ("uncompressed", "none"), ("gzip", "gzip"), ("zstd", "zstd")],
    ids=["producer", "uncompressed", "same", "other"],
)
def test_the_target_codec_is_the_logs_or_the_producers(compression_type: str, target: str) -> None:
    assert LogConfig.from_settings(compression_type=compression_type).target_codec("gzip") == target


def test_each_codec_with_levels_has_its_own() -> None:
    config = LogConfig(compression_gzip_level=1, compression_lz4_level=2, compression_zstd_level=-5)
    levels = {name: config.compression_level(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")}
    assert levels == {"none": None, "gzip": 1, "snappy": None, "lz4": 2, "zstd": -5}


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_table_has_a_documented_row_for_every_setting() -> None:
    rows = settings()
    assert [row.name for row in rows] == [field.name for field in dataclasses.fields(LogConfig)]
    for row in rows:
        assert row.default == getattr(LogConfig(), row.name)
        assert row.expected
        assert row.doc[0].isalpha()
        assert row.doc.endswith(".")


def test_the_names_are_kafkas_with_dots_for_underscores() -> None:
    named_otherwise = {row.name: row.kafka_name for row in settings() if row.kafka_name != row.name.replace("_", ".")}
    # kstore's own settings have no Kafka name.
    assert named_otherwise == {
        "file_mode": "",
        "max_batch_bytes_uncompressed": "",
        "open_files_max": "",
        "retention_groups": "",
    }


def test_a_configuration_shows_what_differs_from_the_defaults() -> None:
    assert repr(LogConfig(segment_bytes=LogConfig().segment_bytes)) == "LogConfig()"
    changed = LogConfig(compression_type="lz4", retention_ms=5)
    assert repr(changed) == "LogConfig(compression_type='lz4', retention_ms=5)"
