"""Hostile payloads, keys, headers and names of topics, files and groups add no element to a page."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import pytest

import kstore
from kstore.rules.notebook import html_table, visible
from tests.support.harness.browser_parts import opened
from tests.support.harness.golden_data import golden_root
from tests.support.harness.selection import tries
from tests.support.lives.report_parts import FRAGMENTS, Elements, hidden_characters, hostile_report


@cache
def harmless_kinds() -> frozenset[tuple[str, frozenset[str]]]:
    """The elements, with their attributes, of pages about data that a broker wrote."""
    kinds: set[tuple[str, frozenset[str]]] = set()
    for tree in ("clean", "damaged"):
        kinds |= Elements(kstore.report(golden_root() / tree, deep=True, with_payload=True).html()).kinds
    return frozenset(kinds)


@pytest.mark.parametrize("hash_names", [False, True], ids=["named", "hashed"])
@pytest.mark.sampled(1)
def test_a_page_about_hostile_data_has_only_our_own_elements(tmp_path: Path, seed: int, hash_names: bool) -> None:
    pytest.importorskip("jinja2")
    made = hostile_report(tmp_path / "data", random.Random(seed), tries(1000, quick=20))
    if hash_names:
        made = kstore.report(tmp_path / "data", deep=True, hash_names=True)
    page = made.html()
    seen = Elements(page)
    assert seen.kinds <= harmless_kinds()
    assert all(link.startswith("#") and link[1:].isalnum() for link in seen.links)
    assert hidden_characters(page) == set()
    page.encode("utf-8")
    for log in made.document["partitions"]:
        assert visible(log["name"]) in seen.text
    assert json.loads(made.json()) == made.document
    assert made.json().isascii()


def test_every_hostile_fragment_is_shown_as_text() -> None:
    seen = Elements(html_table("title", [(fragment,) for fragment in FRAGMENTS]))
    for fragment in FRAGMENTS:
        assert visible(fragment) in seen.text
    assert hidden_characters(html_table("title", [(fragment,) for fragment in FRAGMENTS])) == set()


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_request_and_a_script_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<img src='http://127.0.0.1:9/leak'><script>console.log(1)</script>", encoding="utf-8")
    seen = opened(page.as_uri(), tmp_path)
    assert seen.asked == ["http://127.0.0.1:9/leak"]
    assert "1" in seen.logged


@pytest.mark.long
def test_a_browser_runs_nothing_asks_for_nothing_and_says_nothing(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("jinja2")
    made = hostile_report(tmp_path / "data", random.Random(seed), 1000)
    made.save(tmp_path / "page.html")
    page = opened((tmp_path / "page.html").as_uri(), tmp_path)
    assert page.asked == []
    assert page.logged == []
    seen = Elements(page.dom)
    assert not {tag for tag, _ in seen.kinds} & {"script", "iframe", "img", "base", "link", "form"}
    title = page.dom.partition("<title>")[2].partition("</title>")[0]
    assert title.startswith("Logs: ")
    # The browser saw exactly the elements that were written.
    assert {tag for tag, _ in seen.kinds} == {tag for tag, _ in Elements(made.html()).kinds}


@pytest.mark.long
@pytest.mark.parametrize("tree", ["clean", "damaged"])
def test_a_page_has_no_grave_fault_and_no_dangling_link(tree: str, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    kstore.report(golden_root() / tree, deep=True).save(tmp_path / "page.html")
    page = opened((tmp_path / "page.html").as_uri(), tmp_path, audited=True)
    assert page.asked == []
    assert page.logged == []
    assert page.dangling == []
    assert page.faults == []
