"""Staged files: how a task lays them out, what its message says of them, and how a commit takes batches from them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ConfigError, CorruptFileError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import TopicPartition
from kstore.record._codec import BatchBuffer, EncodedBatch, encode_batch, patch_crc, patch_producer
from kstore.record.batch import ATTRIBUTE_TRANSACTIONAL, BATCH_HEADER, BATCH_HEADER_BYTES, CRC_START, batch_crc
from kstore.record.crc import crc32c
from kstore.spark._staged import ROW_BYTES, take
from kstore.spark.staging import (
    HEAD,
    ROW,
    Rows,
    StagedFile,
    StagingFile,
    check_release,
    open_staged,
    read_head,
    read_rows,
    staged_name,
)
from kstore.types import INT32_MAX
from tests.support.fakes.fake_fs import FailingFs, Fault, RecordingFs, WatchedFs
from tests.support.harness.selection import tries

ORDERS = [TopicPartition("orders", number) for number in range(3)]
PRODUCER = (7_000_000_000, 12)


def encoded(values: list[bytes | None]) -> tuple[bytes, EncodedBatch]:
    """A batch as a task stages it."""
    buffer = BatchBuffer()
    batch = encode_batch(buffer, values, None, None, None, 0, 1_700_000_000_000, 1 << 30)
    patch_crc(buffer, 0, batch_crc(buffer.view(CRC_START)))
    return bytes(buffer), batch


def stage(
    path: Path, batches: list[tuple[TopicPartition, list[bytes | None]]], fs: FileSystem = SYSTEM_FS, **more: Any
) -> StagedFile:
    staging = StagingFile(fs, path, staged_name("writer", 0, 0, 0), **more)
    staging.note((1_700_000_000_000, 1_700_000_000_000), has_every_key=False)
    for owner, values in batches:
        staging.add(owner, *encoded(values))
    try:
        staged = staging.close()
    except BaseException:
        staging.discard()
        raise
    assert staged is not None
    return staged


def rows_in(path: Path, staged: StagedFile) -> dict[TopicPartition, bytes]:
    file = open_staged(SYSTEM_FS, path, staged)
    return {owner: read_rows(file, rows) for owner, rows in read_head(file, staged).items()}


def taken(
    path: Path,
    staged: StagedFile,
    rows: bytes,
    *,
    fs: FileSystem = SYSTEM_FS,
    sequence: int = 0,
    size_max: int = 1 << 20,
) -> list[bytes]:
    """The batches of ``rows``, stamped."""
    file = open_staged(fs, path, staged)
    found: list[bytes] = []
    index = 0
    while index < len(rows) // ROW_BYTES:
        buffer, batches = BatchBuffer(), list[EncodedBatch]()
        before = index
        index, sequence = take(file, rows, index, size_max, buffer, batches, set(), *PRODUCER, sequence)
        assert index - before == len(batches) > 0
        assert len(buffer) <= size_max or len(batches) == 1
        found += [bytes(buffer.view(each.position, each.position + each.size)) for each in batches]
    return found


def take_all(path: Path, staged: StagedFile) -> None:
    for rows in rows_in(path, staged).values():
        taken(path, staged, rows)


def stamped(data: bytes, sequence: int) -> bytes:
    """The batch with its producer, its CRC computed over all of it."""
    header = list(BATCH_HEADER.unpack_from(data))
    header[5] |= ATTRIBUTE_TRANSACTIONAL
    buffer = BatchBuffer()
    buffer.extend(BATCH_HEADER.pack(*header) + data[BATCH_HEADER_BYTES:])
    patch_producer(buffer, 0, *PRODUCER, sequence)
    patch_crc(buffer, 0, batch_crc(buffer.view(CRC_START)))
    return bytes(buffer)


# --- what is staged ---------------------------------------------------------------------------------------------------


def test_the_batches_of_a_partition_lie_together(tmp_path: Path) -> None:
    given: list[tuple[TopicPartition, list[bytes | None]]] = [
        (ORDERS[number % 3], [b"%d" % number]) for number in range(30)
    ]
    staged = stage(tmp_path, given)
    whole = (tmp_path / staged.name).read_bytes()
    at = 0
    for owner, rows in sorted(rows_in(tmp_path, staged).items()):
        expected = [encoded(values)[0] for each, values in given if each == owner]
        for data, row in zip(expected, ROW.iter_unpack(rows), strict=True):
            assert (row[0], row[1]) == (at, len(data))
            assert whole[at : at + len(data)] == data
            at += len(data)
    assert staged.size == len(whole)
    assert staged.record_count == 30


def test_a_task_with_more_than_a_group_keeps_the_order_of_each_partition(tmp_path: Path) -> None:
    given: list[tuple[TopicPartition, list[bytes | None]]] = [
        (ORDERS[number % 2], [b"%04d" % number * 20]) for number in range(100)
    ]
    staged = stage(tmp_path, given, group_bytes=1000)
    found = rows_in(tmp_path, staged)
    assert found.keys() == {ORDERS[0], ORDERS[1]}
    for owner, rows in found.items():
        expected = [encoded(values)[0] for each, values in given if each == owner]
        assert taken(tmp_path, staged, rows) == [stamped(data, number) for number, data in enumerate(expected)]


def test_a_message_stays_small_whatever_was_staged(tmp_path: Path) -> None:
    given: list[tuple[TopicPartition, list[bytes | None]]] = [
        (TopicPartition("orders", number % 500), [b"x"]) for number in range(10_000)
    ]
    assert len(pickle.dumps(stage(tmp_path, given))) < 500


def test_a_file_and_its_name_are_on_disk_before_the_task_answers(tmp_path: Path) -> None:
    fs = RecordingFs()
    stage(tmp_path, [(ORDERS[0], [b"a"]), (ORDERS[1], [b"b"])], fs)
    kinds = fs.kinds()
    assert kinds[0] == "create"
    assert kinds[-2:] == ["fdatasync", "sync_dir"]
    assert set(kinds[1:-2]) == {"write_all"}


@pytest.mark.parametrize("kind", ["create", "write_all", "fdatasync", "sync_dir"])
def test_a_task_that_cannot_stage_leaves_nothing(kind: str, tmp_path: Path) -> None:
    fs = FailingFs(SYSTEM_FS, Fault(1, kinds=frozenset({kind})))
    with pytest.raises(StorageError):
        stage(tmp_path, [(ORDERS[0], [b"a"])], fs)
    assert len(fs.failures) == 1
    assert list(tmp_path.iterdir()) == []


class Forgetful(WatchedFs):
    """A disk that answers each read with one bit that was not written."""

    def perform(self, operation: Any, action: Callable[[], Any]) -> Any:
        result = super().perform(operation, action)
        if operation.kind == "pread" and operation.size > HEAD.size:
            return result[:-1] + bytes([result[-1] ^ 1])
        return result


def test_a_task_that_does_not_read_what_it_wrote_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(CorruptFileError, match="staged"):
        stage(tmp_path, [(ORDERS[0], [b"a"])], Forgetful())
    assert list(tmp_path.iterdir()) == []


# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 2, 3, 62, 63, 64, 65, 300, 4096, 70_001, 1_000_003])
def test_a_stamped_batch_has_the_crc_of_all_its_bytes(size: int, tmp_path: Path, seed: int) -> None:
    values: list[bytes | None] = [random.Random(seed).randbytes(size), None]
    staged = stage(tmp_path, [(ORDERS[0], values)])
    (rows,) = rows_in(tmp_path, staged).values()
    assert taken(tmp_path, staged, rows, sequence=41) == [stamped(encoded(values)[0], 41)]


def test_sequence_numbers_start_again_after_the_last(tmp_path: Path) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"a"] * 3), (ORDERS[0], [b"b"]), (ORDERS[0], [b"c"])])
    (rows,) = rows_in(tmp_path, staged).values()
    found = taken(tmp_path, staged, rows, sequence=INT32_MAX - 2)
    assert [BATCH_HEADER.unpack_from(data)[-2] for data in found] == [INT32_MAX - 2, 0, 1]


@pytest.mark.parametrize("size_max", [1, 100, 150, 1000, 1 << 20])
def test_as_much_is_taken_as_asked_for_and_one_batch_always(size_max: int, tmp_path: Path) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"%d" % number * 9]) for number in range(20)], group_bytes=500)
    (rows,) = rows_in(tmp_path, staged).values()
    expected = [stamped(encoded([b"%d" % number * 9])[0], number) for number in range(20)]
    assert taken(tmp_path, staged, rows, size_max=size_max) == expected


def test_another_file_system_gives_the_same(tmp_path: Path) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"a" * number]) for number in range(9)], group_bytes=200)
    (rows,) = rows_in(tmp_path, staged).values()
    assert taken(tmp_path, staged, rows, fs=RecordingFs()) == taken(tmp_path, staged, rows)


@pytest.mark.promise("hostile file")
def test_a_staged_file_with_any_changed_bit_is_not_taken(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"a", b"bc"]), (ORDERS[0], [None]), (ORDERS[1], [b"d"])])
    path = tmp_path / staged.name
    whole = path.read_bytes()
    bits = random.Random(seed).sample(range(8 * len(whole)), tries(8 * len(whole), quick=400))
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptFileError):
            take_all(tmp_path, staged)
        tried("flips", 1)


@pytest.mark.parametrize(
    ("row", "position"),
    [
        ((1 << 61, 100, 1, 0, 0), 1 << 61),
        ((-1, 100, 1, 0, 0), -1),
        ((0, -5, 1, 0, 0), 0),
        ((0, 61, 1, 0, 0), 0),
        ((0, 100_000, 1, 0, 0), 0),
        ((0, 100, 0, 0, 0), 0),
        ((0, 100, 1, 1, 0), 0),
        ((0, 100, 1, -1, 0), 0),
    ],
)
def test_a_row_that_no_task_writes_is_refused(row: tuple[int, ...], position: int, tmp_path: Path) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"a" * 100])])
    (rows,) = rows_in(tmp_path, staged).values()
    buffer, batches = BatchBuffer(), list[EncodedBatch]()
    file = open_staged(SYSTEM_FS, tmp_path, staged)
    with pytest.raises(CorruptFileError, match="not the batch that was staged") as caught:
        take(file, rows + ROW.pack(*row), 0, 1 << 20, buffer, batches, set(), *PRODUCER, 0)
    assert caught.value.position == position
    assert (len(buffer), batches) == (0, [])


def test_a_buffer_that_is_too_small_for_the_next_batch_is_left_as_it_is(tmp_path: Path) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"a"]), (ORDERS[0], [b"b" * 500])])
    (rows,) = rows_in(tmp_path, staged).values()
    buffer, batches = BatchBuffer(), list[EncodedBatch]()
    file = open_staged(SYSTEM_FS, tmp_path, staged)
    assert take(file, rows, 0, 200, buffer, batches, set(), *PRODUCER, 0) == (1, 1)
    before = bytes(buffer)
    assert take(file, rows, 1, 200, buffer, batches, set(), *PRODUCER, 1) == (1, 1)
    assert (bytes(buffer), len(batches)) == (before, 1)
    with pytest.raises(ValueError, match="row 2"):
        take(file, rows, 2, 200, buffer, batches, set(), *PRODUCER, 1)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_file_of_another_release_is_refused_with_the_remedy(tmp_path: Path) -> None:
    older = StagedFile("kstore.staged-x.tmp", "worker", 100, {}, (0, 0), True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"executor on worker .* earlier release .* need the same one"):
        check_release(older)
    staged = stage(tmp_path, [(ORDERS[0], [b"a"])])
    check_release(staged)
    path = tmp_path / staged.name
    whole = path.read_bytes()
    head = whole[-staged.head_size :]
    for changed in (b"KSTH" + head[4:], head[:4] + b"\0\2" + head[6:], head[:6] + b"\0\0\1\0" + head[10:], head[:-1]):
        path.write_bytes(whole[: -staged.head_size] + changed)
        told = staged._replace(
            size=staged.size - len(head) + len(changed), head_size=len(changed), head_crc=crc32c(changed)
        )
        with pytest.raises(CorruptFileError, match="not the head of a staged file"):
            read_head(open_staged(SYSTEM_FS, tmp_path, told), told)


def test_places_that_no_staged_file_has_are_refused(tmp_path: Path) -> None:
    staged = stage(tmp_path, [(ORDERS[0], [b"a"])])
    file = open_staged(SYSTEM_FS, tmp_path, staged)
    for head_size in (-1, 0, 1, staged.size, staged.size + 1, 1 << 62):
        with pytest.raises(CorruptFileError, match="not the table"):
            read_head(file, staged._replace(head_size=head_size))
    for rows in (Rows(-1, ROW_BYTES, 0), Rows(0, 0, 0), Rows(1 << 40, ROW_BYTES, 0), Rows(0, -ROW_BYTES, 0)):
        with pytest.raises(CorruptFileError, match="not the rows"):
            read_rows(file, rows)
