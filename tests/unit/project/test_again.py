"""A failing test prints a command that runs it again with the same seeds and fails in the same way."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

FAILING = """
import pytest
from hypothesis import given, settings, strategies
from tests.support.harness.selection import tries

COUNT = tries(9, quick=3)

def test_of_a_seed(seed):
    assert seed != 5, f"tried {COUNT}"

@settings(database=None)
@given(strategies.integers())
def test_of_hypothesis(number):
    assert number < 1000

@pytest.mark.sampled(2, keep=("a",))
@pytest.mark.parametrize("case", "abcdefgh")
def test_of_which_two_cases_stay_and_one_that_is_kept(case):
    pass
"""


def run(directory: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "-p", "tests.conftest", "-p", "no:cacheprovider"],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def findings(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("E  "))


@pytest.mark.long
@pytest.mark.parametrize("how", [["-n", "1", "--dist", "loadscope"], []], ids=["in a worker", "in one process"])
def test_the_command_of_a_failure_fails_in_the_same_way(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    status, output = run(tmp_path, "-q", "-m", "not long and not soak", "--evidence-seed=5", *how)
    assert status == 1
    commands = [line for line in output.splitlines() if "-m pytest test_failing.py::" in line]
    assert len(commands) == 2
    again = [run(tmp_path, *shlex.split(command)[3:]) for command in commands]
    assert [status for status, _ in again] == [1, 1]
    assert findings("".join(said for _, said in again)) == findings(output)
    assert "tried 3" in output
    assert "3 passed" in output
