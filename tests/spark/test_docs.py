"""The Spark guide: its examples run and print what it says, and its tables are those of the code."""

from __future__ import annotations

import re
import runpy
import shutil
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kstore
import kstore.spark
from kstore.spark import options, write_options
from kstore.spark.session import RECOMMENDED
from tests.spark.connecting import connected
from tests.support.harness.selection import tries
from tests.unit.project.test_docs import code_blocks, rows, section

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")

# The paths in the examples.
PATHS = re.compile(r'((?:load|open|parquet|save|start)\(|read\(spark, |"checkpointLocation", )"([\w.-]+)"')


@pytest.mark.long
def test_the_guide_s_examples_print_what_it_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = code_blocks(GUIDE, "python")
    numbers = count()

    def run() -> Path:
        """Runs the guide's code in a new directory, which it returns."""
        directory = tmp_path / str(next(numbers))
        directory.mkdir()
        # Spark keeps the directory in which it was started, before this test.
        text = PATHS.sub(rf'\1"{directory}/\2"', "\n\n".join(blocks))
        (directory / "guide.py").write_text(text, encoding="utf-8")
        monkeypatch.chdir(directory)
        capsys.readouterr()
        runpy.run_path("guide.py")
        return directory

    directory = connected(run)
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert len(said) == sum(block.count("print(") for block in blocks)
    assert capsys.readouterr().out.splitlines() == said

    def run_again() -> None:
        shutil.rmtree(directory / "compacted", ignore_errors=True)  # compact requires that it does not exist
        runpy.run_path("guide.py")  # over the rest of its output: then there are more records

    connected(run_again)


@pytest.mark.parametrize("is_alone", [True, False], ids=["alone", "after the page's other blocks"])
@pytest.mark.sampled(1)
def test_the_readme_s_example_runs(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_alone: bool,
) -> None:
    (example,) = code_blocks(section(README, "Spark"), "python")
    (said,) = re.findall(r"print\(.*\)  # (.*)", example)
    if not is_alone:
        monkeypatch.chdir(tmp_path)
        before = [block for block in code_blocks(README, "python") if block != example]
        (tmp_path / "before.py").write_text("\n\n".join(before), encoding="utf-8")
        runpy.run_path("before.py")
        capsys.readouterr()
    (tmp_path / "example.py").write_text(PATHS.sub(rf'\1"{tmp_path}/\2"', example), encoding="utf-8")
    runpy.run_path(str(tmp_path / "example.py"))
    assert capsys.readouterr().out == f"{said}\n"
    runs = tries(2, quick=1)
    if runs > 1:
        runpy.run_path(str(tmp_path / "example.py"))
        assert "Row(topic='clicks', count=5)" in capsys.readouterr().out
    with kstore.open(tmp_path / "data", read_only=True) as store:
        copies = store.to_arrow("copies", isolation_level="read_committed")
    assert copies.num_rows == (3 if runs == 1 else 3 + 6)


def test_the_example_of_a_job_prints_the_same_each_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Use the tests' session: a second one cannot be started beside it.
    monkeypatch.setattr(kstore.spark, "session", lambda **settings: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    job = runpy.run_path(str(ROOT / "examples" / "spark_job.py"))
    for _ in range(2):
        job["main"](str(tmp_path / "shop"))
    line = str([(b"customer-%d" % number, b"200") for number in range(5)])
    assert capsys.readouterr().out.splitlines() == [line, line]


def named_in(heading: str) -> set[str]:
    """The names in the first cells of a section's tables."""
    cells = [cells[0] for cells in rows(section(GUIDE, heading)) if cells[0].startswith("`")]
    return {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_the_options_of_the_guide_are_those_that_there_are() -> None:
    assert named_in("Options") == {*options.NAMES, "storage_options.NAME"} - {"storage_options"}


def test_the_options_of_writes_in_the_guide_are_those_that_there_are() -> None:
    # The last two are Spark's own, of every stream.
    assert named_in("Write") >= set(write_options.NAMES) - {"checkpointLocation", "queryName"}


def test_the_settings_of_the_guide_are_those_that_a_session_gets() -> None:
    assert named_in("Session") == set(RECOMMENDED)
