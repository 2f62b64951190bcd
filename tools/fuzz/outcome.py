"""The end of a worker: how many inputs it tried, and what it found or died of."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

STDERR_LINES = 30
INPUTS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
ARTIFACT = re.compile(r"Test unit written to (\S+)")
EXCEPTION = re.compile(r"Uncaught Python exception: ===\s*\n(.*)")

# Verdict, message, and the file that holds the input.
Found = tuple[str, str, str]


class Ended(NamedTuple):
    """The end of a worker: ``status`` is None if it had to be stopped, negative if a signal ended it."""

    name: str
    status: int | None
    out: str
    err: str
    directory: Path
    started: float


def read_seeded(ended: Ended) -> tuple[int, list[Found]]:
    current = ended.directory / f"{ended.name}.current"
    if ended.status == 0:
        current.unlink(missing_ok=True)
        inputs, findings = json.loads(ended.out.splitlines()[-1])
        return inputs, [(verdict, message, file) for verdict, message, file in findings]
    # It died, or hung, on the input that it was trying.
    kept = ended.directory / f"{ended.name}-crash-{int(ended.started)}"
    if current.exists():
        current.rename(kept)
    return 0, [_death(ended, str(kept))]


def read_atheris(ended: Ended) -> tuple[int, list[Found]]:
    for corpus in ended.directory.glob(f"{ended.name}-corpus-*"):
        shutil.rmtree(corpus, ignore_errors=True)
    counted = INPUTS.findall(ended.err)
    inputs = int(counted[-1]) if counted else 0
    if ended.status == 0 and counted:
        return inputs, []
    artifact = ARTIFACT.findall(ended.err)
    file = artifact[-1] if artifact else "no input was kept"
    said = EXCEPTION.findall(ended.err)
    return inputs, [("wrong", said[-1], file) if said else _death(ended, file)]


def _death(ended: Ended, file: str) -> Found:
    if ended.status is None:
        return "hung", "it did not end in time", file
    last = "\n".join(ended.err.splitlines()[-STDERR_LINES:])
    return "crashed", f"status {ended.status}\n{last}", file
