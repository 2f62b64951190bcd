"""How many requests a plan, a trigger and a task make of a store far away, and how many of them at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import kstore
from kstore.errors import DataLossError
from kstore.spark.options import ReadOptions
from kstore.spark.schema import spark_schema
from kstore.spark.stream import KStoreStreamReader
from tests.spark.reading import make_reader, offsets_of, splits_of

PARTITIONS = 12
SEGMENTS = 5
# What fsspec asks of a store; ``isdir``, ``exists`` and the like ask one of these, or more.
REQUESTS = ("ls", "info", "cat_file", "isdir", "isfile", "exists", "_open")
LONG_AGO = datetime(2026, 1, 1, 1, 1, 1, 123_456, UTC)


class Requests:
    """Counts the requests to fsspec's store in memory, a call within another one as part of it."""

    def __init__(self, files: Any, monkeypatch: pytest.MonkeyPatch, *, lists_trees: bool) -> None:
        """``lists_trees``: the store has its own way to list everything below a directory."""
        self.files = files
        self._inner = threading.local()
        self.made: list[tuple[str, str]] = []
        if not lists_trees:
            monkeypatch.setattr(files, "find", pytest.importorskip("fsspec").AbstractFileSystem.find)
        for name in (*REQUESTS, "find") if lists_trees else REQUESTS:
            monkeypatch.setattr(files, name, self._counted(name, getattr(files, name)))

    def _counted(self, name: str, call: Any) -> Any:
        def counted(files: Any, path: str, *arguments: Any, **options: Any) -> Any:
            if getattr(self._inner, "is_called", False):
                return call(files, path, *arguments, **options)
            self.made.append((name, path))
            self._inner.is_called = True
            try:
                return call(files, path, *arguments, **options)
            finally:
                self._inner.is_called = False

        return counted

    def take(self) -> list[tuple[str, str]]:
        """The requests since the last call."""
        made, self.made = self.made, []
        return made

    def put(self, name: str, data: bytes, when: datetime = LONG_AGO) -> None:
        """A file that is older than any doubt about its time."""
        self.files().pipe_file(f"/bucket/dir/{name}", data)
        self.files.store[f"/bucket/dir/{name}"].created = when
        self.take()


@pytest.fixture(params=["directory by directory", "as a tree"])
def store(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[tuple[kstore.Store, Requests]]:
    """A store of kstore's and its copy far away."""
    files = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem
    requests = Requests(files, monkeypatch, lists_trees=request.param == "as a tree")
    with kstore.open(tmp_path / "s", durability="os") as here:
        fill(here)
        copy(here, requests)
        yield here, requests


def fill(here: kstore.Store) -> None:
    here.topic("orders", partitions=PARTITIONS, segment_bytes=4_000)
    for partition in range(PARTITIONS):
        with here.log("orders", partition) as log:
            for _ in range(SEGMENTS):
                log.append_many([b"x" * 500] * 5)


def copy(here: kstore.Store, requests: Requests) -> None:
    for file in sorted(here.path.rglob("*")):
        if file.is_file() and ".lock" not in file.name:
            requests.put(str(file.relative_to(here.path)), file.read_bytes())


def stream(url: str, **options: str) -> KStoreStreamReader:
    parsed = ReadOptions.parse({"path": url, "startingOffsets": "earliest", **options}, streaming=True)
    return KStoreStreamReader(parsed, spark_schema(parsed.columns, include_headers=False, header_keys="string"))


def of_partition(made: list[tuple[str, str]], partition: int) -> list[tuple[str, str]]:
    return [(name, path) for name, path in made if f"/orders-{partition}/" in f"{path}/"]


def but_listings(made: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, path) for name, path in made if name not in ("ls", "find")]


def test_a_plan_asks_each_log_for_its_names_its_topic_its_state_and_its_end(
    store: tuple[kstore.Store, Requests], memory: str
) -> None:
    _, requests = store
    splits = splits_of(make_reader(memory, isolationLevel="read_uncommitted"))
    made = requests.take()
    assert sum(split.offset_count for split in splits) == PARTITIONS * SEGMENTS * 5
    for partition in range(PARTITIONS):
        kinds = Counter(Path(path).suffix for _, path in but_listings(of_partition(made, partition)))
        assert kinds == {".metadata": 1, ".state": 1, ".log": 1}
    listings = Counter(name for name, _ in made if name in ("ls", "find"))
    assert listings == ({"ls": 1, "find": 1} if "find" in listings else {"ls": 1 + PARTITIONS})
    assert len(made) <= 4 * PARTITIONS + 2, "and the names of the topics"


