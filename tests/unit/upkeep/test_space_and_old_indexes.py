"""What brokers leave in sound logs: space that was allocated ahead, and index entries of Kafka before 2.0."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore import Log
from kstore.cli.main import main
from kstore.record.scan import BufferSource, is_zero
from kstore.record.walk import Damage, walk
from kstore.upkeep.mirror import mirror
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import verify_log

SPACE_BYTES = 8 << 20
ENTRY = struct.Struct(">ii")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three segments, as a broker would have left it: without kstore.state."""
    with Log(tmp_path / "t-0", segment_bytes=8192, index_interval_bytes=256) as log:
        for number in range(60):
            log.append_many([b"%d" % number * 40] * 5)
    (tmp_path / "t-0" / "kstore.state").unlink()
    return tmp_path / "t-0"


def logs_of(path: Path) -> list[Path]:
    return sorted(path.glob("*.log"))


def grow(file: Path, size: int = SPACE_BYTES) -> None:
    with file.open("r+b") as opened:
        opened.truncate(size)


def allocated(path: Path) -> int:
    """Allocates the last segment and its indexes ahead, as a broker does; returns the size of its ``.log`` before."""
    last = logs_of(path)[-1]
    size = last.stat().st_size
    grow(last)
    grow(last.with_suffix(".index"), 8 * 10_000)
    grow(last.with_suffix(".timeindex"), 12 * 10_000)
    return size


# --- space ------------------------------------------------------------------------------------------------------------


def test_space_after_the_last_batch_is_a_note_and_space_in_its_indexes_is_nothing(path: Path) -> None:
    size = allocated(path)
    found = verify_log(path)
    (note,) = found.findings
    assert (note.severity, note.kind, note.position, note.first) == ("note", "tail", size, 300)
    assert f"{SPACE_BYTES - size} bytes" in note.reason
    assert "all zeros" in note.reason
    assert note.repair == ""
    assert (found.end_offset, found.record_count) == (300, 300)


@pytest.mark.parametrize("size", [1, 60, 61, 5000, SPACE_BYTES])
def test_a_segment_that_was_never_written_is_sound_whatever_its_size(tmp_path: Path, size: int) -> None:
    (tmp_path / "t-0").mkdir()
    for suffix in (".log", ".index", ".timeindex"):
        (tmp_path / "t-0" / f"{0:020d}{suffix}").touch()
    grow(tmp_path / "t-0" / f"{0:020d}.log", size)
    assert [finding.severity for finding in verify_log(tmp_path / "t-0").findings] == ["note"]
    assert log_stats(tmp_path / "t-0").is_sound


def test_one_byte_that_is_not_zero_is_damage(path: Path) -> None:
    size = allocated(path)
    with logs_of(path)[-1].open("r+b") as file:
        file.seek(size + 5_000_000)
        file.write(b"\1")
    (damage,) = verify_log(path).damages
    assert (damage.kind, damage.position) == ("tail", size)
    assert not log_stats(path).is_sound


