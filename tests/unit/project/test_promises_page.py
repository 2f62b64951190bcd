"""docs/promises.md names exactly the tests that are marked as evidence for a promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.promises import PROMISES, Row, marked, page, rows_of, tried_rows
from tests.support.harness.catalogue import Listed
from tests.support.harness.evidence import Evidence, Tried

PAGE = Path(__file__).resolve().parents[3] / "docs" / "promises.md"


def listed(page: str) -> set[tuple[str, str]]:
    """Each promise with each test that the page names for it."""
    lines = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    return {(name, test.strip(" `")) for _, test, promises, *_ in lines for name in promises.strip().split("; ")}


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
    ages = {"def5678": 1_700_000_001, "abc1234": 1_700_000_000}
    second = page(rows_of(page(first, tests, ages)) | tried_rows(evidence, "def5678+"), tests, ages)
    everything = "; ".join(PROMISES)
    assert second.splitlines()[-3:] == [
        "| `a.py::again` | fork | 2 cases, 1,500 kills | def5678+ | **FAILS** |",
        f"| `a.py::kept` | {everything} | 2 cases, 1,234 fuzz inputs | abc1234 | holds |",
        "| `a.py::new` | fork | | | *not run* |",
    ]
    (fork,) = [line for line in second.splitlines() if line.startswith("| fork |")]
    assert fork.endswith("| 3 | 1,234 fuzz inputs, 1,500 kills | abc1234 | 1 hold, 1 **FAIL**, 1 not run |")
    (clock,) = [line for line in second.splitlines() if line.startswith("| clock |")]
    assert clock.endswith("| 1 | 1,234 fuzz inputs | abc1234 | 1 hold |")
    assert "1,234 fuzz inputs, 1,500 kills. Of 3 tests, 1 hold, 1 fail, 1 were not run." in second
    assert page(rows_of(second), tests, ages) == second


def test_an_unknown_commit_counts_as_the_oldest() -> None:
    tests = {(name, f"a.py::{test}") for name in PROMISES for test in ("known", "unknown")}
    rows = {"a.py::known": Row({}, True, "abc1234"), "a.py::unknown": Row({}, True, "0ddba11")}
    assert "| 0ddba11 | 2 hold |" in page(rows, tests, {"abc1234": 1})


def test_a_test_that_is_gone_loses_its_row() -> None:
    tests = {(name, "a.py::kept") for name in PROMISES}
    rows = {"a.py::kept": Row({"cases": 1}, True, "abc1234"), "a.py::gone": Row({"kills": 7}, True, "abc1234")}
    assert "gone" not in page(rows, tests, {})
    assert "kills" not in page(rows, tests, {})


def test_a_row_names_each_promise_that_its_test_proves() -> None:
    assert listed("| `a.py::b` | fork; one writer | 1 cases | abc1234 | holds |\n") == {
        ("fork", "a.py::b"),
        ("one writer", "a.py::b"),
    }
