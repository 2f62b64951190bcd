"""The error of a program that finds kstore's sources without the compiled modules; and ``python -m kstore``."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def imported(tree: Path, *path: Path) -> str:
    """The last line of standard error of a program, started in ``tree``, that uses kstore."""
    command = [sys.executable, "-c", "import kstore"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree, *path)))}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose modules are not compiled."""
    source = tmp_path / "checkout"
    shutil.copytree(ROOT / "kstore", source / "kstore", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    shutil.copy(ROOT / "setup.py", source)
    return source


def test_a_checkout_that_hides_the_installed_package_says_so(tree: Path) -> None:
    line = imported(tree, ROOT)
    assert f"it hides the kstore installed in {ROOT}: start Python in another directory" in line
    assert f"pip install --editable {tree}" in line


@pytest.mark.parametrize("entry", [".", ".editable"])
def test_a_checkout_that_was_not_built_names_the_command(tree: Path, entry: str) -> None:
    """Isolated from a kstore that is installed for this Python. An editable install reaches it through a link."""
    (tree / ".editable").mkdir()
    (tree / ".editable" / "kstore").symlink_to("../kstore")
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(tree / entry)!r}); import kstore",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"to use this source tree, build it in place: pip install --editable {tree}" in done.stderr.splitlines()[-1]


def test_a_package_without_compiled_modules_names_pip(tree: Path) -> None:
    (tree / "setup.py").unlink()
    assert "install kstore with pip for this Python" in imported(tree)


def test_the_package_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "kstore", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[0]) == (0, "kstore,")
