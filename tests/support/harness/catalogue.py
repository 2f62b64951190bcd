"""Every test: which promises it is evidence for, and whether `make test` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Prints each test as a line of JSON; ``conftest.py`` has marked what samples leave out.
LISTING = """
import json, sys
import pytest
from tests.support.harness.catalogue import listed

class Listing:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        for test in listed(items):
            print("listed", json.dumps(test), sep="\\t")

arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests"]
sys.exit(pytest.main(arguments, [Listing()]))
"""


class Listed(NamedTuple):
    """A test as it was collected."""

    nodeid: str
    promises: tuple[str, ...]
    markers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Without the case: ``tests/unit/test_x.py::test_y``."""
        return self.nodeid.partition("[")[0]

    @property
    def is_quick(self) -> bool:
        """`make test` runs it."""
        return not {"long", "soak", "interop"} & set(self.markers)


def listed(items: Iterable[pytest.Item]) -> list[Listed]:
    return [
        Listed(
            item.nodeid,
            tuple(name for marker in item.iter_markers("promise") for name in marker.args),
            tuple(sorted({marker.name for marker in item.iter_markers()})),
        )
        for item in items
    ]


def all_tests() -> list[Listed]:
    """Collects all tests in a process of its own, which takes some seconds."""
    # The options of this run are not that one's: with ``--promises`` it would collect all tests in its turn.
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-c", LISTING], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rows = [json.loads(line.partition("\t")[2]) for line in done.stdout.splitlines() if line.startswith("listed\t")]
    return [Listed(nodeid, tuple(promises), tuple(markers)) for nodeid, promises, markers in rows]