def test_a_task_asks_for_the_names_the_state_and_the_bytes(store: tuple[kstore.Store, Requests], memory: str) -> None:
    _, requests = store
    ending = '{"orders":{"3":20}}'
    reader = make_reader(memory, assign='{"orders":[3]}', isolationLevel="read_uncommitted", endingOffsets=ending)
    splits = splits_of(reader)
    requests.take()
    assert offsets_of(reader, splits) == list(range(20))
    made = requests.take()
    kinds = Counter(Path(path).suffix or name for name, path in made)
    # One look at the end, at whether it is still the topic that was planned.
    assert kinds == {"ls": 1, ".state": 1, ".log": 4, ".metadata": 1}


def test_an_idle_trigger_lists_and_asks_nothing_else(store: tuple[kstore.Store, Requests], memory: str) -> None:
    _, requests = store
    reader = stream(memory)
    latest = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    for _ in range(2):
        requests.take()
        assert reader.latestOffset(latest, ReadAllAvailable()) == latest
        assert but_listings(requests.take()) == []
    reader.stop()


def test_a_trigger_asks_only_the_logs_that_have_changed(store: tuple[kstore.Store, Requests], memory: str) -> None:
    here, requests = store
    reader = stream(memory, isolationLevel="read_uncommitted")
    latest = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    here.log("orders", 7).append_many([b"more"] * 3)
    copy(here, requests)
    grown = reader.latestOffset(latest, ReadAllAvailable())
    assert grown == {"orders": {**latest["orders"], "7": latest["orders"]["7"] + 3}}
    made = requests.take()
    assert [path for _, path in but_listings(made) if "/orders-7/" not in path] == []
    assert len(but_listings(of_partition(made, 7))) <= 2
    splits = reader.partitions(latest, grown)
    assert [(piece.start, piece.stop) for split in splits for piece in split.pieces] == [(25, 28)]
    assert len(next(iter(reader.read(splits[0])))) == 3
    reader.stop()


def test_a_log_that_is_written_again_with_the_same_size_is_noticed(
    store: tuple[kstore.Store, Requests], memory: str, tmp_path: Path
) -> None:
    """Only the times differ: a topic that was deleted and made again has files of the same names and sizes."""
    here, requests = store
    reader = stream(memory)
    latest = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    with kstore.open(tmp_path / "other", durability="os") as other:
        fill(other)
        for file in (other.path / "orders-0").iterdir():
            if file.name != ".lock":
                assert file.stat().st_size == (here.path / "orders-0" / file.name).stat().st_size
                requests.put(f"orders-0/{file.name}", file.read_bytes(), LONG_AGO.replace(second=2))
    with pytest.raises(DataLossError, match="orders-0: the topic was deleted"):
        reader.latestOffset(latest, ReadAllAvailable())
    reader.stop()


@pytest.mark.parametrize("given", [1, 4])
def test_logs_are_asked_at_the_same_time(
    given: int, store: tuple[kstore.Store, Requests], memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, requests = store
    together = threading.Barrier(given)
    running: list[None] = []
    most = 0
    cat_file = requests.files.cat_file

    def waiting(files: Any, path: str, **options: Any) -> Any:
        nonlocal most
        if not path.endswith("kstore.state"):
            return cat_file(files, path, **options)
        running.append(None)
        most = max(most, len(running))
        together.wait(30)  # the others come too, or this breaks
        try:
            return cat_file(files, path, **options)
        finally:
            running.pop()

    monkeypatch.setattr(requests.files, "cat_file", waiting)
    splits = splits_of(make_reader(memory, planRequests=given, isolationLevel="read_uncommitted"))
    assert sum(split.offset_count for split in splits) == PARTITIONS * SEGMENTS * 5
    assert most == given


def test_a_stream_sees_that_a_broker_has_moved_the_start_of_a_log(
    store: tuple[kstore.Store, Requests], memory: str
) -> None:
    """The broker says so in a file beside the log's directory, which stays the same."""
    _, requests = store
    for name in [name for name in requests.files.store if name.endswith(("kstore.state", "kstore.topics"))]:
        del requests.files.store[name]
    reader = stream(memory, failOnDataLoss="false")
    latest = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert {log.start_offset for log in reader._holdings.look()} == {0}
    requests.put("log-start-offset-checkpoint", b"0\n1\norders 3 7\n")
    found = {log.place.partition: log.start_offset for log in reader._holdings.look()}
    assert found == {partition: 7 if partition == 3 else 0 for partition in range(PARTITIONS)}
    assert reader.latestOffset(latest, ReadAllAvailable()) == latest
    reader.stop()
