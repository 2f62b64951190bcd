"""A writer in another process changes a log between any two operations of what reads it.

Nothing looks damaged then, and no answer goes back from records after a truncation to ones before it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from kstore.errors import CorruptBatchError, DivergedError, OffsetOutOfRangeError
from kstore.files.fs import FileSystem
from kstore.log import Log, writer_of
from kstore.record._codec import Record
from kstore.reports.gathering import examined
from kstore.types import CorruptRange
from kstore.ui.checking import Checks
from kstore.ui.pages import Model, NotHereError, Pages
from kstore.ui.places import Place
from kstore.ui.survey import Survey
from kstore.upkeep.explain import explain_offset, explain_time
from kstore.upkeep.mirror import mirror
from kstore.upkeep.search import Pattern, pieces, search
from kstore.upkeep.stats import log_stats
from kstore.upkeep.verify import Finding, verify_log
from kstore.upkeep.verify.partition import verify_head
from kstore.upkeep.verify.pieces import join, pieces_of, verify_piece
from tests.support.fakes.meddling_fs import MeddlingFs
from tests.support.harness.evidence import Hung
from tests.support.harness.selection import tries

# Before every operation, or every sixth.
STRIDE = tries(1, quick=6)
OPERATIONS_MAX = 1000
TIME = 1_000
COUNT = 14
# Three records to a segment.
OLD_BYTES = 200


def _value(kind: str, offset: int, size: int = 0) -> bytes:
    return f"{kind} {offset} ".encode().ljust(size, b"o")


def _append(log: Log, kind: str, stop: int, size: int) -> None:
    for offset in range(log.end_offset, stop):
        log.append(_value(kind, offset, size), key=b"%d" % (offset % 3), timestamp=TIME + offset)


# --- what the writer does ---------------------------------------------------------------------------------------------


def _cut(log: Log) -> None:
    log.truncate_to(7)


def _cut_and_write(log: Log) -> None:
    log.truncate_to(5)
    _append(log, "new", COUNT + 2, 50)


def _cut_and_write_one_batch(log: Log) -> None:
    log.truncate_to(5)
    offsets = range(5, COUNT + 1)
    log.append_many([_value("new", offset, 30) for offset in offsets], timestamps=[TIME + offset for offset in offsets])


def _start_below(log: Log) -> None:
    writer_of(log).truncate_fully_and_start_at(4)
    _append(log, "new", 9, 0)


def _start_above(log: Log) -> None:
    writer_of(log).truncate_fully_and_start_at(40)
    _append(log, "new", 44, 0)


def _delete(log: Log) -> None:
    log.delete_records(8)


def _compact(log: Log) -> None:
    log.roll()
    log.compact()


def _grow(log: Log) -> None:
    _append(log, "new", 30, 60)


CHANGES = [
    _cut,
    _cut_and_write,
    _cut_and_write_one_batch,
    _start_below,
    _start_above,
    _delete,
    _compact,
    _grow,
]

# --- what reads -------------------------------------------------------------------------------------------------------


def _hold(records: Iterable[Record]) -> None:
    """Each record is the one of its offset, in order; none of before a truncation comes after one of after it."""
    last, is_new = -1, False
    for record in records:
        assert record.value is not None
        kind, offset, *_ = record.value.split(b" ")
        assert int(offset) == record.offset > last
        assert not is_new or kind == b"new", f"offset {record.offset} is an old one after new ones"
        last, is_new = record.offset, kind == b"new"


def _fetched(log: Log) -> Iterable[Record]:
    offset = log.start_offset
    while offset < log.end_offset:
        records: list[Record] = []
        found = log.fetch(offset, 1)
        # A slice is bytes of a file: to its reader, a later truncation looks like damage.
        with contextlib.suppress(CorruptBatchError):
            # It begins with the batch that holds the offset.
            records = [record for record in found.records() if record.offset >= offset]
        if not records:
            return
        yield from records
        offset = records[-1].offset + 1


def _got(log: Log) -> Iterable[Record]:
    return (record for offset in range(COUNT) if (record := log.get(offset)) is not None)


def _found(log: Log) -> Iterable[Record]:
    for piece in pieces(log):
        for match in search(log, Pattern(b"o"), piece):
            assert not isinstance(match, CorruptRange), match
            yield match.record


def _explain(log: Log) -> None:
    for offset in range(log.start_offset, COUNT - 1):
        explain_offset(log, offset)
        explain_time(log, TIME + offset)


def _hold_findings(findings: Iterable[Finding]) -> None:
    assert [each for each in findings if each.severity == "damage"] == []


Reader = Callable[[Log, FileSystem], None]
READERS: dict[str, Reader] = {
    "read": lambda log, fs: _hold(log.read()),
    "read-known": lambda log, fs: _hold(log.read(3, 11)),
    "read-committed": lambda log, fs: _hold(log.read(isolation_level="read_committed")),
    "tail": lambda log, fs: _hold(log.tail(6)),
    "get": lambda log, fs: _hold(_got(log)),
    "fetch": lambda log, fs: _hold(_fetched(log)),
    "search": lambda log, fs: _hold(_found(log)),
    "explain": lambda log, fs: _explain(log),
    "log-verify": lambda log, fs: _hold_corrupt(log),
    "verify": lambda log, fs: _hold_findings(verify_log(log.path, fs=fs).findings),
    "stats": lambda log, fs: _hold_findings(log_stats(log.path, fs=fs).findings),
    "stats-deep": lambda log, fs: _hold_findings(log_stats(log.path, fs=fs, deep=True).findings),
    "report": lambda log, fs: _hold_findings(each.finding for each in examined(log.path, fs=fs).found),
}


def _hold_corrupt(log: Log) -> None:
    assert log.verify().corrupt == []


@pytest.mark.promise("bytes")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("name", READERS)
@pytest.mark.sampled(13)
def test_a_change_between_any_two_operations_is_no_damage_and_no_step_back(
    name: str, change: Callable[[Log], None], tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in itertools.count(0, STRIDE):
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with Log(path, durability="os", index_interval_bytes=0, segment_bytes=1024, file_delete_delay_ms=0) as writer:
            _append(writer, "old", COUNT, OLD_BYTES)
            with Log(path, read_only=True, fs=fs) as view:
                # It has all segments open.
                assert len(list(view.read())) == COUNT
                fs.before(number, lambda: change(writer))
                try:
                    READERS[name](view, fs)
                except OffsetOutOfRangeError as error:
                    told = (error.start_offset, error.end_offset)
                    assert told in ((0, COUNT), (writer.start_offset, writer.end_offset)), f"before operation {number}"
        if not fs.is_past():
            tried("states", number)
            return
        assert number < OPERATIONS_MAX, Hung(f"more than {OPERATIONS_MAX} operations")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
@pytest.mark.sampled(4)
def test_a_mirror_of_a_log_that_changes_meanwhile_is_whole_or_refused(
    change: Callable[[Log], None], tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in itertools.count(0, STRIDE):
        fs = MeddlingFs()
        source, copy = tmp_path / f"{number}-0", tmp_path / f"copy-{number}-0"
        with Log(source, durability="os", index_interval_bytes=0, segment_bytes=1024, file_delete_delay_ms=0) as writer:
            _append(writer, "old", COUNT, OLD_BYTES)
            fs.before(number, lambda: change(writer))
            (mirrored,) = mirror(source, copy, fs=fs)
        assert mirrored.damage == []
        assert mirrored.error is None or isinstance(mirrored.error, DivergedError)
        with Log(copy, read_only=True) as view:
            _hold(view.read())
        # The indexes of the active segment are not copied.
        _hold_findings(each for each in verify_log(copy).findings if each.kind not in ("index", "timeindex"))
        if not fs.is_past():
            tried("states", number)
            return
        assert number < OPERATIONS_MAX, Hung(f"more than {OPERATIONS_MAX} operations")


PAGES: dict[str, Callable[[Pages, Place], Model]] = {
    "segment": lambda pages, place: pages.segment(place, "3"),
    "last-segment": lambda pages, place: pages.segment(place, "12"),
    "batch": lambda pages, place: pages.batch(place, "6", "0"),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
@pytest.mark.parametrize("name", PAGES)
@pytest.mark.sampled(4)
def test_the_page_of_a_segment_that_changes_meanwhile_shows_no_damage(
    name: str, change: Callable[[Log], None], tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    for number in itertools.count(0, STRIDE):
        fs = MeddlingFs()
        path = tmp_path / f"{number}-0"
        with Log(path, durability="os", index_interval_bytes=0, segment_bytes=1024, file_delete_delay_ms=0) as writer:
            _append(writer, "old", COUNT, OLD_BYTES)
            pages = Pages(Survey([tmp_path], fs=fs), Checks(fs=fs))
            fs.before(number, lambda: change(writer))
            page: Model = {}
            with contextlib.suppress(NotHereError):
                page = PAGES[name](pages, Place(path, tmp_path, 0, str(number), 0))
                assert not any((*page.get("damages", ()), page.get("damage")))
                assert not any(entry["wrong"] for entry in page.get("index", ()))
                assert not any(page.get(problem) for problem in ("problem", "index_problem", "timeindex_problem"))
        if not fs.is_past():
            assert page, "nothing had changed"
            tried("states", number)
            return
        assert number < OPERATIONS_MAX, Hung(f"more than {OPERATIONS_MAX} operations")


def _verified_in_pieces(path: Path, fs: FileSystem) -> Iterable[Finding]:
    head = verify_head(path, fs=fs)
    return join(head, [verify_piece(piece, fs=fs) for piece in pieces_of(head, is_live=True)], fs=fs).findings


FINDERS: dict[str, Callable[[Path, FileSystem], Iterable[Finding]]] = {
    "verify": lambda path, fs: verify_log(path, fs=fs).findings,
    "verify-pieces": _verified_in_pieces,
    "stats-deep": lambda path, fs: log_stats(path, fs=fs, deep=True).findings,
}


@pytest.mark.parametrize("name", FINDERS)
def test_damage_in_the_last_segment_is_found_although_its_writer_changes_the_log_s_record(
    name: str, tmp_path: Path
) -> None:
    for number in itertools.count():
        fs = MeddlingFs()
        path = tmp_path / str(number)
        with Log(path, durability="interval") as writer:
            _append(writer, "old", 4, OLD_BYTES)
            with (path / f"{0:020d}.log").open("r+b") as file:
                file.seek(100)
                file.write(b"damage")

            fs.before(number, writer.flush)
            found = [each for each in FINDERS[name](path, fs) if each.severity == "damage" and each.kind == "batch"]
            assert found, f"before operation {number}"
        if not fs.is_past():
            assert number
            return
        assert number < OPERATIONS_MAX, Hung(f"more than {OPERATIONS_MAX} operations")
