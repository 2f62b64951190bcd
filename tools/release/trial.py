"""Installs a wheel into a new environment where no compiler is, measures it, and runs the first pages there."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from tools.release.archives import ReleaseError, run
from tools.release.pythons import Python

PAGES = ("README.md", "docs/first_steps.md")
README_RUNNER = Path(__file__).with_name("readme.py")
# In megabytes on disk: kstore alone, and with what it requires. What a new environment brings is left out.
MEASURE = """
import pathlib, sysconfig
root = pathlib.Path(sysconfig.get_path("purelib"))
size = {path.name: sum(each.lstat().st_blocks * 512 for each in path.rglob("*")) for path in root.iterdir()}
brought = ("pip", "pkg_resources", "setuptools")
own = sum(bytes for name, bytes in size.items() if "kstore" in name)
print(own / 1e6, sum(bytes for name, bytes in size.items() if not name.startswith(brought)) / 1e6)
"""
# The sizes differ between Pythons and file systems.
SIZE_RATIO_MAX = 1.3


class Trial(NamedTuple):
    """What a trial found: sizes on disk in MB, and what ran."""

    own_mb: float
    all_mb: float
    said: str


def try_wheel(python: Python, wheel: Path, tree: Path) -> Trial:
    """Raises ReleaseError if the wheel does not install, or if a page of ``tree`` for newcomers is not true there."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        # A compiler that is asked for fails, and none is found.
        environment |= {"CC": "/bin/false", "CXX": "/bin/false", "PATH": str(here / "environment" / "bin")}
        run(python.path, "-m", "venv", "environment", cwd=here)
        inside = here / "environment" / "bin" / "python"
        pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:")
        run(*pip, wheel, cwd=here, environment=environment)
        own_mb, all_mb = map(float, run(inside, "-c", MEASURE, cwd=here, environment=environment).split())
        run(*pip, f"{wheel}[cli]", cwd=here, environment=environment)
        said = run(
            inside, "-I", README_RUNNER, *map(tree.joinpath, PAGES), cwd=here, environment=environment, seconds=300
        )
    return Trial(own_mb, all_mb, "; ".join(said.splitlines()))


def promised_sizes(text: str) -> tuple[float, float]:
    """What docs/choosing.md says in MB: kstore alone, and with what it requires."""
    match = re.search(r"about (\d+) MB\s+installed, and (\d+) MB\s+with", text)
    if match is None:
        raise ReleaseError("docs/choosing.md does not say how much space kstore takes")
    return float(match[1]), float(match[2])


def size_problems(trial: Trial, promised: tuple[float, float]) -> list[str]:
    found = (trial.own_mb, trial.all_mb)
    return [
        f"it takes {size:.0f} MB {what}, and docs/choosing.md says {said:.0f}"
        for what, size, said in zip(("alone", "with its dependencies"), found, promised, strict=True)
        if not said / SIZE_RATIO_MAX <= size <= said * SIZE_RATIO_MAX
    ]
