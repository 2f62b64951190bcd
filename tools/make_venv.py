"""Makes the project's virtual environment, or says in one sentence what the machine lacks.

usage: python3 tools/make_venv.py VENV
"""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PYTHON_MIN = (3, 11)
ROOT = Path(__file__).resolve().parent.parent


def lacking() -> str | None:
    """What the machine lacks, as a sentence, or None."""
    if sys.version_info < PYTHON_MIN:
        found = ".".join(map(str, sys.version_info[:2]))
        return f"kstore needs Python 3.11 or later, and this is {found}: run make with PYTHON=python3.11 (or later)."
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return (
            f"kstore needs Python's C header, and {header} is not there: install the Python development package "
            "(Debian, Ubuntu: apt-get install python3-dev)."
        )
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not any(shutil.which(name) for name in (compiler, "cc", "gcc", "clang")):
        return (
            f"kstore needs a C compiler, and neither {compiler} nor cc is there: install one "
            "(Debian, Ubuntu: apt-get install gcc; macOS: xcode-select --install)."
        )
    try:
        import ensurepip  # noqa: F401  # Debian splits it off: without it venv makes an environment that has no pip
        import venv  # noqa: F401
    except ImportError:
        return "kstore needs Python's venv module: install it (Debian, Ubuntu: apt-get install python3-venv)."
    return None


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT)
    if done.returncode:
        sys.exit(f"kstore: {' '.join(map(str, command))} failed with status {done.returncode}; its output is above.")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problem = lacking()
    if problem:
        sys.exit(f"kstore: {problem}")
    environment = ROOT / sys.argv[1]
    python = environment / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", environment)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade", "pip", "setuptools")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--editable", ".[dev]")
    (environment / ".installed").touch()


main()
