"""What compiled code refuses: numbers that lead outside its memory, lists that shrink, objects without their parts.

Without the checks most of this would end the process.
"""

from __future__ import annotations

import gc
import re
import struct
from array import array
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.engine._ends import EndsMaker
from kstore.errors import TopicNotFoundError, TopicWaitTimeoutError
from kstore.files.local import OsFileSystem
from kstore.files.lock import DirectoryLock
from kstore.indexes._search import offset_entries, time_entries
from kstore.producer._accumulate import (
    Deliveries,
    Delivery,
    DrainLock,
    Loan,
    PartitionQueue,
    ProducerBatch,
    SendPath,
    TopicQueues,
    seal_run,
)
from kstore.producer.records import unknown_metadata
from kstore.queue._jobs import new_jobs
from kstore.record._codec import BatchBuffer, OpenBatch, Record, RecordCursor
from kstore.record._compact import OffsetMap
from kstore.record._rows import BytesRows, RowEncoder, Rows
from kstore.record._runs import Run, RunRecords, RunValues, walk_run
from kstore.shared._turn import SharedTurnLock
from kstore.state.shared_slot import MAGIC, SLOT, TAIL_KNOWN, VERSION
from tests.support.lives.producer_helpers import Unthreaded, unthreaded

ROOT = Path(__file__).parents[3]
# Also of a generator that is an argument; and the starred display of a tuple, which Cython makes in the same way.
COMPREHENSION = re.compile(r"^[^{]*[\[(][^{]* for [a-z_]+(, [a-z_]+)* in |[ =(]\(\*\w+, ")


class Saboteur:
    """Headers that run ``act`` when they are iterated."""

    def __init__(self, act: Callable[[], object]) -> None:
        self.act = act

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.act()
        return iter([("h", b"1")])


