"""Runs a script with a Spark session of its own in another process, as users do, and gives what it printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT_SECONDS_MAX = 240
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2"}


def environment(directory: Path, **more: str) -> dict[str, str]:
    """An environment whose Spark listens on loopback only and writes below ``directory``."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "PYTHON")) and name != "JAVA_HOME"
    }
    own = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "TMPDIR": str(directory),
        "XDG_CACHE_HOME": str(directory / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    return kept | own | more


def run_script(script: str | Path, directory: Path, *arguments: object, env: Mapping[str, str]) -> Any:
    """Runs a script, a text or a file, in ``directory``; its last line of output, which is JSON."""
    if isinstance(script, str):
        text, script = script, directory / "script.py"
        script.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=directory,
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=SCRIPT_SECONDS_MAX,
    )
    said = "\n".join(line for line in done.stderr.splitlines() if not re.match(r"\s+at |\d\d/\d\d/\d\d ", line))
    assert done.returncode == 0, f"{done.stdout}\n{said[-10_000:]}"
    return json.loads(done.stdout.splitlines()[-1])
