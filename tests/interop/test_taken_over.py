"""Kafka's dump tool finds no fault in any partition of a real broker after kstore took it over."""

from __future__ import annotations

import shutil

import pytest

from tests.golden.test_golden_taken_over import PARTITIONS, Life, taken_over
from tests.interop.conftest import Kafka
from tests.support.harness.golden_data import golden_root
from tools.interop.dump import Printed, Run, kafka_dumps, runs_over, unexpected_reports, without_emptied

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Life]:
    root = tmp_path_factory.mktemp("taken-over")
    return {name: taken_over(golden_root() / name, root / name) for name in PARTITIONS}


@pytest.fixture(scope="module")
def dumps(
    dump_tool: Kafka, lives: dict[str, Life], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[Run, Printed]]:
    """What Kafka's tool prints, by partition; on copies, because it may change what it dumps."""
    root = tmp_path_factory.mktemp("dumps")
    runs = {
        name: runs_over(shutil.copytree(life.directory, root / name / life.directory.name))
        for name, life in lives.items()
    }
    (root / "printed").mkdir()
    printed = kafka_dumps(
        dump_tool.java, dump_tool.jars, [run for some in runs.values() for run in some], root / "printed"
    )
    return {name: {run: printed[run] for run in some} for name, some in runs.items()}


@pytest.mark.parametrize("name", PARTITIONS)
def test_kafkas_tool_finds_no_mismatch(name: str, lives: dict[str, Life], dumps: dict[str, dict[Run, Printed]]) -> None:
    offsets = [offset for offset, _, _ in lives[name].after]
    reports: dict[str, list[str]] = {}
    for run, printed in dumps[name].items():
        assert printed.threw == "", str(run)
        assert b"isvalid: false" not in printed.out, str(run)
        assert b"invalid bytes" not in printed.out, str(run)
        if found := without_emptied(unexpected_reports(printed.err, offsets)):
            reports[str(run)] = found
    assert reports == {}
