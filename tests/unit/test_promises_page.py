"""docs/promises.md names exactly the tests that are marked as evidence for a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalogue import Listed
from tests.evidence import Evidence, Tried
from tests.promises import PROMISES, Row, marked, page, rows_of, tried_rows

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
    """``make soak`` makes the page; ``python -m tests.promises`` adds newer tests as not run."""
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
        f"docs/promises.md names unmarked or missing tests, run .venv/bin/python -m tests.promises: {stale[:5]}"
    )


def test_a_run_replaces_the_rows_of_its_tests_and_leaves_the_others() -> None:
    tests = {(name, "a.py::kept") for name in PROMISES} | {("fork", "a.py::again"), ("fork", "a.py::new")}
    first = {
        "a.py::kept": Row({"cases": 2, "fuzz inputs": 1234}, True, "abc1234"),
        "a.py::again": Row({}, True, "abc1234"),
    }
    evidence = Evidence(seed=1)
    evidence.tests += [
        Tried("a.py::again[one]", True, {"kills": 1000}, ("fork",)),
        Tried("a.py::again[two]", False, {"kills": 500}, ("fork",)),
        Tried("a.py::unmarked", True, {"kills": 1}, ()),
    ]
    second = page(rows_of(page(first, tests)) | tried_rows(evidence, "def5678+"), tests)
    fork = second[second.index("## fork") :].split("\n## ")[0].splitlines()
    assert fork[-3:] == [
        "| `a.py::again` | 2 cases, 1,500 kills | def5678+ | **FAILS** |",
        "| `a.py::kept` | 2 cases, 1,234 fuzz inputs | abc1234 | holds |",
        "| `a.py::new` | | | *not run* |",
    ]
    assert "1,234 fuzz inputs, 1,500 kills. Of 3 tests, 1 hold, 1 fail, 1 were not run." in second
    assert page(rows_of(second), tests) == second


def test_a_test_that_is_gone_loses_its_row() -> None:
    tests = {(name, "a.py::kept") for name in PROMISES}
    rows = {"a.py::kept": Row({"cases": 1}, True, "abc1234"), "a.py::gone": Row({"kills": 7}, True, "abc1234")}
    assert "gone" not in page(rows, tests)
    assert "kills" not in page(rows, tests)


def test_a_row_belongs_to_the_promise_above_it() -> None:
    page = "# Promises\n\n## fork\n\n| test | tried | |\n|---|---|---|\n| `a.py::b` | 1 cases | holds |\n\n## clock\n"
    assert listed(page) == {("fork", "a.py::b")}
