"""The floors of the house: the import contract names them for the linter, DESIGN.md draws them for people."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

Floors = list[set[str]]


def contract_floors() -> Floors:
    """From the lowest to the highest, as in the linter's configuration."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (rows,) = [one["layers"] for one in contracts if one.get("containers") == ["kstore"]]
    return [set(re.split(r"[ |:]+", row)) for row in reversed(rows)]


def drawn_floors() -> Floors:
    """From the lowest to the highest, as in DESIGN.md."""
    layers = (ROOT / "DESIGN.md").read_text().split("\n## Layers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^    (\S+(?: \S+)*)  +\S", layers, re.MULTILINE)
    return [set(row.replace("/", "").split()) for row in rows]


def test_design_draws_the_floors_that_the_import_contract_names() -> None:
    assert drawn_floors() == contract_floors()


def test_every_file_and_folder_of_the_package_has_a_floor() -> None:
    package = ROOT / "kstore"
    files = {path.stem for path in package.glob("[!_]*.py")}
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    assert set().union(*contract_floors()) == files | folders


def test_few_files_lie_in_the_root() -> None:
    assert len(list((ROOT / "kstore").glob("*.py"))) <= 15


def test_a_file_is_short_enough_to_be_read_in_one_go() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "kstore").rglob("*.py")}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 800} == {}


ENGINE = ROOT / "kstore/engine"
ROOMS = sorted(path.parent for path in ENGINE.glob("*/__init__.py"))


@pytest.mark.parametrize("folder", [ENGINE, *ROOMS], ids=lambda folder: str(folder.name))
def test_the_map_of_the_engine_and_of_each_of_its_rooms_names_what_is_in_it(folder: Path) -> None:
    text = (folder / "__init__.py").read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", "\n".join(re.findall(r"^    (.*)$", text, re.MULTILINE))))
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    compiled = {path.stem for path in folder.glob("*.pyx")} if folder != ENGINE else set()
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    assert files | compiled | rooms <= words


def test_one_place_in_each_language_shows_the_readers_of_an_open_log_its_ends() -> None:
    # ``ends`` is read-only for Python: what is compiled could still set it, past those who wait for a new one.
    setters = {
        path.name
        for folder in ("engine", "shared")
        for path in (ROOT / "kstore" / folder).rglob("*.p[yx][xdi]")
        if re.search(r"\bfiles\.(ends|truncation_count|cut_count)\b[^=\n]*(?<![=!<>])=(?!=)", path.read_text("utf-8"))
    }
    assert setters == {"_fields.pxd"}
