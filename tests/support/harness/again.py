"""Prints, for each test that failed, the command that runs it again with the same seeds.

Everything that a test draws comes from ``--evidence-seed``; hypothesis draws from ``--hypothesis-seed``. `make test`
and `make test-all` always use the same one; any other run chooses its own.
"""

from __future__ import annotations

import os
import random
import shlex
import sys
from collections.abc import Iterator

import pytest


def choose_seed(config: pytest.Config) -> None:
    """Gives hypothesis a known seed before its own plugin looks for one. Workers get it with the options."""
    if config.getoption("hypothesis_seed", None) is None:
        is_fixed = "not soak" in config.option.markexpr
        config.option.hypothesis_seed = str(config.option.evidence_seed if is_fixed else random.randrange(1 << 32))


def commands(config: pytest.Config, reports: list[pytest.TestReport]) -> Iterator[str]:
    """One command for each test of these reports."""
    python = os.path.relpath(sys.executable)
    options = [
        f"--evidence-seed={config.option.evidence_seed}",
        f"--hypothesis-seed={config.option.hypothesis_seed}",
        *(["-m", config.option.markexpr] if config.option.markexpr else []),
    ]
    for nodeid in dict.fromkeys(report.nodeid for report in reports):
        yield shlex.join([sys.executable if python.startswith("..") else python, "-m", "pytest", nodeid, *options])
