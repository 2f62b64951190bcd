"""The documentation site: its navigation names every page, and covers every public name. Needs no mkdocs."""

from __future__ import annotations

import posixpath
import re
from importlib import import_module
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import COMMANDS
from tools.docs_site import DOORS, LINK, TABLES, errors, pages, relinked

ROOT = Path(__file__).resolve().parents[3]
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2].partition("\n\n")[0]
GENERATED = pages()
GUIDES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
PAGES = {**GENERATED, **GUIDES}


def test_the_navigation_names_every_page_once() -> None:
    named = re.findall(r": ([\w/]+\.md)$", NAVIGATION, re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


def test_no_generated_page_hides_a_guide() -> None:
    assert GENERATED.keys() & GUIDES.keys() == set()


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    named = re.findall(r"^::: ([\w.]+)$", "\n".join(GENERATED.values()), re.MULTILINE)
    public = {f"kstore.{name}" for name in set(kstore.__all__) - {"__version__"}}
    public |= {f"{module}.{name}" for module in DOORS.values() for name in import_module(module).__all__}
    assert sorted(named) == sorted(public)


def test_errors_come_after_their_bases() -> None:
    found = [getattr(kstore, name) for name in errors()]
    assert found[0] is kstore.KstoreError
    for place, error in enumerate(found):
        assert not set(error.__mro__[1:]) & set(found[place:]), error


def test_the_reference_has_every_command_and_every_setting() -> None:
    commands = GENERATED["reference/commands.md"]
    headings = re.findall(r"^##+ kstore (.+)$", commands, re.MULTILINE)
    assert {heading.split()[0] for heading in headings} == COMMANDS.keys()
    assert commands.count("Usage: kstore") == len(headings) + 1
    table = re.findall(r"^\| `(\w+)`", GENERATED["reference/settings.md"], re.MULTILINE)
    assert table == [row.name for rows in TABLES.values() for row in rows()]


def test_a_row_of_the_settings_has_three_cells() -> None:
    rows = [line for line in GENERATED["reference/settings.md"].splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {4}


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_link_leads_to_a_page(page: str) -> None:
    for match in LINK.finditer(relinked(PAGES[page], page)):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), match[1].partition("#")[0]))
        assert target in PAGES or (ROOT / "docs" / target).is_file(), f"{page} links to {match[1]}"