class Recorder:
    """A slow path that accepts nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def send_next(self, *arguments: object) -> None:
        self.calls.append("send_next")

    def send_slowly(self, *arguments: object) -> None:
        self.calls.append("send_slowly")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Unthreaded]:
    with unthreaded(tmp_path / "data", partitions=3) as made:
        yield made


# --- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [None, [b"k", b"k"]], ids=["values", "keys"])
@pytest.mark.parametrize("partition", [-1, -(2**20), -(2**80)])
def test_send_many_to_a_partition_below_0_fails_each_delivery(
    one: Unthreaded, partition: int, keys: list[bytes] | None
) -> None:
    one.producer.send("orders", b"opens a batch")
    errors = one.producer.send_many("orders", [b"a", b"b"], keys=keys, partition=partition).errors(0)
    assert [type(error) for error in errors.values()] == [ValueError] * 2
    assert str(partition) in str(errors[0])


@pytest.mark.parametrize("partition", [3, 2**31, 2**40, 2**80])
def test_a_partition_that_does_not_exist_fails_the_delivery_however_great_it_is(
    one: Unthreaded, partition: int
) -> None:
    told: list[Any] = []
    delivery = one.producer.send("orders", b"v", partition=partition, on_delivery=lambda *pair: told.append(pair))
    error = delivery.exception(0)
    many = one.producer.send_many("orders", [b"v"], partition=partition).errors(0)
    assert isinstance(error, TopicNotFoundError | TopicWaitTimeoutError)
    assert isinstance(many[0], TopicNotFoundError | TopicWaitTimeoutError)
    assert told == [(unknown_metadata("orders", partition), error)]


def test_send_many_asks_a_partition_for_its_number_once(one: Unthreaded) -> None:
    class Growing:
        number = 0

        def __index__(self) -> int:
            self.number += 10**6
            return self.number

        def __lt__(self, other: int) -> bool:
            return True

    errors = one.producer.send_many("orders", [b"v"], keys=[b"k"], partition=Growing()).errors(0)  # type: ignore[arg-type]  # what a caller may give
    assert isinstance(errors[0], TopicNotFoundError | TopicWaitTimeoutError)


@pytest.mark.parametrize("sticky", [-1, 1, 2**40])
def test_a_sticky_partition_that_does_not_exist_is_left_to_the_slow_path(sticky: int) -> None:
    slow = Recorder()
    topic = TopicQueues("t", [PartitionQueue("t", 0)])
    topic.sticky_partition = sticky
    path = SendPath({"t": topic}, slow)
    path._is_plain = True
    path.send("t", b"v")
    path._send_plain_many(topic, [b"v"], None, None, None, None)
    assert slow.calls[-1] == "send_slowly"


def test_a_batch_without_records_accepts_none() -> None:
    slow = Recorder()
    queue = PartitionQueue("t", 0)
    queue.open_batch = ProducerBatch("t", 0, None, 0, 0.0)
    path = SendPath({"t": TopicQueues("t", [queue])}, slow)
    path._is_plain = True
    path.send("t", b"v")
    assert slow.calls == ["send_next", "send_slowly"]


@pytest.mark.parametrize("queues", [[], [None], [1]])
def test_a_topic_has_a_queue_for_each_partition(queues: list[Any]) -> None:
    with pytest.raises(TypeError, match="expected a PartitionQueue for each partition"):
        TopicQueues("t", queues)


# --- lists that others change -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["values", "keys", "timestamps", "headers"])
def test_a_list_that_loses_items_while_it_is_sent_is_an_error(one: Unthreaded, victim: str) -> None:
    columns: dict[str, Any] = {
        "values": [bytes([i]) * 50 for i in range(100)],
        "keys": [bytes([i]) * 50 for i in range(100)],
        "timestamps": [None] * 100,
        "headers": [None] * 100,
    }
    columns["headers"][3] = Saboteur(columns[victim].clear)
    with pytest.raises(RuntimeError, match=f"{victim} changed their size"):
        one.producer.send_many("orders", **columns)


def test_a_list_that_lies_about_its_length_is_sent_as_it_is(one: Unthreaded) -> None:
    class Liar(list[bytes]):
        def __len__(self) -> int:
            return 1000

    deliveries = one.producer.send_many("orders", Liar([b"a", b"b"]), partition=0)
    one.linger()
    assert len(deliveries) == 2
    assert one.values() == [b"a", b"b"]


# --- objects without their parts --------------------------------------------------------------------------------------


def made_inside() -> dict[str, type]:
    run = walk_run(b"", 0, 0, 0, 0, 0, 0, 0, 0)
    made: list[type] = [Delivery, Run, RunRecords, RunValues, type(run.batches()), type(DrainLock().attempt())]
    return {each.__name__: each for each in made}


@pytest.mark.parametrize("made", made_inside().values(), ids=made_inside())
def test_only_compiled_code_makes_an_object_that_needs_its_parts(made: Any) -> None:
    for make in (made, lambda: made.__new__(made), lambda: object.__new__(made), lambda: type.__call__(made)):
        with pytest.raises(TypeError, match=r"only compiled code makes a|is not safe"):
            make()
    with pytest.raises(TypeError, match="only compiled code makes a"):
        new_jobs(made, None, [Record(1, 2)], 1.0, 1.0, 1)  # another module's compiled code


def test_an_object_is_not_made_without_its_arguments() -> None:
    for made in (EndsMaker, Loan):
        with pytest.raises(TypeError):
            made.__new__(made)


def test_deliveries_are_made_of_deliveries() -> None:
    with pytest.raises(TypeError, match="a NoneType, expected a Delivery"):
        Deliveries.of([None])  # type: ignore[list-item]  # what it refuses


def test_an_index_that_no_delivery_has_is_an_index_error() -> None:
    deliveries = Deliveries.of([Delivery.failed("t", number, ValueError()) for number in range(3)])
    for index in (3, -4, 2**63 - 1, -(2**63), 2**70, -(2**70)):
        with pytest.raises(IndexError, match=f"delivery {index} of 3"):
            deliveries[index]
    assert [deliveries[index].partition for index in (0, 2, -1, -3)] == [0, 2, 2, 0]
    assert [delivery.partition for delivery in deliveries] == [0, 1, 2]


def test_only_the_named_tuple_of_ends_is_made() -> None:
    for kind in (tuple, namedtuple("kind", "a b")):
        with pytest.raises(TypeError, match="expected the named tuple of a log's ends"):
            EndsMaker(kind)


def test_a_split_batch_has_children() -> None:
    batch = ProducerBatch("t", 0, BatchBuffer(), 1000, 0.0)
    delivery = batch.append(b"v")
    with pytest.raises(ValueError, match="no children"):
        batch.split([])
    batch.split([(0, batch)] * 1)
    assert batch.children is not None
    batch.children.clear()
    assert delivery is not None
    with pytest.raises(IndexError):
        delivery.done()


def test_a_batch_that_loses_its_buffer_is_not_sealed() -> None:
    batch = ProducerBatch("t", 0, BatchBuffer(), 1000, 0.0)
    batch.append(b"v")
    batch.close()

    class Taking:
        @property
        def next_sequence(self) -> int:
            batch.buffer = None
            return 0

    with pytest.raises(TypeError, match="expected a BatchBuffer"):
        seal_run([batch], Taking(), -1, -1, 1000)  # type: ignore[arg-type]  # what it refuses


def test_memory_that_is_closed_while_a_turn_begins_is_not_read(tmp_path: Path) -> None:
    file = OsFileSystem().open(tmp_path / "record", write=True, create=True)
    file.pwrite(bytes(4096), 0)
    mapping = file.map(4096)

    class Parts:
        """Everything that a lock uses."""

        slot = SimpleNamespace(mapping=mapping)
        seen_data = SLOT.pack(MAGIC, VERSION, TAIL_KNOWN, *[0] * 15) + bytes(4)
        tail = SimpleNamespace(open_file=file)
        closed = poisoned = None
        closes_alone = 0
        turns = 0

        def __getattribute__(self, name: str) -> Any:
            if name == "tail":
                mapping.close()
            return object.__getattribute__(self, name)

        def take_turn(self) -> None:
            self.turns += 1

        leave_turn = take_turn

    parts = Parts()
    directory_lock = DirectoryLock(tmp_path, shared=True)
    with SharedTurnLock(parts, parts, parts, directory_lock):  # type: ignore[arg-type]  # all in one
        assert parts.turns == 1
    directory_lock.release()
    file.close()


def test_the_origin_of_records_is_a_topic_and_a_partition() -> None:
    buffer = BatchBuffer()
    batch = OpenBatch(buffer, 1000)
    batch.append(b"v")
    batch.close()
    cursor = RecordCursor(bytes(buffer), 61, buffer.size, 1, 0, 0, 0, 0, 0, -1)
    for wrong in ((), ("t",), (5, 0), ("t", "0"), 5):
        with pytest.raises((TypeError, ValueError)):
            cursor.origin = wrong  # type: ignore[assignment]  # what it refuses
    cursor.origin = ("t", 3)
    (record,) = cursor
    assert (record.topic, record.partition) == ("t", 3)  # type: ignore[attr-defined]  # a ConsumerRecord


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_a_map_is_made_for_no_fewer_than_0_keys() -> None:
    for count_max in (-1, -(2**70)):
        with pytest.raises(ValueError, match="expected 0 or more"):
            OffsetMap(1000, count_max)
    offsets = OffsetMap(1000, 0)
    assert (offsets.put(b"k", 1), offsets.get(b"k"), offsets.get(b"other")) == (True, 1, -1)


def test_a_list_of_batches_that_its_own_numbers_empty_is_read_as_it_was() -> None:
    class Emptying:
        def __int__(self) -> int:
            batches.clear()
            gc.collect()
            return 0

    batches: list[Any] = [(b"x" * 20, Emptying(), 0, 0, 0, 0, 0)] + [(b"y" * 100, 1, 0, 0, 0, 0, 0)] * 50
    assert OffsetMap(1000).put_block(batches, 0) == (-1, list(range(51)))


def test_rows_go_to_partitions_that_exist() -> None:
    values = BytesRows(1, 0, None, struct.pack("<2i", 0, 1), b"v")
    rows = Rows(values, values, None, None, None, 1, 0)
    with pytest.raises(ValueError, match="expected at least 1 and 0"):
        RowEncoder(3, 1000, -1)
    encoder = RowEncoder(3, 1000, 2)
    encoder.batches.clear()
    with pytest.raises(ValueError, match="partition 2 of 0"):
        encoder.append(rows, 0)


def test_no_rows_make_no_entries() -> None:
    assert offset_entries(array("q"), 0, 0, 0) == b""
    assert time_entries(array("q"), 0, 0, 0, 0) == b""


def test_no_list_is_made_by_a_comprehension() -> None:
    """Cython 3.3.1 frees an item once too often if the list of a comprehension finds no memory to grow."""
    sources = [path for suffix in ("pyx", "pxi") for path in (ROOT / "kstore").rglob(f"*.{suffix}")]
    assert len(sources) > 20
    found = [line for path in sources for line in path.read_text().splitlines() if COMPREHENSION.search(line)]
    assert found == []
