"""Batches without a producer are skipped by their headers; if a header cannot be right, the careful path is taken."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.engine import producers as log_producers
from kstore.log import Log, reads_of
from kstore.record.heads import skip_plain
from kstore.record.scan import BufferSource
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.log_cases import data, marker, transaction

LARGE = 100_000


def behind(*batches: bytes, start: int = 0) -> tuple[int, int] | None:
    log = b"".join(batches)
    return skip_plain(BufferSource(log), start, len(log))


@pytest.mark.parametrize("size", [10, LARGE])
def test_plain_batches_are_passed_up_to_the_end(size: int) -> None:
    batches = [data(at, at + 1, size=size) for at in range(40, 80, 2)]
    assert behind(*batches) == (sum(map(len, batches)), 80)
    assert behind(*batches, start=len(batches[0])) == (sum(map(len, batches)), 80)


@pytest.mark.parametrize("size", [10, LARGE])
def test_the_first_batch_of_a_producer_is_where_it_ends(size: int) -> None:
    batches = [data(at, size=size) for at in range(20)]
    before = sum(map(len, batches))
    assert behind(*batches, transaction(7, 20), data(21)) == (before, 20)
    assert behind(*batches, data(20, producer_id=7, producer_epoch=0, base_sequence=0)) == (before, 20)
    assert behind(*batches, marker(7, 20, commit=True)) == (before, 20)
    assert behind(transaction(7, 0), data(1)) == (0, 0)


def test_what_cannot_be_right_is_believed_nowhere() -> None:
    first, second = data(0), data(1)
    assert behind(first, data(5)) is None  # a gap: of a compacted log, or a flipped bit
    assert behind(first, data(0)) is None
    assert behind(first, second[:-1]) is None
    assert behind(first, second[:40]) is None
    assert behind(first, bytes(100)) is None
    assert behind(first, second[:16] + b"\x03" + second[17:]) is None
    assert behind(first, second[:8] + b"\xff\xff\xff\xf0" + second[12:]) is None
    assert behind(first, second[:8] + b"\x7f\xff\xff\xf0" + second[12:]) is None
    assert behind() is None


def test_the_last_stable_offset_is_the_same_as_by_reading_everything(
    monkeypatch: pytest.MonkeyPatch, tried: Callable[[str, int], None]
) -> None:
    found = {}
    for name in golden_partitions("crashed") + golden_partitions("clean"):
        for tree in ("crashed", "clean"):
            path = golden_root() / tree / name
            if path.is_dir():
                found[path] = stable_offsets(path)
    monkeypatch.setattr(log_producers, "skip_plain", lambda *_: None)
    assert found == {path: stable_offsets(path) for path in found}
    tried("reads", 2 * len(found))


def stable_offsets(path: Path) -> tuple[int, object]:
    with Log(path, read_only=True) as log:
        return log.last_stable_offset, reads_of(log).aborted_transactions(log.start_offset, log.end_offset)


def test_flipped_bits_in_headers_hide_no_open_transaction(
    tmp_path: Path, seed: int, tried: Callable[[str, int], None]
) -> None:
    """Whatever is damaged in the plain batches before it, committed reads end at the open transaction or below the
    damage."""
    generator = random.Random(seed)
    with Log(tmp_path / "a-0") as log:
        for batch in (*(data(at, size=30) for at in range(30)), transaction(7, 30), data(31), data(32)):
            log.append_batches(batch, assign_offsets=False)
    (segment,) = (tmp_path / "a-0").glob("*.log")
    for other in (tmp_path / "a-0").iterdir():
        if other != segment:
            other.unlink()
    whole = segment.read_bytes()
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[generator.randrange(30 * len(whole) // 34)] ^= 1 << generator.randrange(8)
        segment.write_bytes(flipped)
        with Log(tmp_path / "a-0", read_only=True) as log:
            assert log.last_stable_offset <= 30
        tried("flips", 1)
