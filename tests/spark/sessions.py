"""Runs a script with its own Spark session in another process, as users do, and returns its output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT_SECONDS_MAX = 400
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


def spark_home(directory: Path) -> Path:
    """The installed Spark in a separate directory: a cluster in one process writes to ``work`` below it."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    directory.mkdir()
    for source in Path(spec.origin).parent.iterdir():
        (directory / source.name).symlink_to(source)
    return directory


def run_script(script: str | Path, directory: Path, *arguments: object, env: Mapping[str, str]) -> Any:
    """Runs a script, text or file, in ``directory``; returns its last line of output, which is JSON."""
    if isinstance(script, str):
        text, script = script, directory / "script.py"
        script.write_text(text, encoding="utf-8")
    output, errors = directory / "stdout", directory / "stderr"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, str(script), *map(str, arguments)],
            cwd=directory,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            status: int | None = process.wait(SCRIPT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    # Without Spark's log and Java's stack frames.
    said = "\n".join(line for line in lines if not re.match(r"\s+at |\d\d/\d\d/\d\d |java\.lang\.Illegal", line))
    assert status == 0, f"exit status {status}\n{output.read_text()}\n{said[-10_000:]}"
    return json.loads(output.read_text(encoding="utf-8").splitlines()[-1])
