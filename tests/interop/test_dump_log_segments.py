"""Kafka's DumpLogSegments reads what kstore wrote, finds no fault in it, and prints what ``kstore dump-log`` prints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kstore.cli.command import DAMAGED, OK
from kstore.cli.main import main
from tests.interop.conftest import Kafka, Library
from tests.interop.scenarios import SCENARIOS
from tools.interop.dump import GAPS_HEADING, Printed, Run, kafka_dumps, runs_over, unexpected_reports

pytestmark = pytest.mark.interop

DEEP = ("--deep-iteration",)
# A killed writer's log is for recovery, not for a dump.
CLOSED = [name for name, scenario in SCENARIOS.items() if scenario.is_closed]


@pytest.fixture(scope="module")
def dumps(
    dump_tool: Kafka, library: Library, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[Run, Printed]]:
    """What Kafka's tool prints, by scenario; on copies, because it may change what it dumps."""
    copies = tmp_path_factory.mktemp("dumped")
    runs = {
        name: runs_over(Path(shutil.copytree(directory, copies / directory.name)))
        for name, directory in library.directories(CLOSED.__contains__).items()
    }
    flat = [run for of_scenario in runs.values() for run in of_scenario]
    printed = kafka_dumps(dump_tool.java, dump_tool.jars, flat, tmp_path_factory.mktemp("printed"))
    return {name: {run: printed[run] for run in of_scenario} for name, of_scenario in runs.items()}


@pytest.fixture
def scenario_dumps(library: Library, dumps: dict[str, dict[Run, Printed]], scenario: str) -> dict[Run, Printed]:
    assert library[scenario].directory.is_dir()
    return dumps[scenario]


@pytest.mark.parametrize("scenario", CLOSED)
def test_kafkas_tool_finds_no_mismatch(scenario: str, scenario_dumps: dict[Run, Printed], library: Library) -> None:
    offsets = [row.offset for row in library[scenario].rows]
    assert any(run.path.suffix == ".log" for run in scenario_dumps)
    faults = {
        str(run): (printed.threw, reports)
        for run, printed in scenario_dumps.items()
        if (reports := unexpected_reports(printed.err, offsets)) or printed.threw
    }
    if SCENARIOS[scenario].has_known_faults:
        faults = {run: fault for run, fault in faults.items() if fault[0]}
    assert faults == {}
    for printed in scenario_dumps.values():
        assert b"isvalid: false" not in printed.out
        assert b"invalid bytes" not in printed.out


@pytest.mark.parametrize("scenario", CLOSED)
def test_kafkas_tool_prints_every_record(scenario: str, scenario_dumps: dict[Run, Printed], library: Library) -> None:
    lines = b"".join(
        printed.out for run, printed in scenario_dumps.items() if run.path.suffix == ".log" and run.options == DEEP
    ).splitlines()
    offsets = [int(line.split()[2]) for line in lines if line.startswith(b"| offset: ") and b"endTxnMarker" not in line]
    wanted = [row.offset for row in library[scenario].rows]
    # The first segment still has records from before the log's start offset.
    assert offsets[len(offsets) - len(wanted) :] == wanted
    assert len(offsets) == len(wanted) or scenario.endswith("deleted-records")


@pytest.mark.parametrize("scenario", CLOSED)
def test_kstore_prints_the_same_lines(
    scenario: str, scenario_dumps: dict[Run, Printed], library: Library, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    offsets = [row.offset for row in library[scenario].rows]
    for run, printed in scenario_dumps.items():
        status = main(["dump-log", *run.arguments])
        out, err = capfdbinary.readouterr()
        assert out.splitlines() == printed.out.splitlines(), str(run)
        assert out == printed.out, str(run)
        assert without_the_defect(err.decode()) == without_the_defect(printed.err.decode()), str(run)
        # Kafka's tool always exits with 0. A gap, which compaction and truncation leave, is no damage.
        assert status == (DAMAGED if unexpected_reports(err, offsets) else OK), str(run)


def test_kafkas_tool_sees_a_wrong_index_entry(dump_tool: Kafka, library: Library, tmp_path: Path) -> None:
    """Otherwise silence would prove nothing."""
    copy = Path(shutil.copytree(library["plain"].directory, tmp_path / "wrong-0"))
    index = next(copy.glob("*.index"))
    data = bytearray(index.read_bytes())
    data[11] += 1  # the offset of the second entry
    index.write_bytes(data)
    (tmp_path / "printed").mkdir()
    run = Run(index, ())
    printed = kafka_dumps(dump_tool.java, dump_tool.jars, [run], tmp_path / "printed")[run]
    offset = int.from_bytes(data[8:12])
    assert unexpected_reports(printed.err, [row.offset for row in library["plain"].rows]) == [
        f"Mismatches in :{index}",
        f"  Index offset: {offset}, log offset: {offset - 1}",
    ]


def without_the_defect(err: str) -> list[str]:
    """The reports without the gap before a segment's first record, which only Kafka's tool reports."""
    lines = [line for line in err.splitlines() if not line.startswith("  -1 is followed by ")]
    return [
        line
        for line, behind in zip(lines, [*lines, ""][1:], strict=True)
        if not line.startswith(GAPS_HEADING) or behind.startswith("  ")
    ]
