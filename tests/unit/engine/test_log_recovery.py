"""Opening a log that was not closed cleanly, or is damaged: what is cut, fenced, rebuilt and reported."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import CorruptBatchError, DiskFullError, KstoreError
from kstore.files.local import SYSTEM_FS
from kstore.log import Log
from kstore.state.log_state import SLOT_SIZE, SLOTS_POSITION, LogState, StateFile, read_state
from kstore.types import CorruptRange
from kstore.upkeep.verify import verify_log
from tests.support.fakes.fake_fs import FailingFs, Fault
from tests.support.fakes.memory_fs import MemoryFs, in_memory

pytestmark = pytest.mark.usefixtures("unflushed")

BATCHES = 10
BATCH = [b"a" * 40, b"b" * 40]


def crashed(path: Path, *, durability: Any = "os", **settings: Any) -> Path:
    """A log of ten batches of two records, left as a killed writer leaves it."""
    log = Log(path, durability=durability, index_interval_bytes=200, **settings)
    for _ in range(BATCHES):
        log.append_many(BATCH)
    copy = path.with_name(path.name + "-crashed")
    shutil.copytree(path, copy)
    log.close()
    return copy


def only_log(path: Path) -> Path:
    return sorted(path.glob("*.log"))[-1]


def batch_positions(path: Path) -> list[int]:
    with Log(path, read_only=True) as log:
        sizes = [batch.size for batch in log.fetch(0, 1 << 20).batches()]
    return [sum(sizes[:number]) for number in range(len(sizes) + 1)]


def edit(path: Path, change: Callable[[bytearray], Any]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def offsets(log: Log, **options: Any) -> list[int]:
    return [record.offset for record in log.read(**options)]


# --- tails ------------------------------------------------------------------------------------------------------------

TAILS: dict[str, bytes] = {
    "zeros": bytes(5000),
    "garbage": bytes((number * 37 + 11) % 256 for number in range(300)),
    "a-few-bytes": b"\x00\x00\x00",
    "a-torn-header": bytes(8) + (500).to_bytes(4, "big") + bytes(30),
}


@pytest.mark.promise("torn tail")
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS.keys())
def test_a_tail_that_holds_no_batch_is_cut_and_not_kept(tail: bytes, tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    whole = only_log(path).read_bytes()
    only_log(path).write_bytes(whole + tail)
    with Log(path) as log:
        (cut,) = log.recovery.cut
        assert (cut.position, cut.size, cut.saved_as) == (len(whole), len(tail), "")
        assert not log.recovery.clean
        assert offsets(log) == list(range(20))
        assert log.append(b"on") == 20
        log.check()
    assert not list(path.glob("*.cut-*"))


@pytest.mark.promise("torn tail")
@pytest.mark.parametrize("lost", [1, 30, 60, 100, 150])
def test_a_torn_batch_is_cut(lost: int, tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    edit(only_log(path), lambda data: data.__delitem__(slice(len(data) - lost, None)))
    with Log(path) as log:
        assert offsets(log) == list(range(18))
        assert log.recovery.bytes_cut > 0
        assert log.append(b"on") == 18


@pytest.mark.promise("damage above", "set aside")
def test_a_damaged_last_batch_is_set_aside(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    start = batch_positions(path)[-2]
    whole = only_log(path).read_bytes()
    edit(only_log(path), lambda data: data.__setitem__(start + 70, data[start + 70] ^ 1))
    damaged = only_log(path).read_bytes()
    with Log(path) as log:
        (cut,) = log.recovery.cut
        assert cut.saved_as == f"{0:020d}.log.cut-{start}"
        assert (path / cut.saved_as).read_bytes() == damaged[start:]
        assert "bad crc" in cut.reason
        assert offsets(log) == list(range(18))
    assert only_log(path).read_bytes() == whole[:start]


@pytest.mark.promise("set aside")
def test_a_second_cut_at_the_same_place_keeps_what_the_first_one_set_aside(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    start = batch_positions(path)[-2]
    damaged = []
    for number in range(3):
        edit(only_log(path), lambda data: data.__setitem__(start + 70, data[start + 70] ^ 1))
        damaged.append(only_log(path).read_bytes()[start:])
        # Nothing of it is known to be on disk.
        state_file = StateFile.open(SYSTEM_FS, path / "kstore.state", mode=0o600)
        state_file.store(LogState(durability="os", boot_id=b"an earlier boot."))
        state_file.close()
        with Log(path, durability="os") as log:
            assert log.end_offset == 18
            log.append_many([b"%d" % number * 40] * 2)
    assert [(path / f"{0:020d}.log.cut-{start + number}").read_bytes() for number in range(3)] == damaged


@pytest.mark.promise("set aside")
def test_without_room_to_set_aside_nothing_is_cut(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    start = batch_positions(path)[-2]
    edit(only_log(path), lambda data: data.__setitem__(start + 70, data[start + 70] ^ 1))
    damaged = only_log(path).read_bytes()
    fs = FailingFs(SYSTEM_FS, Fault(1, errno=errno.ENOSPC, sticky=True, suffix=f"cut-{start}"))
    with pytest.raises(DiskFullError, match="nothing was cut"):
        Log(path, fs=fs)
    assert only_log(path).read_bytes() == damaged
    with Log(path) as log:
        assert offsets(log) == list(range(18))


# --- damage in the middle ---------------------------------------------------------------------------------------------


@pytest.mark.promise("damage below", "damage above")
def test_recovery_finds_the_batch_between_two_damaged_ones_that_readers_find(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path, durability="os", index_interval_bytes=0)
    for _ in range(BATCHES):
        log.append_many(BATCH)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    log.close()
    starts = batch_positions(copy)
    # One in its records, the other in its magic: no matching header follows the batches between them.
    edit(only_log(copy), lambda data: data.__setitem__(starts[3] + 70, data[starts[3] + 70] ^ 1))
    edit(only_log(copy), lambda data: data.__setitem__(starts[5] + 16, 77))
    expected = [*range(6), 8, 9, *range(12, 20)]
    with Log(copy, read_only=True) as view:
        assert [record.offset for record in view.read(on_corrupt="skip")] == expected
        lost = [(each.first, each.last) for each in view.verify().corrupt]
        assert lost == [(6, 7), (10, 11)]
    assert [(each.first, each.last) for each in verify_log(copy).damages] == lost
    with Log(copy) as log:
        assert [(each.first, each.last) for each in log.recovery.corrupt] == lost
        # The rebuilt index has fewer entries, but those that readers need.
        assert [record.offset for record in log.read(on_corrupt="skip")] == expected


def damaged_in_the_middle(tmp_path: Path) -> Path:
    path = crashed(tmp_path / "log")
    start = batch_positions(path)[4]
    edit(only_log(path), lambda data: data.__setitem__(start + 90, data[start + 90] ^ 1))
    return path


@pytest.mark.promise("damage above")
def test_damage_with_whole_batches_after_it_is_fenced(tmp_path: Path) -> None:
    path = damaged_in_the_middle(tmp_path)
    before = only_log(path).read_bytes()
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(8, 9)]
        assert not log.recovery.cut
        assert log.end_offset == 20
        assert log.append(b"on") == 20
        assert offsets(log, on_corrupt="skip") == [*range(8), *range(10, 21)]
    assert only_log(path).read_bytes()[: len(before)] == before


def test_readers_choose_what_damage_means(tmp_path: Path) -> None:
    path = damaged_in_the_middle(tmp_path)
    with Log(path, read_only=True) as log:
        reader = log.read()
        assert [next(reader).offset for _ in range(8)] == list(range(8))
        with pytest.raises(CorruptBatchError) as caught:
            next(reader)
        error = caught.value
        assert (error.first_offset, error.last_offset, error.path) == (8, 9, str(only_log(path)))
        assert "stored" in error.reason
        assert "computed" in error.reason
        skipping = log.read(on_corrupt="skip")
        assert [record.offset for record in skipping] == [*range(8), *range(10, 20)]
        assert [(gone.first, gone.last) for gone in skipping.corrupt] == [(8, 9)]
        yielded = list(log.read(on_corrupt="yield"))
        assert isinstance(yielded[8], CorruptRange)
        assert offsets(log, start=10) == list(range(10, 20))
        assert offsets(log, start=2, stop=8) == list(range(2, 8))
        with pytest.raises(CorruptBatchError):
            next(log.read(9))
        assert not log.verify().clean


def test_a_clean_log_that_rots_is_still_served_around_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "log"
    crashed(path)
    start = batch_positions(path)[4]
    stat = only_log(path).stat()
    edit(only_log(path), lambda data: data.__setitem__(start + 90, data[start + 90] ^ 1))
    os.utime(only_log(path), ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with Log(path) as log:
        assert log.recovery.clean
        assert offsets(log, on_corrupt="skip") == [*range(8), *range(10, 20)]


@pytest.mark.promise("damage below")
def test_a_durable_batch_that_is_gone_keeps_its_offsets(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log", durability="sync")
    start = batch_positions(path)[-2]
    edit(only_log(path), lambda data: data.__setitem__(start + 70, data[start + 70] ^ 1))
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(18, 19)]
        assert not log.recovery.cut
        assert log.append(b"on") == 20
        assert offsets(log, on_corrupt="skip") == [*range(18), 20]
        log.check()
    with Log(path) as log:
        assert log.append(b"and on") == 21


def test_a_log_shorter_than_what_was_durable_says_so(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log", durability="sync")
    start = batch_positions(path)[-3]
    edit(only_log(path), lambda data: data.__delitem__(slice(start, None)))
    with Log(path) as log:
        (gone,) = log.recovery.corrupt
        assert (gone.first, gone.last) == (16, 19)
        assert "20 was durable" in gone.reason
        assert log.append(b"on") == 20


@pytest.mark.promise("damage above", "power cut: os")
def test_after_a_restart_an_unsynced_log_keeps_a_prefix(tmp_path: Path) -> None:
    path = damaged_in_the_middle(tmp_path)
    state_file = StateFile.open(SYSTEM_FS, path / "kstore.state", mode=0o600)
    assert state_file.current is not None
    state_file.store(LogState(durability="os", boot_id=b"an earlier boot."))
    state_file.close()
    with Log(path, durability="os") as log:
        assert offsets(log) == list(range(8))
        (cut,) = log.recovery.cut
        assert (path / cut.saved_as).stat().st_size == cut.size
        assert log.append(b"on") == 8


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Inside, the process can open forty more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(path.name) for path in Path("/dev/fd").iterdir()}
    free = itertools.islice((fd for fd in itertools.count() if fd not in taken), 40)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def unchecked(path: Path, segment_count: int) -> Path:
    """A log of ``segment_count`` segments, one record each, all of which the next open must check."""
    with Log(path, durability="os", index_interval_bytes=64) as log:
        for number in range(segment_count):
            log.append(b"%d" % number)
            log.roll()
    (path / "kstore.state").unlink()
    return path


def test_recovery_keeps_few_files_open_however_many_segments_it_scans(tmp_path: Path) -> None:
    path = unchecked(tmp_path / "log", 100)
    with few_descriptors(), Log(path, durability="os") as log:
        assert log.recovery.segments_scanned == 101
        assert offsets(log) == list(range(100))
        assert log.append(b"on") == 100
        log.check()


def test_reading_closes_open_segments_if_the_process_has_no_descriptor_left(
    tmp_path: Path,
) -> None:
    path = unchecked(tmp_path / "log", 100)
    with few_descriptors(), Log(path, durability="os") as log:
        assert [record.offset for start in range(100) for record in log.read(start, start + 1)] == list(range(100))


ROOT = Path("/memory")


def cut_at_a_gap() -> MemoryFs:
    """A log whose second segment lost its last batch in a power cut, so that everything after it must go."""
    fs = MemoryFs(ROOT)
    with Log(ROOT / "log", durability="os", index_interval_bytes=64, fs=fs) as log:
        for number in range(24):
            log.append(b"%02d" % number * 20)
            if number % 6 == 5:
                log.roll()
    second = fs.open(ROOT / "log" / "00000000000000000006.log", write=True)
    second.truncate(second.size() * 5 // 6)
    state_file = StateFile.open(fs, ROOT / "log" / "kstore.state", mode=0o600)
    state_file.store(LogState(durability="os", boot_id=b"an earlier boot."))
    state_file.close()
    return fs


def test_a_gap_after_a_sealed_segment_cuts_at_the_end_of_that_segment() -> None:
    with in_memory(), Log(ROOT / "log", durability="os", index_interval_bytes=64, fs=cut_at_a_gap()) as log:
        assert (log.end_offset, offsets(log)) == (11, list(range(11)))
        assert sum(bool(cut.saved_as) for cut in log.recovery.cut) == 2
        assert [log.append(b"on") for _ in range(8)] == list(range(11, 19))
        log.check()
        assert offsets(log) == list(range(19))


def test_a_recovery_that_fails_anywhere_is_finished_by_the_next_open() -> None:
    with in_memory():
        image = cut_at_a_gap().image()
        for number in itertools.count(1):
            memory = MemoryFs(ROOT, image)
            fs = FailingFs(memory, Fault(at=number))
            with suppress(KstoreError):
                Log(ROOT / "log", durability="os", fs=fs).close()
            with Log(ROOT / "log", durability="os", fs=memory) as log:
                assert (log.end_offset, offsets(log)) == (11, list(range(11)))
                log.check()
            assert sum(".cut-" in name for name in memory.list(ROOT / "log")) == 2
            if not fs.failures:
                break


@pytest.mark.promise("set aside")
def test_segments_after_a_cut_are_renamed_aside(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log", segment_bytes=1024)
    first, *later = sorted(path.glob("*.log"))
    assert later
    contents = [each.read_bytes() for each in later]
    edit(first, lambda data: data.__setitem__(70, data[70] ^ 1))
    state_file = StateFile.open(SYSTEM_FS, path / "kstore.state", mode=0o600)
    state_file.store(LogState(durability="os", boot_id=b"an earlier boot."))
    state_file.close()
    with Log(path, durability="os") as log:
        assert (log.end_offset, offsets(log)) == (0, [])
        assert log.append(b"on") == 0
        log.check()
    assert [Path(f"{each}.cut-0").read_bytes() for each in later] == contents


# --- indexes and state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("content", [None, b"", bytes(4096), b"\x7f" * 240, bytes(13)], ids=repr)
def test_a_damaged_index_costs_nothing(suffix: str, content: bytes | None, tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    index = next(path.glob(f"*{suffix}"))
    index.unlink()
    if content is not None:
        index.write_bytes(content)
    for read_only in (True, False):
        with Log(path, read_only=read_only) as log:
            assert offsets(log) == list(range(20))
            for offset in range(20):
                assert next(log.read(offset)).offset == offset
    with Log(path) as log:
        assert log.recovery.clean
        log.check()


@pytest.mark.parametrize("content", [None, b"", b"junk" * 1024, bytes(4096)], ids=["lost", "empty", "junk", "zeros"])
def test_a_lost_state_means_that_the_whole_log_is_checked(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "log"
    crashed(path, segment_bytes=1024)
    (path / "kstore.state").unlink()
    if content is not None:
        (path / "kstore.state").write_bytes(content)
    with Log(path) as log:
        assert log.recovery.records_scanned == 20
        assert offsets(log) == list(range(20))
    with Log(path) as log:
        assert log.recovery.clean


def test_a_clean_mark_of_another_file_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    crashed(path)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with Log(copy) as log:
        assert not log.recovery.clean
        assert offsets(log) == list(range(20))


def test_only_what_was_not_flushed_is_scanned(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Log(path, durability="sync", segment_bytes=1024)
    for _ in range(50):
        log.append_many(BATCH)
    shutil.copytree(path, tmp_path / "crashed")
    log.close()
    with Log(tmp_path / "crashed") as log:
        assert log.recovery.segments_scanned == 1
        assert len(offsets(log)) == 100


def test_recovering_twice_changes_nothing(tmp_path: Path) -> None:
    path = damaged_in_the_middle(tmp_path)
    Log(path).close()
    files = {each.name: each.read_bytes() for each in path.iterdir() if each.suffix != ".state"}
    (path / "kstore.state").unlink()
    with Log(path) as log:
        assert [(gone.first, gone.last) for gone in log.recovery.corrupt] == [(8, 9)]
    assert {each.name: each.read_bytes() for each in path.iterdir() if each.suffix != ".state"} == files


def test_what_deletion_and_compaction_left_is_removed(tmp_path: Path) -> None:
    path = crashed(tmp_path / "log")
    for name in (f"{7:020d}.log.deleted", f"{7:020d}.log.cleaned", f"{9:020d}.index"):
        (path / name).write_bytes(b"left")
    (path / "notes.txt").write_text("mine")
    with Log(path) as log:
        assert log.recovery.ignored == ["notes.txt"]
        assert offsets(log) == list(range(20))
    names = {each.name for each in path.iterdir()}
    assert "notes.txt" in names
    assert not any(name.startswith((f"{7:020d}", f"{9:020d}")) for name in names)


# --- the state file ---------------------------------------------------------------------------------------------------


def test_a_torn_state_leaves_the_one_before_it(tmp_path: Path) -> None:
    file = StateFile.open(SYSTEM_FS, tmp_path / "kstore.state", mode=0o600)
    assert file.current is None
    for end in (10, 20, 30):
        file.store(LogState(durable_end=end))
    file.close()
    path = tmp_path / "kstore.state"
    whole = path.read_bytes()
    for slot, before in ((1, 20), (0, 30)):
        at = SLOTS_POSITION + SLOT_SIZE * slot
        path.write_bytes(whole[: at + 40] + bytes(20) + whole[at + 60 :])
        state = read_state(SYSTEM_FS, path)
        assert state is not None
        assert state.durable_end == before


def test_every_flipped_bit_of_a_state_is_seen(tmp_path: Path) -> None:
    state = LogState(durability="interval", clean=True, recovery_point=5, durable_end=9, boot_id=bytes(range(16)))
    slot = state.encode()
    assert LogState.decode(slot) == state
    for bit in range(len(slot) * 8):
        flipped = bytearray(slot)
        flipped[bit // 8] ^= 1 << bit % 8
        assert LogState.decode(bytes(flipped)) is None


def test_the_live_end_counts_for_its_own_record_only(tmp_path: Path) -> None:
    path = tmp_path / "kstore.state"
    file = StateFile.open(SYSTEM_FS, path, mode=0o600)
    file.store(LogState(durable_end=5))
    file.publish_durable_end(50)
    assert read_state(SYSTEM_FS, path).durable_end == 50  # type: ignore[union-attr]
    file.store(LogState(durable_end=7))
    assert read_state(SYSTEM_FS, path).durable_end == 7  # type: ignore[union-attr]
    file.close()


# --- real kills -------------------------------------------------------------------------------------------------------

WRITER = """
import sys, kstore
log = kstore.Log(sys.argv[1], durability=sys.argv[2], segment_bytes=20_000)
while True:
    info = log.append_many([b"%d" % (log.end_offset + n) * 20 for n in range(7)])
    print(info.last_offset + 1, flush=True)
"""


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.sampled(1)
def test_a_killed_writer_loses_nothing_acknowledged(durability: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    for round_number in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), durability], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            for _ in range(50 + 37 * round_number):
                acknowledged = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout:
                acknowledged = int(line) if line.endswith("\n") else acknowledged
        with Log(path, durability=durability) as log:  # type: ignore[arg-type]
            assert log.end_offset >= acknowledged
            assert not log.recovery.corrupt
            assert [record.value for record in log.read()] == [b"%d" % n * 20 for n in range(log.end_offset)]
            log.check()
