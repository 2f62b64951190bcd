"""``make demo-spark`` with fewer records: a stream that is killed half way loses and doubles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kstore.errors import MissingExtraError
from kstore.spark import java_home
from tests.spark.sessions import ROOT

RECORDS = 30_000
DEMO_SECONDS_MAX = 900


@pytest.mark.spark
@pytest.mark.soak
def test_the_demo_ends_with_what_plain_python_makes_of_the_log(
    tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    try:
        java_home()
    except MissingExtraError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo_spark.py", "--records", str(RECORDS), tmp_path / "demo"],
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS_MAX,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "both are what plain Python makes of the log" in done.stdout
    tried("kills", 1)
