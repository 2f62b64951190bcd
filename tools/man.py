"""Puts the man pages of the commands as just built into a wheel (``[tool.setuptools.cmdclass]`` in pyproject.toml).

No page is kept in the sources, so none can be stale. Where the commands cannot be imported, say without click, the
wheel has no pages, and the build says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    install_data: Any = object
else:
    # setuptools has no such command of its own; importing it is what makes distutils importable.
    import setuptools  # noqa: F401  # isort: skip
    from distutils.command.install_data import install_data

MAN = "share/man/man1"


class InstallData(install_data):  # type: ignore[misc]  # distutils has no types
    """Installs the pages."""

    def run(self) -> None:
        directory = Path("build", "man").absolute()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        built = Path(self.get_finalized_command("build").build_lib).absolute()
        done = subprocess.run(
            [sys.executable, "-m", "kstore.cli.man", "."],
            cwd=directory,  # which has no other kstore
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(built), *filter(None, sys.path)])},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
            self.warn(f"there will be no man pages: {said[-1]}")
        self.data_files = [(MAN, sorted(map(str, directory.glob("*.1"))))]
        super().run()
