"""docs/promises.md names every test that is marked as evidence for a promise, and no other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.promises import PROMISES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"

# Prints promise and test, a line each, of what ``make soak`` would run and does not skip.
LISTING = """
import sys
import pytest

class Listing:
    def pytest_collection_finish(self, session):
        for item in session.items:
            for marker in item.iter_markers("promise"):
                for name in marker.args:
                    print("promise", name, item.nodeid.partition("[")[0], sep="\\t")

sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[1:]], [Listing()]))
"""


def marked() -> set[tuple[str, str]]:
    """Each promise with each test that is marked with it, the long ones too."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if b"mark.promise(" in path.read_bytes()]
    command = [sys.executable, "-c", LISTING, "-m", "not interop and not spark", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = [line.split("\t")[1:] for line in done.stdout.splitlines() if line.startswith("promise\t")]
    return {(name, test) for name, test in rows}


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


def test_the_page_names_every_test_that_is_marked_and_no_other(request: pytest.FixtureRequest) -> None:
    """A test that is missing is new, or the page comes from a run without the long counts: ``make soak`` makes it."""
    if request.config.getoption("--promises"):
        pytest.skip("this run makes the page")
    on_page, expected = listed(PAGE.read_text(encoding="utf-8")), marked()
    assert {name for name, _ in expected} == PROMISES.keys()
    missing = sorted(expected - on_page)
    stale = sorted(on_page - expected)
    assert not missing, f"docs/promises.md lacks {len(missing)} rows, run make soak: {missing[:5]}"
    assert not stale, f"docs/promises.md names what is no marked test: {stale[:5]}"


def test_a_row_belongs_to_the_promise_above_it() -> None:
    page = "# Promises\n\n## fork\n\n| test | tried | |\n|---|---|---|\n| `a.py::b` | 1 cases | holds |\n\n## clock\n"
    assert listed(page) == {("fork", "a.py::b")}
