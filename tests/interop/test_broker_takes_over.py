"""A real broker opens partition directories that kstore wrote, and serves exactly the records in them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

import kstore
from kstore.errors import CorruptBatchError
from tests.interop.author import Author, content
from tests.interop.conftest import Kafka, Library
from tests.interop.scenarios import SCENARIOS
from tools.interop.broker import Broker
from tools.interop.handover import put_in_place
from tools.interop.records import Consumed, Row, rows_of

pytestmark = pytest.mark.interop

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
# What a broker finds in its root at its start: the mark of a clean stop, or none.
CLEAN, CRASH = "clean", "crash"
STARTED_AS = {
    CLEAN: "since clean shutdown file was found",
    CRASH: "since no clean shutdown file was found",
}
# How many of a log's records are looked up by offset and by time.
PROBE_COUNT = 8
CASES = [
    pytest.param(how, name, id=f"{how}-{name}")
    for how in (CLEAN, CRASH)
    for name, scenario in SCENARIOS.items()
    if scenario.is_closed or how == CRASH
]
# Their topics' indexes are as dense as the log's, and a writer trimmed the indexes in its close.
INDEXED_ALIKE = [name for name, s in SCENARIOS.items() if s.is_closed and not s.has_foreign_indexes]
# A broker logs these about any log from elsewhere: its own epochs are older than those in the log, and a start offset
# inside a segment is above its initial high watermark.
FOREIGN_LOG_REMARKS = ("LeaderEpochFileCache", "Non-monotonic update of high watermark")


class Served(NamedTuple):
    """What a broker made of the directories it was given.

    By isolation level and topic, what a consumer read; by topic, what it found for SEEKS and for the times of the same
    records; the partition directories after a clean stop (file name to bytes), and the broker's log.
    """

    consumed: dict[str, dict[str, Consumed]]
    sought: dict[str, list[int]]
    timed: dict[str, list[int]]
    files: dict[str, dict[str, bytes]]
    log: str


@pytest.fixture(scope="module")
def served(kafka: Kafka, library: Library, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Served]:
    """What one broker served, by the state of its root at its start; it is started three times in all."""
    broker = kafka.broker(tmp_path_factory.mktemp("broker"))
    with broker.running():
        broker.create_topics({name: SCENARIOS[name].topic_settings for name in library.directories()})
    return {how: serve(broker, library, how) for how in (CLEAN, CRASH)}


def serve(broker: Broker, library: Library, how: str) -> Served:
    given = library.directories(lambda name: SCENARIOS[name].is_closed or how == CRASH)
    put_in_place(broker.data, given, clean=how == CLEAN)
    with broker.running():
        consumed = {level: broker.consume(given, level) for level in ISOLATION_LEVELS}
        sought = broker.seek({name: seeks(library[name].rows) for name in given})
        timed = broker.offsets_for_times({name: times(library[name].rows) for name in given})
    return Served(consumed, sought, timed, {name: read_files(broker.data / f"{name}-0") for name in given}, broker.log)


def seeks(rows: list[Row]) -> list[int]:
    """Offsets from all parts of a log."""
    return [row.offset for row in rows[:: max(1, len(rows) // PROBE_COUNT)]]


def times(rows: list[Row]) -> list[int]:
    """The times of the same records, and one ms later."""
    picked = [row.timestamp for row in rows[:: max(1, len(rows) // PROBE_COUNT)]]
    return [time + step for time in picked if time >= 0 for step in (0, 1)]


def read_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


@pytest.mark.parametrize(("how", "scenario"), CASES)
def test_the_broker_serves_exactly_the_records(
    how: str, scenario: str, library: Library, served: dict[str, Served]
) -> None:
    written = library[scenario]
    consumed = served[how].consumed["read_uncommitted"][scenario]
    assert consumed.rows == written.rows
    with kstore.Log(written.directory, read_only=True) as log:
        assert rows_of(log.read()) == written.rows
        assert (log.start_offset, log.end_offset) == (consumed.begin, consumed.end)


@pytest.mark.parametrize(("how", "scenario"), CASES)
def test_the_broker_serves_exactly_the_committed_records(
    how: str, scenario: str, library: Library, served: dict[str, Served]
) -> None:
    consumed = served[how].consumed["read_committed"][scenario]
    with kstore.Log(library[scenario].directory, read_only=True) as log:
        assert rows_of(log.read(isolation_level="read_committed")) == consumed.rows
        assert log.last_stable_offset == consumed.end


@pytest.mark.parametrize(("how", "scenario"), CASES)
def test_the_broker_finds_each_offset(how: str, scenario: str, library: Library, served: dict[str, Served]) -> None:
    offsets = seeks(library[scenario].rows)
    assert served[how].sought[scenario] == offsets
    with kstore.Log(library[scenario].directory, read_only=True) as log:
        assert [next(iter(log.read(offset))).offset for offset in offsets] == offsets


@pytest.mark.parametrize(("how", "scenario"), CASES)
def test_the_broker_finds_each_time(how: str, scenario: str, library: Library, served: dict[str, Served]) -> None:
    rows = library[scenario].rows
    *found, latest = served[how].timed[scenario]
    asked = times(rows)
    with kstore.Log(library[scenario].directory, read_only=True) as log:
        ours = [log.offset_for_time(when) for when in asked]
        our_latest = log.offset_for_time("max_timestamp")
    # As a broker, kstore also answers with a transaction's marker, which has a time too.
    assert [-1 if offset is None else offset for offset in [*ours, our_latest]] == [*found, latest]
    if not SCENARIOS[scenario].has_markers:
        assert ours == [next((row.offset for row in rows if row.timestamp >= when), None) for when in asked]


@pytest.mark.parametrize(("how", "scenario"), CASES)
def test_the_broker_leaves_every_log_file_as_it_was(
    how: str, scenario: str, library: Library, served: dict[str, Served]
) -> None:
    before, after = read_files(library[scenario].directory), served[how].files[scenario]
    assert of_kind(after, ".log") == of_kind(before, ".log")


@pytest.mark.parametrize(("how", "scenario"), [case for case in CASES if case.values[1] in INDEXED_ALIKE])
def test_the_broker_keeps_or_rebuilds_the_indexes_that_kstore_built(
    how: str, scenario: str, library: Library, served: dict[str, Served]
) -> None:
    before, after = read_files(library[scenario].directory), served[how].files[scenario]
    for suffix in (".index", ".timeindex", ".txnindex"):
        assert of_kind(after, suffix) == of_kind(before, suffix)


def of_kind(files: dict[str, bytes], suffix: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(suffix)}


@pytest.mark.parametrize(("how", "scenario"), CASES)
def test_the_broker_has_no_complaint(how: str, scenario: str, library: Library, served: dict[str, Served]) -> None:
    assert library[scenario].directory.is_dir()
    complaints = [
        line
        for line in served[how].log.splitlines()
        if (" WARN " in line or " ERROR " in line)
        and f"{scenario}-0" in line
        and not any(remark in line for remark in FOREIGN_LOG_REMARKS)
    ]
    assert complaints == []


@pytest.mark.parametrize("how", [CLEAN, CRASH])
def test_the_broker_was_started_as_meant(how: str, served: dict[str, Served]) -> None:
    given = served[how]
    assert STARTED_AS[how] in given.log
    if how == CRASH:
        for name, files in given.files.items():
            segments = {int(file.removesuffix(".log")) for file in files if file.endswith(".log")}
            assert segments == {base for base in segments if f"Recovering unflushed segment {base}. " in given.log}, (
                name
            )


def test_a_log_with_fenced_damage_is_not_given_to_a_broker(tmp_path: Path) -> None:
    directory, data = tmp_path / "damaged-0", tmp_path / "data"
    with Author(directory, segment_bytes=4096) as author:
        author.append(content(200, "damaged"), batch_count=40)
    first, second = sorted(directory.glob("*.log"))[:2]
    assert second.stat().st_size > 0
    damaged = bytearray(first.read_bytes())
    damaged[len(damaged) // 2] ^= 0x10
    first.write_bytes(damaged)
    (data / "damaged-0").mkdir(parents=True)
    (data / "damaged-0" / "partition.metadata").write_text("kept")
    with pytest.raises(CorruptBatchError):
        put_in_place(data, {"damaged": directory}, clean=True)
    assert [path.name for path in data.rglob("*") if path.is_file()] == ["partition.metadata"]
