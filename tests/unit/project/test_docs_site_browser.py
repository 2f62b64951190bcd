"""The documentation site in a real browser: no page is wider than the screen, and no fault is found."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.harness.browser_parts import audited

ROOT = Path(__file__).resolve().parents[3]
# A page of each kind: a long one with tables and code, a guide with pictures, an API, and tables of settings.
PAGES = ("index.html", "report.html", "reference/log.html", "reference/settings.html")

pytestmark = pytest.mark.long


def test_the_site_fits_every_screen_and_has_no_fault(tmp_path: Path) -> None:
    if find_spec("material") is None or find_spec("mkdocstrings") is None:
        pytest.skip("the site needs kstore[docs]")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=300)
    assert audited((tmp_path / "site" / page).as_uri() for page in PAGES) == []
