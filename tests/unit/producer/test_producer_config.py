"""Settings of a producer: defaults, accepted values, limits, contradictions; and the records that it accepts."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from kstore.errors import ConfigError
from kstore.producer.config import ProducerConfig, next_client_id, producer_settings
from kstore.producer.interceptors import ProducerInterceptor
from kstore.producer.records import ProducerRecord, RecordMetadata, unknown_metadata

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


def made(**settings: Any) -> ProducerConfig:
    return ProducerConfig.from_settings(**settings)


def test_the_defaults_are_kafkas() -> None:
    assert dataclasses.asdict(ProducerConfig()) == {
        "acks": -1,
        # Kafka: 16384. An embedded log has no requests to keep small.
        "batch_size": 65536,
        "buffer_memory": 33554432,
        "client_id": "",
        "compression_type": "none",
        "compression_gzip_level": -1,
        "compression_lz4_level": 9,
        "compression_zstd_level": 3,
        "delivery_timeout_ms": 120000,
        "enable_idempotence": True,
        "interceptors": (),
        # Kafka has no default serializer.
        "key_serializer": "bytes",
        "linger_ms": 5,
        "max_block_ms": 60000,
        "max_request_size": 1048576,
        "metadata_max_idle_ms": 300000,
        "partitioner": "sticky",
        "partitioner_adaptive_partitioning_enable": True,
        "partitioner_ignore_keys": False,
        "retries": 2147483647,
        "retry_backoff_ms": 100,
        "retry_backoff_max_ms": 1000,
        "transaction_timeout_ms": 60000,
        "transactional_id": None,
        "value_serializer": "bytes",
    }


@pytest.mark.parametrize(
    ("settings", "batch_size"),
    [
        ({"buffer_memory": "32MiB"}, 65536),
        ({"buffer_memory": "2MiB"}, 65536),
        ({"buffer_memory": "1MiB"}, 32768),
        ({"buffer_memory": 1000}, 16384),
        ({"buffer_memory": "1MiB", "batch_size": 65536}, 65536),
        ({"buffer.memory": "1MiB", "batch.size": 65536}, 65536),
    ],
)
def test_little_memory_makes_batches_smaller_unless_their_size_is_given(
    settings: dict[str, Any], batch_size: int
) -> None:
    assert made(**settings).batch_size == batch_size


def test_every_setting_has_a_row_with_what_it_is_for() -> None:
    rows = producer_settings()
    assert [row.name for row in rows] == [field.name for field in dataclasses.fields(ProducerConfig)]
    assert all(row.kafka_name and row.expected and row.doc.endswith(".") for row in rows)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("batch_size", 0, INT32_MAX),
        ("buffer_memory", 0, INT64_MAX),
        ("compression_gzip_level", -1, 9),
        ("compression_lz4_level", 1, 17),
        ("compression_zstd_level", -131_072, 22),
        ("delivery_timeout_ms", 5, INT32_MAX),
        ("max_block_ms", 0, INT64_MAX),
        ("max_request_size", 0, INT32_MAX),
        ("metadata_max_idle_ms", 5000, INT64_MAX),
        ("retries", 0, INT32_MAX),
        ("retry_backoff_ms", 0, INT64_MAX),
        ("retry_backoff_max_ms", 0, INT64_MAX),
        ("transaction_timeout_ms", 0, INT32_MAX),
    ],
)
def test_a_number_may_lie_on_its_borders_and_not_beyond(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(made(**{name: value}), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(ConfigError, match=f"{name} is {value}, expected "):
            made(**{name: value})


def test_gzip_has_no_level_zero() -> None:
    with pytest.raises(ConfigError, match="compression_gzip_level is 0"):
        made(compression_gzip_level=0)


def test_a_linger_longer_than_an_int_is_the_greatest_int() -> None:
    assert made(linger_ms=INT64_MAX).linger_ms == INT32_MAX
    for wrong in (-1, INT64_MAX + 1):
        with pytest.raises(ConfigError, match="linger_ms is"):
            made(linger_ms=wrong)


def test_sizes_and_times_read_with_units() -> None:
    config = made(batch_size="64KiB", linger_ms="0.5s", max_block_ms=None)
    assert (config.batch_size, config.linger_ms, config.max_block_ms) == (65536, 500, INT64_MAX)


@pytest.mark.parametrize(
    ("given", "acks"),
    [("all", -1), ("-1", -1), (" ALL ", -1), (-1, -1), ("1", 1), (1, 1), ("0", 0), (0, 0)],
)
def test_acks_read_as_words_and_numbers(given: Any, acks: int) -> None:
    assert made(acks=given).acks == acks


@pytest.mark.parametrize("wrong", ["", "2", 2, -2, None, True, 1.0, "leader"])
def test_other_acks_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"acks is .*, expected 'all'"):
        made(acks=wrong)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_has_its_level(codec: str) -> None:
    levels = {"gzip": 4, "lz4": 5, "zstd": 6}
    config = made(compression_type=codec, compression_gzip_level=4, compression_lz4_level=5, compression_zstd_level=6)
    assert config.compression_level(config.compression_type) == levels.get(codec)


@pytest.mark.parametrize("wrong", ["", "producer", "uncompressed", "GZIP", None, 1])
def test_another_codec_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"compression_type is .*, expected one of 'none', 'gzip'"):
        made(compression_type=wrong)


@pytest.mark.parametrize(
    "name", ["enable_idempotence", "partitioner_ignore_keys", "partitioner_adaptive_partitioning_enable"]
)
def test_a_switch_reads_as_a_bool_or_its_word(name: str) -> None:
    for given, value in ((True, True), (False, False), ("true", True), (" False ", False)):
        assert getattr(made(**{name: given}), name) is value
    for wrong in (1, 0, "yes", ""):
        with pytest.raises(ConfigError, match=f"{name} is .*, expected True or False"):
            made(**{name: wrong})


def test_an_unknown_setting_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'linger\.m' of a producer, did you mean 'linger_ms'"):
        made(**{"linger.m": 5})
    with pytest.raises(ConfigError, match="no setting 'bootstrap' of a producer: there are acks, batch_size, "):
        made(bootstrap="localhost")


# --- idempotence and transactions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"acks": "all", "retries": 1}, id="what-it-needs"),
        pytest.param({"acks": "-1"}, id="acks-as-a-number"),
        pytest.param({"enable_idempotence": True}, id="asked-for"),
        pytest.param({"enable_idempotence": True, "acks": -1, "retries": 5}, id="asked-for-with-what-it-needs"),
        pytest.param({"transactional_id": "id"}, id="transactions"),
    ],
)
def test_idempotence_is_on_where_it_can_be(settings: dict[str, Any]) -> None:
    assert made(**settings).enable_idempotence is True


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"acks": 0}, id="acks-0"),
        pytest.param({"acks": "1"}, id="acks-1"),
        pytest.param({"retries": 0}, id="no-retries"),
        pytest.param({"retries": 0, "acks": 1}, id="both"),
    ],
)
def test_settings_that_exclude_idempotence_turn_it_off_unless_requested(
    settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="kstore"):
        assert made(**settings).enable_idempotence is False
    assert "enable_idempotence is off" in caplog.text
    with pytest.raises(ConfigError, match=r"(acks|retries) is .* with enable_idempotence"):
        made(enable_idempotence=True, **settings)


@pytest.mark.parametrize("settings", [{}, {"acks": 0}, {"acks": 1, "retries": 0}, {"acks": "all"}])
def test_idempotence_can_be_turned_off(settings: dict[str, Any]) -> None:
    assert made(enable_idempotence=False, **settings).enable_idempotence is False


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"enable_idempotence": False}, id="turned-off"),
        pytest.param({"acks": 1}, id="acks"),
        pytest.param({"retries": 0}, id="retries"),
    ],
)
def test_transactions_need_idempotence(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="enable_idempotence is False, expected True with a transactional_id, 'id'"):
        made(transactional_id="id", **settings)


@pytest.mark.parametrize("wrong", ["", 5, b"id"])
def test_a_transactional_id_is_a_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"transactional_id is .*, expected a str of 1 to 32767 bytes, or None"):
        made(transactional_id=wrong)


# --- times ------------------------------------------------------------------------------------------------------------


def test_a_delivery_timeout_shorter_than_the_linger_is_refused() -> None:
    with pytest.raises(ConfigError, match="delivery_timeout_ms is 999, expected at least linger_ms, 1000"):
        made(delivery_timeout_ms=999, linger_ms=1000)
    assert made(delivery_timeout_ms=1000, linger_ms=1000).delivery_timeout_ms == 1000


def test_a_default_delivery_timeout_follows_the_linger(caplog: pytest.LogCaptureFixture) -> None:
    assert made(linger_ms=150_000).delivery_timeout_ms == 150_000
    assert "delivery_timeout_ms is raised from 120000 to linger_ms, 150000" in caplog.text


# --- what is plugged in -----------------------------------------------------------------------------------------------


class AddsNothing:
    """A partitioner, a serializer and half an interceptor."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return 0

    def serialize(self, topic: str, headers: object, data: object) -> bytes:
        return b""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer", "partitioner"])