def test_zeros_in_a_sealed_segment_are_damage(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = logs_of(path)[0]
    data = first.read_bytes()
    *_, last = walk(BufferSource(data), 0, len(data), next_offset=0)
    assert not isinstance(last, Damage)
    with first.open("r+b") as file:
        file.truncate(last[0])
    grow(first, len(data))
    assert {damage.kind for damage in verify_log(path).damages} >= {"batch"}
    assert not log_stats(path).is_sound
    assert main(["dump-log", "--files", str(first)]) == 1
    capsys.readouterr()


def test_zeros_below_what_was_durable_are_damage(tmp_path: Path) -> None:
    with Log(tmp_path / "t-0") as log:
        log.append_many([b"value"] * 10)
        (file,) = logs_of(log.path)
        size = file.stat().st_size
        log.append_many([b"value"] * 10)
    with file.open("r+b") as opened:
        opened.truncate(size)
        opened.truncate(SPACE_BYTES)
    (damage, *_) = verify_log(tmp_path / "t-0").damages
    assert (damage.kind, damage.first, damage.last) == ("tail", 10, 19)


@pytest.mark.parametrize("command", [["verify"], ["stats"], ["stats", "--deep"], ["recover"], ["dump-log", "--files"]])
def test_commands_call_a_log_with_space_sound(
    path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    allocated(path)
    place = logs_of(path)[-1] if command[0] == "dump-log" else path
    assert main([*command, str(place)]) == 0
    out, err = capsys.readouterr()
    assert "a message of" not in out + err
    assert "damage" not in out.replace("damage  notes", "") + err


def test_a_log_with_space_is_read_opened_for_writing_and_mirrored(path: Path, tmp_path: Path) -> None:
    allocated(path)
    with Log(path, read_only=True) as log:
        assert len(list(log.read(0))) == 300
    (result,) = mirror(str(path), str(tmp_path / "copy" / "t-0"))
    assert (result.error, result.damage) == (None, [])
    with Log(path) as log:
        assert log.end_offset == 300
        (cut,) = log.recovery.cut
        assert (cut.saved_as, "all zeros" in cut.reason) == ("", True)
        assert log.append(b"next") == 300
    assert verify_log(path).findings == []


def test_what_is_zero_is_found_in_pieces_and_across_holes() -> None:
    assert not is_zero(BufferSource(b""), 0, 0)
    data = bytearray(3 << 20)
    assert is_zero(BufferSource(bytes(data)), 0, len(data))
    for at in (0, 1, 4095, 4096, 1 << 20, len(data) - 1):
        data[at] = 1
        assert not is_zero(BufferSource(bytes(data)), 0, len(data))
        assert is_zero(BufferSource(bytes(data)), at + 1, len(data)) == (at + 1 < len(data))
        data[at] = 0
    assert not is_zero(BufferSource(bytes(10)), 0, 11)
    (damage,) = walk(BufferSource(bytes(data)), 0, len(data), next_offset=7)
    assert isinstance(damage, Damage)
    assert (damage.position, damage.first_offset, damage.next_offset, damage.is_space) == (0, 7, None, True)


# --- index entries of Kafka before 2.0 --------------------------------------------------------------------------------


def name_firsts(path: Path, change: Callable[[int, int], int] = lambda first, last: first) -> int:
    """Makes all index entries name the first offset of their batch, as Kafka 1.1 does; returns how many there are."""
    count = 0
    for file in logs_of(path):
        base, data = int(file.stem), file.read_bytes()
        index = file.with_suffix(".index")
        entries = []
        for last, position in ENTRY.iter_unpack(index.read_bytes()):
            (first,) = struct.unpack_from(">q", data, position)
            entries.append(ENTRY.pack(change(first - base, last), position))
        index.write_bytes(b"".join(entries))
        count += len(entries)
    return count


def test_entries_that_name_first_offsets_are_one_note_an_index_without_a_repair(path: Path) -> None:
    count = name_firsts(path)
    found = verify_log(path)
    assert found.is_sound
    assert [finding.repair for finding in found.findings] == [""] * len(logs_of(path))
    assert sum(int(finding.reason.split()[0]) for finding in found.findings) == count > 10
    assert all("before 2.0" in finding.reason for finding in found.findings)


@pytest.mark.parametrize("change", [1, 3])
def test_entries_that_name_an_offset_within_a_batch_are_still_damage(path: Path, change: int) -> None:
    count = name_firsts(path, lambda first, last: first + change)
    assert len(verify_log(path).damages) == count


def test_every_offset_and_time_is_found_through_such_an_index(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path, tmp_path / "sound")
    name_firsts(path)
    for place in (path, tmp_path / "sound"):
        with Log(place, read_only=True) as log:
            for offset in range(300):
                record = next(iter(log.read(offset, offset + 1)))
                assert (record.offset, record.value) == (offset, b"%d" % (offset // 5) * 40)
                assert next(iter(log.read(offset, min(offset + 7, 300)))).offset == offset
    with kstore.Log(path) as log:
        assert log.append(b"next") == 300
        assert [record.offset for record in log.read(150)] == list(range(150, 301))
