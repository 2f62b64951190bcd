"""The grammar of file and directory names: which are kstore's or Kafka's, and which are foreign."""

from __future__ import annotations

import pytest

from kstore.errors import ConfigError
from kstore.files import paths
from kstore.files.paths import (
    DELETE_MARK,
    FUTURE_MARK,
    STRAY_MARK,
    SegmentName,
    TopicPartition,
    classify,
    cut_name,
    marked_dir_name,
    marked_topic_partition,
    parse_segment_name,
    segment_name,
    topic_partition,
    validate_topic,
)
from kstore.types import OFFSET_MAX

UNIQUE = "0123456789abcdef0123456789abcdef"
# 20 digits that int() accepts but that are not ASCII digits.
ARABIC_DIGITS = "\u0660" * 20


def test_a_base_offset_has_twenty_digits() -> None:
    assert segment_name(0, ".log") == "00000000000000000000.log"
    assert segment_name(42, ".timeindex.deleted") == "00000000000000000042.timeindex.deleted"
    assert segment_name(OFFSET_MAX, ".index") == "09223372036854775807.index"
    assert cut_name(7, 4096) == "00000000000000000007.log.cut-4096"


@pytest.mark.parametrize("suffix", paths.SEGMENT_SUFFIXES)
@pytest.mark.parametrize("state", ["", ".deleted", ".cleaned", ".swap"])
def test_a_segment_name_is_parsed_into_what_it_was_made_of(suffix: str, state: str) -> None:
    parsed = parse_segment_name(segment_name(1234, suffix + state))
    assert parsed == SegmentName(1234, suffix, state)
    assert str(parsed) == segment_name(1234, suffix + state)


NOT_SEGMENT_NAMES = {
    "empty": "",
    "19 digits": "0000000000000000000.log",
    "21 digits": "000000000000000000000.log",
    "no suffix": "00000000000000000000",
    "unknown suffix": "00000000000000000000.logs",
    "suffix of a suffix": "00000000000000000000.log.deleted.deleted",
    "unknown state": "00000000000000000000.log.bak",
    "sign": "-0000000000000000001.log",
    "space": " 0000000000000000001.log",
    "underscore": "0000_000000000000001.log",
    "line break behind": "00000000000000000000.log\n",
    "other digits": ARABIC_DIGITS + ".log",
    "above 63 bits": "09223372036854775808.log",
    "all nines": "99999999999999999999.log",
    "upper case": "00000000000000000000.LOG",
    "checkpoint of the metadata log": "00000000000000000000-0000000000.checkpoint",
    "remote index": "00000000000000000000_abc.index",
}


@pytest.mark.parametrize("name", NOT_SEGMENT_NAMES.values(), ids=NOT_SEGMENT_NAMES.keys())
def test_anything_else_is_no_segment_name_and_is_left_to_its_owner(name: str) -> None:
    assert parse_segment_name(name) is None
    assert classify([name]) == ({suffix: [] for suffix in paths.SEGMENT_SUFFIXES}, [], [], [name])


def test_a_listing_is_sorted_out() -> None:
    names = [
        "00000000000000000100.log",
        "00000000000000000020.log",
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000020.timeindex",
        "00000000000000000020.txnindex",
        "00000000000000000100.snapshot",
        "00000000000000000000.log.deleted",
        "00000000000000000020.index.swap",
        "00000000000000000020.log.cut-4096",
        "leader-epoch-checkpoint",
        ".lock",
        "lost+found",
    ]
    sorted_out = classify(names)
    assert sorted_out.bases == {
        ".log": [0, 20, 100],
        ".index": [0],
        ".timeindex": [20],
        ".txnindex": [20],
        ".snapshot": [100],
    }
    assert sorted_out.unfinished == [SegmentName(0, ".log", ".deleted"), SegmentName(20, ".index", ".swap")]
    assert sorted_out.cuts == ["00000000000000000020.log.cut-4096"]
    assert sorted_out.others == ["leader-epoch-checkpoint", ".lock", "lost+found"]