def test_what_is_plugged_in_is_kept_as_it_is(name: str) -> None:
    plugged: Any
    for plugged in (AddsNothing(), repr):
        assert getattr(made(**{name: plugged}), name) is plugged
    for wrong in (None, 5, "pickle", AddsNothing, object()):
        with pytest.raises(ConfigError, match=f"{name} is .*, expected "):
            made(**{name: wrong})


def test_interceptors_come_as_a_sequence_of_whole_ones() -> None:
    whole = ProducerInterceptor()
    assert made(interceptors=[whole, whole]).interceptors == (whole, whole)
    for wrong in (None, whole, "text", [None], [AddsNothing()], [ProducerInterceptor]):
        with pytest.raises(ConfigError, match=r"interceptors is .*, expected a sequence of objects with on_send and"):
            made(interceptors=wrong)


def test_a_producer_has_a_name_of_its_own() -> None:
    assert next_client_id(made(client_id="payments")) == "payments"
    assert next_client_id(made(transactional_id="tx")) == "producer-tx"
    first, second = (next_client_id(made()) for _ in range(2))
    prefix, _, number = first.rpartition("-")
    assert prefix == "producer"
    assert second == f"producer-{int(number) + 1}"
    with pytest.raises(ConfigError, match="client_id is 5, expected a str"):
        made(client_id=5)


