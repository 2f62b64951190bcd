"""A topic that is deleted and created again, with the same name and paths, between a read's plan and the read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kstore
from kstore.errors import DataLossError
from kstore.files.paths import PARTITION_METADATA
from kstore.log import Log
from kstore.spark.plan import Split
from tests.spark.reading import make_reader, offsets_of, splits_of, table_of
from tests.unit.spark.test_spark_stream import ALL, append, reader

RECREATED = "t-0.*the topic was deleted and created again: its id was [0-9a-f-]{36} and is [0-9a-f-]{36} now"


@pytest.fixture(name="store")
def opened_store(tmp_path: Path) -> Iterator[kstore.Store]:
    with kstore.Store(tmp_path / "store") as opened:
        opened.create_topic("t", 1, segment_bytes=1024)
        append(opened, 20)
        yield opened


def recreate(store: kstore.Store, count: int = 40) -> None:
    store.delete_topic("t")
    store.create_topic("t", 1, segment_bytes=1024)
    append(store, count)


def test_a_task_notices_a_topic_that_was_created_again(store: kstore.Store) -> None:
    strict, lenient = (make_reader(store.path, failOnDataLoss=how) for how in (True, False))
    splits = splits_of(strict)
    assert offsets_of(strict, splits) == list(range(20))
    recreate(store)
    with pytest.raises(DataLossError, match=RECREATED):
        table_of(strict, splits)
    assert offsets_of(lenient, splits) == []
    assert offsets_of(strict) == list(range(40))


def test_a_task_notices_it_at_the_end_of_its_read(store: kstore.Store) -> None:
    append(store, 60)
    strict, lenient = (make_reader(store.path, failOnDataLoss=how, batchRows=5) for how in (True, False))
    for source in (strict, lenient):
        rows = source.read(splits_of(source)[0])
        next(rows)
        recreate(store, 80)
        if source is strict:
            with pytest.raises(DataLossError, match=RECREATED):
                list(rows)
        else:
            list(rows)


def test_every_part_of_a_divided_log_knows_its_topic(store: kstore.Store) -> None:
    append(store, 60)
    for option, value in (("maxPartitionBytes", 500), ("maxRecordsPerPartition", 7), ("minPartitions", 20)):
        splits = splits_of(make_reader(store.path, columns=None, **{option: value}))
        assert len(splits) > 5
        assert len({piece.topic_id for split in splits for piece in split.pieces}) == 1
        assert None not in {piece.topic_id for split in splits for piece in split.pieces}


def replaced(path: Path, text: bytes | None) -> None:
    file = path / PARTITION_METADATA
    file.unlink()
    if text is not None:
        file.write_bytes(text)


@pytest.mark.parametrize(
    ("before", "after", "is_noticed"),
    [
        # A lone log, or a file without an id, has no topic to compare.
        (lambda path: replaced(path, None), lambda path: None, False),
        (lambda path: replaced(path, b"nonsense"), lambda path: None, False),
        (lambda path: None, lambda path: replaced(path, b"nonsense"), False),
        (lambda path: None, lambda path: replaced(path, None), True),
    ],
    ids=["none", "damaged", "damaged later", "gone later"],
)
def test_only_a_known_id_is_compared(
    store: kstore.Store, before: Callable[[Path], None], after: Callable[[Path], None], is_noticed: bool
) -> None:
    path = store.path / "t-0"
    before(path)
    source = make_reader(store.path)
    splits = splits_of(source)
    after(path)
    if is_noticed:
        with pytest.raises(DataLossError, match="and is unknown now"):
            table_of(source, splits)
    else:
        assert offsets_of(source, splits) == list(range(20))


def test_a_log_by_itself_is_read_without_an_id(tmp_path: Path) -> None:
    with Log(tmp_path / "t-0") as log:
        log.append(b"value")
    assert offsets_of(make_reader(tmp_path)) == [0]


def test_a_running_stream_notices_it_however_long_the_new_topic_is(store: kstore.Store) -> None:
    strict, lenient = (reader(store, startingOffsets="earliest", failOnDataLoss=how) for how in ("true", "false"))
    start = strict.initialOffset()
    at = strict.latestOffset(start, ALL)
    assert lenient.latestOffset(start, ALL) == at
    recreate(store)
    with pytest.raises(DataLossError, match=RECREATED):
        strict.latestOffset(at, ALL)
    # It continues at its offset with one warning: from now on it reads the new topic.
    end = lenient.latestOffset(at, ALL)
    assert end == {"t": {"0": 40}}
    (split,) = lenient.partitions(at, end)
    assert isinstance(split, Split)
    assert [offset for batch in lenient.read(split) for offset in batch["offset"].to_pylist()] == list(range(20, 40))


def test_a_planned_micro_batch_notices_it(store: kstore.Store) -> None:
    source = reader(store, startingOffsets="earliest")
    start = source.initialOffset()
    end = source.latestOffset(start, ALL)
    (split,) = source.partitions(start, end)
    recreate(store)
    with pytest.raises(DataLossError, match=RECREATED):
        list(source.read(split))
    with pytest.raises(DataLossError, match=RECREATED):
        source.partitions(start, end)
