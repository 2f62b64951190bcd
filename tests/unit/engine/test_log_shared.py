"""Several writers of one log, here in one process: their locks work the same."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import crc32c
import pytest

from kstore.clock import SYSTEM_CLOCK
from kstore.engine.ends import Ends
from kstore.engine.others import Others
from kstore.engine.producers import LogProducers
from kstore.engine.read.reads import segment_count_and_size
from kstore.errors import (
    ConfigError,
    KstoreError,
    LockedError,
    SharedLogError,
    UnsupportedFormatError,
)
from kstore.files.local import SYSTEM_FS
from kstore.files.lock import DirectoryLock
from kstore.files.paths import LOCK
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.record.builder import build_batch
from kstore.shared import turn as log_turn
from kstore.shared.turn import LEFT_FOR_THE_TURN
from kstore.state.producer_state import ProducerState
from kstore.state.shared_slot import POSITION, SharedState
from kstore.types import Durability
from tests.support.fakes.fake_fs import Operation, RecordingFs, WatchedFs
from tests.support.fakes.version_one import version_one_file
from tests.support.lives.log_cases import killed, state_of
from tests.support.lives.shared_parts import DURABILITIES, Result, others_of, shared, two_writers, values

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared locks are Linux's")


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> Durability:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def pair(tmp_path: Path, durability: Durability) -> Iterator[tuple[Log, Log]]:
    yield from two_writers(tmp_path / "log", durability)


# --- append ---------------------------------------------------------------------------------------------------------


def test_each_writer_continues_after_the_others(pair: tuple[Log, Log], tmp_path: Path) -> None:
    expected: list[bytes | None] = []
    with Log(tmp_path / "log", read_only=True) as view:
        for number in range(60):
            log = pair[number * number % 3 % 2]
            expected.append(b"%d" % number * 9)
            assert log.append(expected[-1]) == number
            for each in (*pair, view):
                assert (each.high_watermark, each.end_offset) == (number + 1, number + 1)
        for each in (*pair, view):
            assert values(each) == expected
            each.check()
    assert len(list((tmp_path / "log").glob("*.log"))) > 3


def test_the_last_one_to_close_leaves_the_log_in_order(pair: tuple[Log, Log], tmp_path: Path) -> None:
    one, two = pair
    one.append(b"a")
    two.append(b"b")
    one.append(b"c")
    one.close()
    assert two.append(b"d") == 3
    two.close()
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert values(log) == [b"a", b"b", b"c", b"d"]
        log.check()
        assert log.verify().clean


def test_one_that_never_wrote_may_be_the_last(tmp_path: Path, durability: Durability) -> None:
    one, two = shared(tmp_path / "log", durability), shared(tmp_path / "log", durability)
    one.append_many([b"x" * 100] * 200)
    one.close()
    two.close()
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert log.end_offset == 200
        log.check()


def test_a_clean_log_stays_clean_without_writes(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"a")
    shared(tmp_path / "log").close()
    with Log(tmp_path / "log") as log:
        assert log.recovery.clean
        assert values(log) == [b"a"]


def test_threads_of_several_writers_get_dense_offsets(pair: tuple[Log, Log]) -> None:
    offsets: list[int] = []

    def work(log: Log, number: int) -> None:
        offsets.extend(log.append(b"%d" % number) for _ in range(25))

    threads = [threading.Thread(target=work, args=(pair[number % 2], number)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(150))
    assert [record.offset for record in pair[0].read()] == list(range(150))


def test_a_follower_in_one_writer_gets_what_another_appends(pair: tuple[Log, Log]) -> None:
    one, two = pair
    reader = one.read(follow=True, timeout=300)
    for number in range(10):
        appending = threading.Timer(0.01, two.append, args=(b"%d" % number,))
        appending.start()
        assert next(reader).value == b"%d" % number
        appending.join()


def test_an_append_is_announced_through_memory(tmp_path: Path, durability: Durability) -> None:
    fs = RecordingFs()
    with Log(tmp_path / "log", shared=True, durability=durability, fs=fs) as log:
        log.append(b"a")
        fs.operations.clear()
        log.append(b"b")
        asked = {(operation.kind, Path(operation.path).name) for operation in fs.operations}
    assert {kind for kind, name in asked if name == "kstore.state"} == {"store"}
    assert {kind for kind, name in asked if name != "kstore.state"} <= {"write_all", "fdatasync"}


def test_a_reader_woken_by_a_write_waits_until_the_end_is_announced(
    pair: tuple[Log, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair
    one.append(b"a")
    two.refresh()
    found: list[int] = []

    def look() -> None:
        two.refresh()
        found.append(writer_of(two).ends.end_offset)

    looking = threading.Thread(target=look)
    others = others_of(one)
    store = others.store

    def late(now: SharedState) -> None:
        if not looking.ident:
            looking.start()
            looking.join(0.1)
        store(now)

    monkeypatch.setattr(others, "store", late)
    others.is_changing = True  # a plain turn would end within one call
    one.append(b"b")
    looking.join()
    assert found == [2]


# --- what else changes a log ----------------------------------------------------------------------------------------


def test_truncation_deletion_and_a_fresh_start_reach_all_processes(pair: tuple[Log, Log]) -> None:
    one, two = pair
    for number in range(20):
        pair[number % 2].append(b"%d" % number * 100)
    assert two.delete_records(15) == 15
    one.refresh()
    assert one.start_offset == 15
    one.truncate_to(18)
    assert two.end_offset == 18
    assert two.append(b"behind") == 18
    assert values(one)[-1] == b"behind"
    writer_of(two).truncate_fully_and_start_at(100)
    assert one.append(b"fresh") == 100
    assert values(one) == values(two) == [b"fresh"]
    for log in pair:
        log.refresh()
        log.check()


def test_retention_by_one_is_seen_by_the_other(tmp_path: Path) -> None:
    with (
        shared(tmp_path / "log", retention_bytes=3000, segment_bytes=1024) as one,
        shared(tmp_path / "log", segment_bytes=1024) as two,
    ):
        for _ in range(40):
            one.append(b"x" * 200)
            two.append(b"y" * 200)
        assert one.start_offset > 0
        two.refresh()
        assert two.start_offset == one.start_offset
        assert [record.offset for record in two.read()] == list(range(one.start_offset, 80))


def test_the_size_is_found_though_another_deletes_segments_while_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared(tmp_path / "log", "os") as one:
        for _ in range(3):
            one.append(b"x" * 200)
            one.roll()
        with shared(tmp_path / "log", "os") as two:
            one.delete_records(2)
            # As if the deletion came right after it.
            monkeypatch.setattr(writer_of(two), "refresh", lambda: None)
            assert segment_count_and_size(writer_of(two)) == segment_count_and_size(writer_of(one))
            assert len(writer_of(two).segments) == 2


def test_flush_takes_in_what_others_wrote(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os") as two:
        one.append(b"a")
        two.flush()
        assert two.metrics()["recovery_point"] == 1
        one.append(b"b")
        assert one.metrics()["recovery_point"] == 1


def test_a_close_syncs_what_another_writer_has_rolled_past(tmp_path: Path) -> None:
    fs = RecordingFs(SYSTEM_FS)
    mine = Log(tmp_path / "log", shared=True, durability="os", fs=fs)
    mine.append(b"mine")
    with Log(tmp_path / "log", shared=True, durability="os") as theirs:
        theirs.roll()
        theirs.append(b"theirs")
        assert mine.end_offset == 2
        del fs.operations[:]
        mine.close()
        synced = {Path(each.path).name for each in fs.operations if each.kind == "fdatasync"}
    assert {f"{0:020d}.log", f"{1:020d}.log"} <= synced


def test_sequences_of_producers_are_checked_over_all_writers(pair: tuple[Log, Log]) -> None:
    one, two = pair

    def batch(sequence: int) -> bytes:
        return bytes(build_batch([Record(0, 1, key=None, value=b"v")], producer_id=7, producer_epoch=0,
                                 base_sequence=sequence))  # fmt: skip

    assert one.append_batches(batch(0)).first_offset == 0
    assert two.append_batches(batch(1)).first_offset == 1
    again = one.append_batches(batch(1))
    assert (again.is_duplicate, again.first_offset) == (True, 1)
    with pytest.raises(KstoreError):
        one.append_batches(batch(5))


def of_producer(sequence: int) -> bytes:
    now_ms = SYSTEM_CLOCK.now_ms()  # old ones are forgotten
    return bytes(build_batch([Record(0, now_ms, key=None, value=b"v")], producer_id=7, producer_epoch=0,
                             base_sequence=sequence))  # fmt: skip


class TurnFs(WatchedFs):
    """Counts the bytes that a writer reads from segments in its turns."""

    def __init__(self) -> None:
        super().__init__(SYSTEM_FS)
        self.others: Others | None = None
        self.in_turns = self.in_all = 0

    def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
        if operation.kind == "pread" and operation.path.endswith(".log"):
            self.in_all += operation.size
            self.in_turns += operation.size if self.others is not None and self.others.has_turn else 0
        return action()


@pytest.mark.parametrize("how", ["append", "known producers", "expired ones", "stable offset"])
def test_what_producers_have_written_is_read_before_the_turn(how: str, tmp_path: Path) -> None:
    fs = TurnFs()
    with shared(tmp_path / "log", "os") as one, shared(tmp_path / "log", "os", fs=fs) as two:
        one.append_batches(of_producer(0))
        for _ in range(2 * LEFT_FOR_THE_TURN):
            one.append(b"x" * 30)
        one.append_batches(of_producer(1))
        fs.others = others_of(two)
        fs.in_turns = fs.in_all = 0
        if how == "append":
            assert two.append_batches(of_producer(1)).is_duplicate
            with pytest.raises(KstoreError):
                two.append_batches(of_producer(3))
        elif how == "known producers":
            assert [producer.last_sequence for producer in two.producers()] == [1]
        elif how == "expired ones":
            writer_of(two).expire_producers()
        else:
            assert two.last_stable_offset == one.end_offset
        assert fs.in_all > 100_000 > 10_000 > fs.in_turns
        assert two.append_batches(of_producer(2)).first_offset == 2 * LEFT_FOR_THE_TURN + 2


@pytest.mark.parametrize("change", ["append", "cut", "deletion", "roll", "all of it"])
def test_what_others_change_while_producers_are_read_is_known(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_turn, "LEFT_FOR_THE_TURN", 5)
    settings: dict[str, Any] = {"segment_bytes": 1024, "file_delete_delay_ms": 0}
    with shared(tmp_path / "log", **settings) as one, shared(tmp_path / "log", **settings) as two:
        for _ in range(30):
            one.append(b"x" * 60)
        one.append_batches(of_producer(0))
        cut = one.append_batches(of_producer(1)).first_offset
        changes: dict[str, Callable[[], object]] = {
            "append": lambda: one.append_batches(of_producer(2)),
            "cut": lambda: one.truncate_to(cut),
            "deletion": lambda: one.delete_records(20),
            "roll": lambda: one.roll(),
            "all of it": lambda: writer_of(one).truncate_fully_and_start_at(100),
        }
        up_to, count = LogProducers.up_to, 0

        def late(self: LogProducers, end: int, position: int) -> ProducerState:
            nonlocal count
            count += 1
            if count == 1:
                changes[change]()
            return up_to(self, end, position)

        monkeypatch.setattr(LogProducers, "up_to", late)
        two.refresh()
        sequence = {"append": 3, "cut": 1, "all of it": 0}.get(change, 2)
        assert [producer.last_sequence for producer in two.producers()] == ([sequence - 1] if sequence else [])
        assert two.append_batches(of_producer(sequence)).first_offset == one.end_offset - 1
        for log in (one, two):
            log.check()


def test_what_is_not_sound_yet_is_refused(pair: tuple[Log, Log]) -> None:
    one, _ = pair
    with pytest.raises(SharedLogError):
        one.compact()
    data = build_batch(
        [Record(0, 1, key=None, value=b"v")], producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
    )
    with pytest.raises(SharedLogError):
        one.append_batches(bytes(data))
    assert one.end_offset == 0


# --- locks ----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("one writer")
def test_writers_that_share_and_writers_that_do_not_keep_each_other_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with shared(path):
        with pytest.raises(LockedError):
            Log(path)
        with pytest.raises(LockedError):
            DirectoryLock(path, kind="store")
        with shared(path), Log(path, read_only=True):
            pass
    with Log(path), pytest.raises(LockedError):
        shared(path)
    # A store, or a broker, that has the directory above.
    with DirectoryLock(tmp_path, kind="store"), pytest.raises(LockedError):
        shared(path)
    with DirectoryLock(tmp_path, kind="store", shared=True):
        with pytest.raises(LockedError):
            Log(path)
        shared(path).close()
    Log(path).close()


@pytest.mark.promise("one writer")
@pytest.mark.parametrize(("mine", "theirs"), [(True, False), (False, True), (False, False), (True, True)])
@pytest.mark.sampled(2)
def test_the_same_in_another_process(mine: bool, theirs: bool, tmp_path: Path) -> None:
    program = (
        "import sys, kstore\n"
        "try:\n"
        f"    kstore.Log(sys.argv[1], shared={theirs}).close()\n"
        "except kstore.LockedError as error:\n"
        "    print(error)\n"
    )
    with Log(tmp_path / "log", shared=mine):
        command = [sys.executable, "-c", program, str(tmp_path / "log")]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert ("locked by kstore" in said) == (not (mine and theirs))


def test_all_of_them_have_one_durability(tmp_path: Path) -> None:
    with shared(tmp_path / "log", "os"), pytest.raises(ConfigError):
        shared(tmp_path / "log", "sync")
    with pytest.raises(ConfigError):
        Log(tmp_path / "log", shared=True, read_only=True)


# --- members with another version of the format ----------------------------------------------------------------------


def contents(path: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in path.iterdir() if each.name != LOCK}


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("version", [0, 3])
def test_a_process_that_finds_members_with_another_version_changes_nothing(
    version: int, is_whole: bool, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    with shared(path) as one, shared(path) as two:
        one.append(b"a")
        state_file = path / "kstore.state"
        good = state_file.read_bytes()
        slot = bytearray(good[POSITION : POSITION + 128])
        slot[4:6] = version.to_bytes(2, "big")
        crc = crc32c.crc32c(bytes(slot)) if is_whole else 0
        with state_file.open("r+b") as file:
            file.seek(POSITION)
            file.write(slot + crc.to_bytes(4, "big"))
        before = contents(path)
        for _ in range(2):
            with pytest.raises(LockedError, match=rf"use version {max(version, 1)} .* expected 2"):
                shared(path)
            with pytest.raises(LockedError, match=rf"use version {max(version, 1)} .* expected 2"):
                two.append(b"b")
        assert contents(path) == before
        with state_file.open("r+b") as file:
            file.seek(POSITION)
            file.write(good[POSITION : POSITION + 132])
        assert two.append(b"b") == 1
        shared(path).close()


def test_members_that_use_version_one_are_found_by_the_state(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with shared(path) as log:
        log.append(b"a")
        copy = killed(log, tmp_path / "old")
        state = writer_of(log).files.state_file.current
        assert state is not None
    (copy / "kstore.state").write_bytes(version_one_file(state))  # and no record of the end yet
    before = contents(copy)
    with DirectoryLock(copy, shared=True) as member:
        member.go_live()
        with pytest.raises(LockedError, match=r"use version 1 .* expected 2"):
            shared(copy)
        assert contents(copy) == before
    with shared(copy) as log:  # all of them are gone
        assert values(log) == [b"a"]
    with (copy / "kstore.state").open("r+b") as file:
        at = 2048 + 1024 * (state_of(copy).generation % 2)
        file.seek(at)
        later = bytearray(file.read(1024))
        later[4:6] = (9).to_bytes(2, "big")
        size = int.from_bytes(later[6:8], "big")
        later[size - 4 : size] = crc32c.crc32c(bytes(later[: size - 4])).to_bytes(4, "big")
        file.seek(at)
        file.write(later)
    before = contents(copy)
    with DirectoryLock(copy, shared=True) as member:
        member.go_live()
        with pytest.raises(LockedError, match=r"use version 9 .* expected 2"):
            shared(copy)
    with pytest.raises(UnsupportedFormatError):
        shared(copy)
    assert contents(copy) == before


# --- what readers see meanwhile ---------------------------------------------------------------------------------------


def late(log: Log) -> None:
    """Appends in a new segment, and has not synced it yet."""
    writer_of(log).roll()
    durability = writer_of(log).appends._durability
    with mock.patch.object(durability, "make_durable", create=True):
        log.append(b"late")


def deleted(log: Log) -> None:
    log.append_many([b"x"] * 3)
    log.delete_records(3)


@pytest.mark.parametrize("change", [late, deleted, lambda log: log.truncate_to(1)], ids=["rolled", "deleted", "cut"])
def test_a_reader_never_sees_half_of_what_another_process_did(
    change: Callable[[Log], object], pair: tuple[Log, Log], durability: Durability
) -> None:
    one, two = pair
    two.append_many([b"a", b"b"])
    assert one.end_offset == 2
    change(two)
    files = writer_of(one).files
    seen: list[Ends] = []

    def note(*_: object) -> Any:
        """Before each line: another thread of this process may read here."""
        seen.append(files.ends)
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        writer_of(one).refresh()
    finally:
        sys.settrace(before)
    for ends in seen:
        ends.check()
        assert ends.high_watermark <= max(two.high_watermark, 2)
    assert (one.start_offset, one.high_watermark, one.end_offset) == (
        (two.start_offset, two.high_watermark, two.end_offset)
    )
    assert len(set(seen)) > 1


def test_a_leader_epoch_that_another_process_wrote_is_that_of_the_next_batch(tmp_path: Path) -> None:
    with shared(tmp_path / "log") as one, shared(tmp_path / "log") as two:
        two.append(b"before")
        batch = build_batch([Record(1, 1, key=None, value=b"of a leader")], leader_epoch=5)
        one.append_batches(bytes(batch), assign_offsets=False)
        two.append(b"after")
        assert [record.leader_epoch for record in two] == [0, 5, 5]


def test_a_cut_by_another_process_changes_what_is_known_of_transaction_indexes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Log(path, durability="os") as log:
        for number in range(3):
            record = Record(0, SYSTEM_CLOCK.now_ms(), value=b"aborted")
            log.append_batches(
                build_batch([record], producer_id=7, producer_epoch=0, base_sequence=number, is_transactional=True)
            )
            log.end_transaction(7, 0, commit=False)
    with shared(path, "os") as one, shared(path, "os") as two:
        one.truncate_to(2)
        two.append(b"after the cut")
        one.close()
    with Log(path, durability="os") as log:
        assert log.recovery.clean
