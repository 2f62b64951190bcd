"""Fails if the root of the repository holds a file or folder that is not one of ROOT_NAMES: a run has left it there.

usage: python -m tools.root_names

It sees what git tracks and what git would add; what .gitignore names may lie there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOT_NAMES = frozenset(
    {
        *(".ci", ".github", ".gitignore", "docs", "examples", "kstore", "pyspark_kstore", "tests", "tools"),
        *("BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "DESIGN.md", "FORMAT.md", "README.md", "SECURITY.md"),
        *("LICENSE", "MANIFEST.in", "Makefile", "mkdocs.yml", "pyproject.toml", "setup.py"),
    }
)


def unexpected(paths: list[str]) -> list[str]:
    """The names in the root, of these paths from the root, that do not belong there."""
    return sorted({path.split("/", 1)[0] for path in paths} - ROOT_NAMES)


def main() -> int:
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    odd = unexpected(listed.rstrip("\0").split("\0"))
    if odd:
        print(f"The root holds what does not belong there: {', '.join(odd)}.")
        print(f"Remove it, or add it to ROOT_NAMES in {Path(__file__).relative_to(ROOT)}.")
    return 1 if odd else 0


if __name__ == "__main__":
    sys.exit(main())
