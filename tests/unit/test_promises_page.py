"""docs/promises.md names every test that is marked as evidence for a promise, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalogue import Listed
from tests.promises import PROMISES, marked, updated

PAGE = Path(__file__).resolve().parents[2] / "docs" / "promises.md"


def listed(page: str) -> set[tuple[str, str]]:
    """Each promise with each test that the page names for it."""
    found = set()
    name = ""
    for line in page.splitlines():
        if line.startswith("## "):
            name = line.removeprefix("## ")
        elif line.startswith("| `"):
            found.add((name, line.split("`")[1]))
    return found


def test_the_page_names_every_test_that_is_marked_and_no_other(
    request: pytest.FixtureRequest, catalogue: list[Listed]
) -> None:
    """``make soak`` makes the page; ``python -m tests.promises`` adds the tests that are newer, as not run."""
    if request.config.getoption("--promises"):
        pytest.skip("this run makes the page")
    on_page, expected = listed(PAGE.read_text(encoding="utf-8")), marked(catalogue)
    assert {name for name, _ in expected} == PROMISES.keys()
    missing = sorted(expected - on_page)
    stale = sorted(on_page - expected)
    assert not missing, (
        f"docs/promises.md lacks {len(missing)} rows, run .venv/bin/python -m tests.promises: {missing[:5]}"
    )
    assert not stale, (
        f"docs/promises.md names what is no marked test, run .venv/bin/python -m tests.promises: {stale[:5]}"
    )


def test_an_update_adds_new_tests_and_drops_those_that_are_gone() -> None:
    head = "# Promises\n\n## fork\n\nText.\n\n| test | tried | |\n|---|---|---|\n"
    page = head + "| `a::b` | 1 cases | holds |\n| `a::z` | | |\n"
    new = updated(page, {("fork", "a::a"), ("fork", "a::b")})
    assert new == page.replace("| `a::b`", "| `a::a` | | *not run* |\n| `a::b`").replace("| `a::z` | | |\n", "")


def test_a_row_belongs_to_the_promise_above_it() -> None:
    page = "# Promises\n\n## fork\n\n| test | tried | |\n|---|---|---|\n| `a.py::b` | 1 cases | holds |\n\n## clock\n"
    assert listed(page) == {("fork", "a.py::b")}
