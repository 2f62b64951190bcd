"""Segments whose offsets overflow their indexes: readable everywhere, and split by the next writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.cli.main import main
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.record.headers import walk_headers
from kstore.record.scan import BufferSource
from kstore.record.walk import Damage, walk
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log
from tests.support.lives.log_cases import data, edit, files, marker, offsets, segment_bases, transaction
from tests.support.lives.log_helpers import TIME
from tests.support.lives.overflowing import FAR, NEAR, overflowing_log

LAST = [pytest.param(False, id="sealed"), pytest.param(True, id="last")]


@pytest.mark.parametrize("last", LAST)
def test_every_reader_gets_what_overflows(last: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    wanted = overflowing_log(path, SYSTEM_FS, last=last, size=200)
    assert segment_bases(path) == [0] if last else [0, FAR[-1] + 1]
    with Log(path, read_only=True) as log:
        assert log.end_offset == wanted[-1] + 1
        assert offsets(log) == wanted
        assert len(list(log.read_values())) == len(wanted)
        assert log.to_arrow().column("offset").to_pylist() == wanted
        for offset in wanted:
            assert offsets(log, offset)[0] == offset
            assert next(iter(log.fetch(offset, 1).records())).offset == offset
            assert next(iter(log.fetch(offset).records())).offset == offset
        assert offsets(log, NEAR[-1] + 1)[0] == FAR[0]
        assert [batch.base_offset for batch in log.fetch(0).batches()] == [*NEAR, *FAR]
        times = {record.timestamp: record.offset for record in reversed(list(log.read()))}
        for timestamp, offset in times.items():
            first = min(found for time, found in times.items() if time >= timestamp)
            assert log.offset_for_time(timestamp) == first, offset
        assert log.verify().clean
    assert verify_log(path).is_sound
    assert log_stats(path).record_count == log_stats(path, deep=True).record_count == len(wanted)
    assert main(["dump-log", "--files", str(path / f"{0:020d}.log")]) == 0
    assert f"baseOffset: {FAR[-1]}" in capsys.readouterr().out
    assert segment_bases(path) == [0] if last else [0, FAR[-1] + 1]


@pytest.mark.parametrize("last", LAST)
def test_a_writer_splits_what_overflows(last: bool, tmp_path: Path) -> None:
    path = tmp_path / "log"
    wanted = overflowing_log(path, SYSTEM_FS, last=last)
    content = (path / f"{0:020d}.log").read_bytes()
    mtime_ns = (path / f"{0:020d}.log").stat().st_mtime_ns
    with Log(path, index_interval_bytes=0) as log:
        assert any("split, as Kafka does" in note for note in log.recovery.notes)
        assert offsets(log) == wanted
        for offset in wanted:
            assert offsets(log, offset)[0] == offset
        log.check()
        assert log.append(b"more") == wanted[-1] + 1
    assert segment_bases(path)[:2] == [0, FAR[0]]
    parts = [path / f"{base:020d}.log" for base in (0, FAR[0])]
    assert b"".join(part.read_bytes() for part in parts).startswith(content)
    assert parts[0].stat().st_mtime_ns == mtime_ns
    assert verify_log(path).is_sound
    with Log(path) as log:
        assert log.recovery.clean
        assert not log.recovery.notes
        assert offsets(log) == [*wanted, wanted[-1] + 1]
    # Each part has the indexes that appends write.
    with Log(tmp_path / "appended", index_interval_bytes=0) as log:
        for offset in NEAR:
            log.append_batches(data(offset, timestamp=TIME + offset), assign_offsets=False)
    name = f"{0:020d}"
    assert files(path, ".index")[f"{name}.index"] == files(tmp_path / "appended", ".index")[f"{name}.index"]
    assert (
        files(path, ".timeindex")[f"{name}.timeindex"]
        == files(tmp_path / "appended", ".timeindex")[f"{name}.timeindex"]
    )


def test_a_killed_log_with_an_overflowing_end_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(b"".join(data(offset) for offset in [*NEAR, *FAR]))
    with Log(path, read_only=True) as log:
        assert offsets(log) == [*NEAR, *FAR]
    with Log(path) as log:
        assert not log.recovery.cut
        assert not log.recovery.corrupt
        assert log.append(b"more") == FAR[-1] + 1
        assert offsets(log) == [*NEAR, *FAR, FAR[-1] + 1]
    assert segment_bases(path) == [0, FAR[-1] + 1]
    with Log(path) as log:
        assert segment_bases(path) == [0, FAR[0], FAR[-1] + 1]
        assert offsets(log) == [*NEAR, *FAR, FAR[-1] + 1]


def test_a_split_shares_out_the_aborted_transactions(tmp_path: Path) -> None:
    path = tmp_path / "log"
    far = 2**31 + 50
    with Log(path) as log:
        log.append_batches(transaction(7, 0, 1), assign_offsets=False)
        log.append_batches(marker(7, 2, commit=False), assign_offsets=False)
        log.append_batches(transaction(7, 3, sequence=2), assign_offsets=False)
        log.append_batches(transaction(8, far, far + 1), assign_offsets=False)
        log.append_batches(marker(7, far + 2, commit=False), assign_offsets=False)
        log.append_batches(marker(8, far + 3, commit=True), assign_offsets=False)
        log.roll()
        log.append(b"last")
    wanted = files(path, ".txnindex")
    assert len(wanted) == 2
    first, second = (path / f"{base:020d}.log" for base in (0, far))
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    indexes = [path / name for name in wanted]
    indexes[0].write_bytes(indexes[0].read_bytes() + indexes[1].read_bytes())
    for suffix in (".index", ".timeindex", ".txnindex"):
        second.with_suffix(suffix).unlink()
    with Log(path) as log:
        assert segment_bases(path)[:2] == [0, far]
        assert files(path, ".txnindex") == wanted
        committed = [record.offset for record in log.read(isolation_level="read_committed")]
        assert committed == [far, far + 1, far + 4]
    with Log(path) as log:
        assert log.recovery.clean


def test_a_damaged_segment_that_overflows_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log"
    wanted = overflowing_log(path, SYSTEM_FS)
    edit(path / f"{0:020d}.log", lambda content: content.__setitem__(70, content[70] ^ 1))
    with Log(path) as log:
        assert any("not split: position 0" in note for note in log.recovery.notes)
        assert [record.offset for record in log.read(on_corrupt="skip")] == wanted[1:]
        log.append(b"more")
    assert segment_bases(path) == [0, FAR[-1] + 1]


def test_a_gap_between_segments_is_no_reason_to_split(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path) as log:
        log.append_batches(data(0), assign_offsets=False)
        log.append_batches(data(2**40), assign_offsets=False)
    before = files(path, ".log", ".index")
    with Log(path) as log:
        assert not log.recovery.notes
    assert files(path, ".log", ".index") == before


@pytest.mark.parametrize("bit", range(31, 63))
def test_a_flipped_high_bit_in_the_last_base_offset_is_damage(bit: int) -> None:
    """An offset that far away does not count unless a later batch confirms it."""
    content = data(0) + data(1) + (2 ^ (1 << bit)).to_bytes(8, "big") + data(2)[8:]
    for found in (
        list(walk(BufferSource(content), 0, len(content), next_offset=0)),
        list(walk_headers(BufferSource(content), len(content), next_offset=0)),
    ):
        assert [isinstance(item, Damage) for item in found] == [False, False, True]
    # Nor does one that the next batch contradicts.
    content += data(3)
    (damage,) = [
        item for item in walk(BufferSource(content), 0, len(content), next_offset=0) if isinstance(item, Damage)
    ]
    assert (damage.first_offset, damage.next_offset) == (2, 3)


def test_damage_before_offsets_that_overflow_hides_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    wanted = overflowing_log(path, SYSTEM_FS)
    size = len(data(0))
    edit(path / f"{0:020d}.log", lambda content: content.__setitem__(19 * size + 70, content[19 * size + 70] ^ 1))
    with Log(path, read_only=True) as log:
        assert [record.offset for record in log.read(on_corrupt="skip")] == [*wanted[:19], *wanted[20:]]