# --- records ----------------------------------------------------------------------------------------------------------


def test_equal_records_are_equal_and_have_one_hash() -> None:
    record = ProducerRecord("t", b"v", b"k", [("h", b"1")], 5, 1)
    same = ProducerRecord("t", b"v", b"k", (("h", b"1"),), 5, 1)
    assert record == same
    assert hash(record) == hash(same)
    assert record.headers == (("h", b"1"),)
    for change in ({"topic": "u"}, {"value": b"w"}, {"key": None}, {"headers": ()}, {"timestamp": 6}, {"partition": 2}):
        assert dataclasses.replace(record, **change) != record
    assert ProducerRecord("t") == ProducerRecord("t", None, None, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        pytest.param({"topic": None}, TypeError, "a topic of type NoneType, expected a str", id="no-topic"),
        pytest.param({"topic": ""}, ValueError, "an empty topic", id="empty-topic"),
        pytest.param({"topic": "t", "timestamp": -1}, ValueError, "timestamp -1, expected None", id="timestamp"),
        pytest.param({"topic": "t", "partition": -1}, ValueError, "partition -1, expected None", id="partition"),
        pytest.param({"topic": "t", "partition": 1.0}, TypeError, "float", id="partition-not-whole"),
    ],
)
def test_a_record_that_cannot_be_is_refused(fields: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ProducerRecord(**fields)


def test_metadata_of_a_record_whose_offset_is_not_known() -> None:
    metadata = RecordMetadata("t", 3, timestamp=7, serialized_key_size=4, serialized_value_size=5)
    assert not metadata.has_offset
    assert metadata.offset == -1
    assert metadata.has_timestamp
    assert metadata == ("t", 3, -1, 7, 4, 5)
    assert str(metadata) == "t-3@-1"


def test_metadata_of_a_record_that_has_arrived() -> None:
    metadata = RecordMetadata("t", 3, 12, 7, 4, 5)
    assert (metadata.has_offset, metadata.offset) == (True, 12)
    assert str(metadata) == "t-3@12"


def test_metadata_of_a_record_that_failed_has_what_is_known() -> None:
    assert unknown_metadata("t") == ("t", -1, -1, -1, -1, -1)
    assert unknown_metadata("t", 0).partition == 0
    assert not unknown_metadata("t").has_timestamp