def test_a_cut_file_needs_a_plain_position() -> None:
    assert classify(["00000000000000000020.log.cut-", "00000000000000000020.log.cut-012"]).cuts == []


# --- directories (Kafka: LocalLogTest) --------------------------------------------------------------------------------


def test_a_directory_name_is_split_at_its_last_dash() -> None:
    assert topic_partition("test_topic-143") == TopicPartition("test_topic", 143)
    assert topic_partition("a-b-c-0") == TopicPartition("a-b-c", 0)
    assert topic_partition("foo.bar-testtopic-42") == TopicPartition("foo.bar-testtopic", 42)
    assert topic_partition("--0") == TopicPartition("-", 0)
    assert str(TopicPartition("a-b", 7)) == "a-b-7"


@pytest.mark.parametrize("mark", [DELETE_MARK, STRAY_MARK, FUTURE_MARK])
def test_a_marked_directory_names_its_partition_and_is_no_partition(mark: str) -> None:
    name = f"foo.bar-testtopic-42.{UNIQUE}{mark}"
    assert marked_topic_partition(name) == (TopicPartition("foo.bar-testtopic", 42), mark)
    assert topic_partition(name) is None


NOT_PARTITIONS = {
    "empty": "",
    "missing separator": "test_topic1999",
    "missing separator, marked": f"test_topic1999.{UNIQUE}-delete",
    "missing topic": "-1999",
    "missing topic, marked": f"-1999.{UNIQUE}-delete",
    "missing partition": "test_topic-",
    "missing partition, marked": f"test_topic-.{UNIQUE}-delete",
    "partition that is no number": "test_topic-1999a",
    "partition that is no number, marked": f"test_topic-1999a.{UNIQUE}-delete",
    "directory of somebody else": "non_kafka_dir",
    "directory of somebody else, marked": "non_kafka_dir-delete",
    "mark alone": "-delete",
    "mark without its unique part": "topic-0-delete",
    "partition above 31 bits": "topic-2147483648",
    "partition with a leading zero": "topic-07",
    "partition with a sign": "topic-+7",
    "partition in other digits": "topic-\u0661",
    "topic of dots": "..-0",
    "topic with a slash": "a/b-0",
    "topic with a space": "a b-0",
    "topic too long": "t" * 250 + "-0",
    "line break behind": "topic-0\n",
}


@pytest.mark.parametrize("name", NOT_PARTITIONS.values(), ids=NOT_PARTITIONS.keys())
def test_any_other_directory_is_no_partition(name: str) -> None:
    assert topic_partition(name) is None
    assert marked_topic_partition(name) is None


@pytest.mark.parametrize("mark", [DELETE_MARK, STRAY_MARK])
def test_the_name_of_a_directory_on_its_way_out_fits_an_entry(mark: str) -> None:
    owner = TopicPartition("t" * 249, 10)
    name = marked_dir_name(owner, UNIQUE, mark)
    assert len(name) == 255
    assert name.endswith(f"t-10.{UNIQUE}{mark}")
    parsed = marked_topic_partition(name)
    assert parsed is not None
    assert parsed[0].partition == 10
    assert owner.topic.startswith(parsed[0].topic)
    assert marked_dir_name(TopicPartition("foo", 3), UNIQUE, mark) == f"foo-3.{UNIQUE}{mark}"


def test_the_name_of_a_directory_on_its_way_in_keeps_the_whole_topic() -> None:
    owner = TopicPartition("t" * 249, 10)
    assert marked_dir_name(owner, UNIQUE, FUTURE_MARK) == f"{owner.topic}-10.{UNIQUE}-future"


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "...", "t" * 249])
def test_topic_names_that_kafka_takes(topic: str) -> None:
    assert validate_topic(topic) == topic


@pytest.mark.parametrize(
    "topic",
    ["", ".", "..", "t" * 250, "a/b", "a b", "\u00e9", "a\n"],
    ids=["empty", "dot", "dots", "too long", "slash", "space", "accent", "line break"],
)
def test_topic_names_that_kafka_refuses(topic: str) -> None:
    with pytest.raises(ConfigError):
        validate_topic(topic)
