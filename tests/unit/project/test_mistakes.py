"""The errors of typical mistakes: one sentence that says what was found, and what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import kstore
import kstore.aio


class Place(NamedTuple):
    """Things to make mistakes with. Untyped, since type checkers find most of these mistakes."""

    path: Path
    log: Any
    store: Any
    producer: Any
    consumer: Any
    queue: Any
    api: Any = kstore


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path = tmp_path_factory.mktemp("mistakes")
    with (
        kstore.Log(path / "lone-0", durability="os") as log,
        kstore.open(path / "data", durability="os", background=False) as store,
    ):
        log.append_many([b"a", b"b", b"c"])
        store.create_topic("t")
        store.log("t").append(b"a")
        with store.producer() as producer, store.consumer("t", group="g") as consumer:
            yield Place(path, log, store, producer, consumer, store.queue("jobs"))


TIMESTAMP = "expected ms since the epoch as an int, or an aware datetime"
ELSEWHERE = "open it in the other process, with read_only=True or shared=True"

MISTAKES: list[tuple[str, Callable[[Place], object], type[Exception], str]] = [
    # --- a log: what is appended
    ("nothing", lambda p: p.log.append(), TypeError, "append() takes"),
    ("a key by position", lambda p: p.log.append(b"a", b"k"), TypeError, "append() takes"),
    (
        "a wrong name",
        lambda p: p.log.append(b"a", ky=b"k"),
        TypeError,
        "append() got an unexpected keyword argument 'ky'",
    ),
    ("text", lambda p: p.log.append("a"), TypeError, "value must be bytes or None, not str"),
    ("text as a key", lambda p: p.log.append(b"a", key="k"), TypeError, "key must be bytes or None, not str"),
    ("a dict", lambda p: p.log.append({"a": 1}), TypeError, "value must be bytes or None, not dict"),
    (
        "a naive time",
        lambda p: p.log.append(b"a", timestamp=datetime(2026, 1, 1)),
        ValueError,
        "give an aware datetime",
    ),
    ("seconds", lambda p: p.log.append(b"a", timestamp=1.5), TypeError, f"a timestamp of type float, {TIMESTAMP}"),
    (
        "a time as text",
        lambda p: p.log.append(b"a", timestamp="now"),
        TypeError,
        f"a timestamp of type str, {TIMESTAMP}",
    ),
    ("seconds in many", lambda p: p.log.append_many([b"a"], timestamps=[1.5]), TypeError, TIMESTAMP),
    (
        "headers as text",
        lambda p: p.log.append(b"a", headers="a"),
        TypeError,
        "headers must be a mapping or an iterable",
    ),
    (
        "a header as text",
        lambda p: p.log.append(b"a", headers=["a"]),
        TypeError,
        "a header must be a (str or bytes, bytes or None)",
    ),
    ("a value as text", lambda p: p.log.append(b"a", headers={"a": "1"}), TypeError, "a header's value must be bytes"),
    (
        "bytes for many",
        lambda p: p.log.append_many(b"abc"),
        TypeError,
        "an iterable with an item for each record, not bytes",
    ),
    (
        "a number for many",
        lambda p: p.log.append_many(3),
        TypeError,
        "an iterable with an item for each record, not int",
    ),
    ("other lengths", lambda p: p.log.append_many([b"a"], keys=[]), ValueError, "keys"),
    # --- a log: what is read
    ("an offset as text", lambda p: p.log.read("0"), TypeError, "start is '0', expected an int"),
    ("an end as text", lambda p: p.log.read(0, "1"), TypeError, "stop is '1', expected an int"),
    (
        "a timeout as text",
        lambda p: p.log.read(follow=True, timeout="1"),
        TypeError,
        "timeout is '1', expected seconds",
    ),
    ("get of text", lambda p: p.log.get("0"), TypeError, "offset is '0', expected an int"),
    ("an index of text", lambda p: p.log["0"], TypeError, "offset is '0', expected an int"),
    ("an index from the end", lambda p: p.log[-1], LookupError, "offset -1 is outside the log, which holds 0 to 3"),
    ("fetch of text", lambda p: p.log.fetch("0"), TypeError, "offset is '0', expected an int"),
    ("a tail of text", lambda p: p.log.tail("2"), TypeError, "count is '2', expected an int"),
    ("a negative tail", lambda p: p.log.tail(-1), ValueError, "count is -1, expected at least 0"),
    ("a beyond read", lambda p: p.log.read(9), LookupError, "offset 9 is outside the log"),
    (
        "a level",
        lambda p: p.log.read(isolation_level="commited"),
        ValueError,
        "one of 'read_uncommitted', 'read_committed'",
    ),
    (
        "a word for time",
        lambda p: p.log.offset_for_time("yesterday"),
        ValueError,
        "a time is ms since the epoch, a datetime",
    ),
    ("membership", lambda p: b"a" in p.log, TypeError, "'Log' object is not a container"),
    ("a truncation", lambda p: p.log.truncate_to("0"), TypeError, "offset is '0', expected an int"),
    ("a deletion", lambda p: p.log.delete_records(1.5), TypeError, "before is 1.5, expected an int"),
    ("a size of text", lambda p: p.log.fetch(0, "64KiB"), TypeError, "max_bytes is '64KiB', expected an int"),
    (
        "headers of a number",
        lambda p: p.log.append(b"a", headers=5),
        TypeError,
        "headers must be a mapping or an iterable",
    ),
    (
        "a rate of text",
        lambda p: p.log.compact(bytes_per_second="1MiB"),
        ValueError,
        "bytes_per_second is '1MiB', expected a number above 0",
    ),
    # --- opening
    ("a number for a path", lambda p: p.api.Log(5), TypeError, "os.PathLike"),
    (
        "a durability",
        lambda p: p.api.Log(p.path / "x", durability="fsync"),
        ValueError,
        "one of 'sync', 'interval', 'os'",
    ),
    ("readonly", lambda p: p.api.Log(p.path / "x", readonly=True), ValueError, "no setting 'readonly': use read_only="),
    ("a typing error", lambda p: p.api.Log(p.path / "x", segment_byts=1), ValueError, "did you mean 'segment_bytes'?"),
    (
        "a broker's name",
        lambda p: p.api.open(p.path / "y", **{"log.retention.hours": 1}),
        ValueError,
        "use retention_ms=",
    ),
    (
        "log_dirs",
        lambda p: p.api.open(p.path / "y", log_dirs="x"),
        ValueError,
        "give the directory as the first argument",
    ),
    ("a second writer", lambda p: p.api.Log(p.path / "lone-0"), OSError, "this process"),
    ("a store opened as a log", lambda p: p.api.Log(p.path / "data"), OSError, "not a log"),
    ("pickle of a log", lambda p: pickle.dumps(p.log), TypeError, f"a Log cannot be pickled or copied: {ELSEWHERE}"),
    ("copy of a log", lambda p: copy.copy(p.log), TypeError, f"a Log cannot be pickled or copied: {ELSEWHERE}"),
    (
        "pickle of a store",
        lambda p: pickle.dumps(p.store),
        TypeError,
        f"a Store cannot be pickled or copied: {ELSEWHERE}",
    ),
    (
        "pickle of a queue",
        lambda p: pickle.dumps(p.queue),
        TypeError,
        "a Queue cannot be pickled or copied: open its store",
    ),
    ("pickle of a consumer", lambda p: pickle.dumps(p.consumer), TypeError, "a Consumer cannot be pickled or copied"),
    ("pickle of a producer", lambda p: pickle.dumps(p.producer), TypeError, "a Producer cannot be pickled or copied"),
    # --- topics
    (
        "a topic that is a number",
        lambda p: p.store.create_topic(5),
        ValueError,
        "topic name 5: expected 1 to 249 of a-z",
    ),
    (
        "partitions as text",
        lambda p: p.store.create_topic("u", "4"),
        ValueError,
        "partitions is '4', expected an int from 1",
    ),
    ("no partitions", lambda p: p.store.create_topic("u", 0), ValueError, "partitions is 0, expected an int from 1"),
    ("a topic twice", lambda p: p.store.create_topic("t"), ValueError, "there is a topic t"),
    ("copies", lambda p: p.store.create_topic("u", replication_factor=3), ValueError, "kstore keeps one copy of a log"),
    (
        "a broker's copies",
        lambda p: p.store.create_topic("u", min_insync_replicas=2),
        ValueError,
        "one copy",
    ),
    (
        "a dict of configs",
        lambda p: p.store.create_topic("u", configs={}),
        ValueError,
        "give each setting",
    ),
    ("a codec", lambda p: p.store.create_topic("u", codec="lz4"), ValueError, "use compression_type="),
    ("no such topic", lambda p: p.store.log("nope"), LookupError, "there is no topic 'nope'"),
    ("no such partition", lambda p: p.store.log("t", 7), LookupError, "topic t has no partition 7"),
    ("a partition as a str", lambda p: p.store.log("t", "0"), LookupError, "topic t has no partition '0'"),
    ("a topic in a list", lambda p: p.store.log(["t"]), ValueError, "a topic is ['t'], expected a name"),
    ("topics in a list", lambda p: p.store.describe_topic(["t"]), ValueError, "a topic is ['t'], expected a name"),
    (
        "a reset of text",
        lambda p: p.store.alter_topic("t", reset="retention_ms"),
        ValueError,
        "expected names of settings",
    ),
    # --- producers
    ("a dict of settings", lambda p: p.api.Producer({"linger.ms": 5}), TypeError, "use kstore.open(path).producer("),
    ("servers", lambda p: p.store.producer(bootstrap_servers="x"), ValueError, "kstore.open(path).producer()"),
    ("librdkafka's", lambda p: p.store.producer(**{"queue.buffering.max.ms": 5}), ValueError, "use linger_ms="),
    (
        "a serializer",
        lambda p: p.store.producer(serializer="json"),
        ValueError,
        "use value_serializer= and key_serializer=",
    ),
    ("acks", lambda p: p.store.producer(acks=2), ValueError, "acks is 2, expected 'all' (or -1), 1 or 0"),
    ("text sent", lambda p: p.producer.send("t", "x").result(9), ValueError, "give bytes, or set value_serializer="),
    ("seconds sent", lambda p: p.producer.send("t", b"x", timestamp=1.5).result(9), TypeError, TIMESTAMP),
    (
        "a topic of bytes",
        lambda p: p.producer.send(b"t", b"x").result(9),
        TypeError,
        "a topic of type bytes, expected a str",
    ),
    ("a partition as text", lambda p: p.producer.send("t", b"x", partition="0"), TypeError, "a partition of type str"),
    ("to a partition as text", lambda p: p.producer.send_many("t", [b"x"], partition="0"), TypeError, "of type str"),
    (
        "many to a list",
        lambda p: p.producer.send_many(["t"], [b"x"]),
        TypeError,
        "a topic of type list, expected a str",
    ),
    (
        "a list as Arrow",
        lambda p: p.producer.send_arrow("t", [b"x"]),
        TypeError,
        "expected a pyarrow.RecordBatch or Table",
    ),
    ("a flush for text", lambda p: p.producer.flush("1"), TypeError, "timeout is '1', expected seconds, or None"),
    (
        "one value sent as many",
        lambda p: p.producer.send_many("t", b"abc"),
        TypeError,
        "values must be an iterable with",
    ),
    ("one text sent as many", lambda p: p.producer.send_many("t", "abc"), TypeError, "values must be an iterable with"),
    (
        "two keys for one value",
        lambda p: p.producer.send_many("t", [b"a"], keys=[b"k", b"l"]),
        ValueError,
        "2 keys for 1 values",
    ),
    ("sent to no topic", lambda p: p.producer.send("nope", b"x").result(9), LookupError, "there is no topic nope"),
    (
        "a delivery as a future",
        lambda p: wait([p.producer.send("t", b"x")]),
        AttributeError,
        "lighter than a future of concurrent.futures: give it delivery.future()",
    ),
    (
        "a future's callback",
        lambda p: p.producer.send("t", b"x").add_done_callback(print),
        AttributeError,
        "a Delivery has add_callback(callback)",
    ),
    # --- consumers
    ("a consumer of a topic", lambda p: p.api.Consumer("t"), TypeError, "use kstore.open(path).consumer("),
    (
        "group_id",
        lambda p: p.store.consumer("t", group_id="g"),
        ValueError,
        "no setting 'group_id' of a consumer: use group=",
    ),
    ("group.id", lambda p: p.store.consumer("t", **{"group.id": "g"}), ValueError, "use group="),
    ("a timeout", lambda p: p.store.consumer("t", consumer_timeout_ms=5), ValueError, "use iteration_timeout_ms="),
    ("a list of topics", lambda p: p.store.consumer(["t"]), ValueError, "a topic is ['t'], expected a name"),
    ("a number for a group", lambda p: p.store.consumer("t", group=5), ValueError, "group is 5, expected text"),
    (
        "a reset",
        lambda p: p.store.consumer("t", auto_offset_reset="first"),
        ValueError,
        "one of 'earliest', 'latest', 'none'",
    ),
    ("a poll", lambda p: p.consumer.poll("1"), ValueError, "timeout is '1', expected seconds"),
    ("a seek by topic", lambda p: p.consumer.seek("t", 0), ValueError, "a partition is 't', expected a TopicPartition"),
    (
        "a seek to text",
        lambda p: p.consumer.seek(("t", 0), "0"),
        ValueError,
        "an offset to seek is '0', expected an int",
    ),
    (
        "a commit",
        lambda p: p.consumer.commit(5),
        ValueError,
        "offsets are 5, expected a mapping of partitions to offsets",
    ),
    (
        "times in a list",
        lambda p: p.consumer.offsets_for_times([0]),
        ValueError,
        "expected a mapping of partitions to times",
    ),
    (
        "the ends of a number",
        lambda p: p.consumer.end_offsets(0),
        ValueError,
        "partitions are 0, expected TopicPartitions",
    ),
    # --- queues
    ("text put", lambda p: p.queue.put("x"), TypeError, "value must be bytes or None, not str"),
    ("a dict put", lambda p: p.queue.put({"a": 1}), TypeError, "value must be bytes or None, not dict"),
    (
        "a negative timeout",
        lambda p: p.queue.get(timeout=-1),
        ValueError,
        "timeout is -1, expected a number that is not",
    ),
    ("a timeout of text", lambda p: p.queue.get(timeout="1"), TypeError, "timeout is '1', expected seconds, or None"),
    ("a count of text", lambda p: p.queue.get_many("2"), ValueError, "count is '2', expected an int, at least 1"),
    (
        "a delay of text",
        lambda p: p.queue.put(b"x", delay="5s"),
        TypeError,
        "delay is '5s', expected seconds as a number",
    ),
    ("a negative delay", lambda p: p.queue.put(b"x", delay=-1), ValueError, "delay is -1, expected 0 to 31622400"),
    (
        "a lease of text",
        lambda p: p.queue.get(lease_seconds="5s"),
        TypeError,
        "lease_seconds is '5s', expected seconds as a number",
    ),
    ("an empty queue", lambda p: p.queue.get_nowait(), kstore.Empty, "jobs has no item that may be delivered now"),
    ("a number for a queue", lambda p: p.store.queue(5), ValueError, "topic name 5: expected 1 to 249 of a-z"),
    ("sqs's name", lambda p: p.store.queue("q", visibility_timeout=5), ValueError, "use lease_seconds="),
    ("a queue by itself", lambda p: p.api.Queue("jobs"), TypeError, "use kstore.open(path).queue(name)"),
    ("retries", lambda p: p.store.queue("q", max_retries=5), ValueError, "use max_deliveries="),
    (
        "a typing error in a queue",
        lambda p: p.store.queue("q", lease_second=5),
        ValueError,
        "did you mean 'lease_seconds'?",
    ),
]


@pytest.mark.parametrize(("mistake", "kind", "says"), [pytest.param(*one[1:], id=one[0]) for one in MISTAKES])
def test_a_mistake_gets_a_sentence(
    place: Place, mistake: Callable[[Place], object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as caught:
        mistake(place)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message
    assert "append_single" not in message
    assert "object cannot be interpreted" not in message
    assert "not supported between instances" not in message


@pytest.mark.parametrize("name", ["to_arrow", "to_arrow_batches", "to_pandas", "to_polars"])
def test_a_misspelt_option_of_columns_names_the_nearest(place: Place, name: str) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip({"to_pandas": "pandas", "to_polars": "polars"}.get(name, "pyarrow"))
    with pytest.raises(kstore.ConfigError, match="there is no option 'column', did you mean 'columns'"):
        getattr(place.log, name)(column=["key"])
    with pytest.raises(kstore.ConfigError, match="there is no option 'column', did you mean 'columns'"):
        place.consumer.to_arrow(column=["key"])
    with pytest.raises(kstore.ConfigError, match="there is no option 'partition': there are columns, headers_type"):
        place.store.to_arrow("t", partition=0)


def test_a_data_frame_of_a_log_names_what_works(place: Place) -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"use log\.to_pandas\(\)"):
        pandas.DataFrame(place.log)
    with pytest.raises(TypeError, match=r"records are no array: use log\.to_pandas\(start, stop\)"):
        pandas.DataFrame(place.log.read())
    assert len(pandas.DataFrame({"logs": [place.log, place.log]})) == 2  # as objects they may stand in one


@pytest.mark.parametrize("opens", [kstore.Log, kstore.open])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("localhost:9092", "localhost:9092 is an address, and a "),
        ("a.example:9092,b.example:9092", "write ./a.example:9092,b.example:9092 for one of that name"),
        ("~has-no-such-user/x", "has-no-such-user has no home here; write ./~has-no-such-user/x for a directory"),
    ],
)
def test_what_is_no_path_becomes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[str], Any], path: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kstore.ConfigError) as caught:
        opens(path)
    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    opens(f"./{path}").close()
    opens(path).close()  # now it is there


@pytest.mark.parametrize(("opens", "what"), [(kstore.Log, "a log"), (kstore.open, "a directory of logs")])
def test_a_directory_of_other_files_stays_as_it_is(tmp_path: Path, opens: Callable[[Path], Any], what: str) -> None:
    for name in ("a.txt", "b.csv"):
        (tmp_path / name).touch()
    with pytest.raises(kstore.NotALogError, match=f"not {what}: it holds a.txt, b.csv, and no "):
        opens(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.csv"]


def test_a_new_disk_and_hidden_files_do_not_keep_a_store_from_being_made(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".hidden").touch()
    kstore.open(tmp_path).close()
    (tmp_path / "a.txt").touch()
    kstore.open(tmp_path).close()  # it is a store now


AIO_MISTAKES = [
    ("Log", "use await store.log(topic)"),
    ("Queue", "use await store.queue(name)"),
    ("Consumer", "use store.consumer(topic, group=...)"),
    ("Producer", "use store.producer()"),
    ("Store", "use kstore.aio.open(path)"),
    ("Job", "use await queue.get()"),
    ("Reader", "use log.read()"),
    ("SentMany", "use producer.send_many(topic, values)"),
]


@pytest.mark.parametrize(("name", "says"), AIO_MISTAKES)
def test_a_class_of_asyncio_by_itself_says_what_makes_one(name: str, says: str) -> None:
    with pytest.raises(TypeError) as caught:
        getattr(kstore.aio, name)("path")
    assert str(caught.value) == f"an aio.{name} belongs to an open store: {says}"


@pytest.mark.parametrize("name", ["topics", "log", "producer", "close_"])
def test_a_store_of_asyncio_that_is_not_awaited_says_how_to_open_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(AttributeError, match=f"no '{name}' before it is open: use \"async with ... as opened:\""):
        getattr(kstore.aio.open(tmp_path), name)


def test_the_mistakes_have_different_names() -> None:
    assert len({one[0] for one in MISTAKES}) == len(MISTAKES)
