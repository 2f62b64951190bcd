"""Creates the project's virtual environment, or adds what a command needs. Says in one sentence what is missing.

usage: python3 tools/make_venv.py VENV [GROUP...]

It compiles kstore and installs it from the checkout, and installs the groups of pyproject.toml ("dependency-groups").
VENV/.with-GROUP marks an installed group, and VENV/.with-kstore kstore itself; make requires these files. Two commands
that run at the same time install one after another.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PYTHON_MIN = (3, 11)
ROOT = Path(__file__).resolve().parent.parent
# Compiling a large package to byte code takes longer than unpacking it: Python compiles what it imports.
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--progress-bar", "off")
SHOWN = re.compile(r"Downloading |Building wheel|Installing collected packages|\[ *\d+/\d+\] Cythonizing|building '")
WIDTH = 110


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


def requirements(project: dict[str, Any], wanted: list[Any]) -> Iterator[str]:
    """What pip installs for ``wanted``. An extra of kstore stands for its packages: pip does not look for kstore."""
    for entry in wanted:
        if isinstance(entry, dict):
            yield from requirements(project, project["dependency-groups"][entry["include-group"]])
        elif own := re.fullmatch(r"kstore\[([\w,-]+)\]", entry):
            for extra in own[1].split(","):
                yield from requirements(project, project["project"]["optional-dependencies"][extra])
        else:
            yield entry


def say(text: str) -> None:
    print(f"kstore: {text}", flush=True)


class Step:
    """A running command. It shows the progress of pip or a build, and all of its output if it fails."""

    def __init__(self, *command: str | Path) -> None:
        self._command = [str(part) for part in command]
        self._output: list[str] = []
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._output.append(line)
                # Cython's processes may write two lines as one.
                for text in re.split(r"(?<=\.pyx)(?=\[)", line.strip()):
                    if SHOWN.match(text):
                        print(f"    {text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'}", flush=True)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, *_: object) -> None:
        """A block that fails stops the command."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._reader.join()

    def wait(self) -> None:
        self._reader.join()
        if self._process.wait():
            sys.stdout.writelines(self._output)
            words = " ".join(self._command)
            sys.exit(f"kstore: {words} failed with status {self._process.returncode}; its output is above.")


def run(*command: str | Path) -> None:
    with Step(*command) as step:
        step.wait()


def bundled_pip() -> Path | None:
    """The wheel of pip that came with this Python."""
    import ensurepip

    directories = [Path(ensurepip.__file__).parent / "_bundled"]
    if shared := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        directories.insert(0, Path(shared))
    return next((wheel for each in directories for wheel in sorted(each.glob("pip-*-none-any.whl"))), None)


def make_environment(environment: Path) -> None:
    """Makes an environment with pip, unpacked: this takes a tenth of ensurepip's time."""
    say(f"makes the virtual environment {environment.name}")
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    wheel = bundled_pip()
    if wheel is None:
        run(python, "-m", "ensurepip")
        return
    bases = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", bases))
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory(dir=environment) as unpacked:
        archive.extractall(unpacked)
        # pip itself comes last, so if it exists the rest is complete.
        for part in sorted(Path(unpacked).iterdir(), key=lambda each: each.name == "pip"):
            shutil.rmtree(packages / part.name, ignore_errors=True)
            part.rename(packages / part.name)
    script = python.with_name("pip")
    script.write_text('#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n')
    script.chmod(0o755)


def has_java(python: Path) -> bool:
    """Whether Spark finds a Java here, by the rule that starts it."""
    command = "from kstore.spark.java import java_home; java_home()"
    return not subprocess.run([str(python), "-c", command], cwd=ROOT, capture_output=True).returncode


def install(environment: Path, groups: list[str], project: dict[str, Any]) -> None:
    python = environment / "bin" / "python"
    if not python.exists() or subprocess.run([str(python), "-c", "import pip"], capture_output=True).returncode:
        make_environment(environment)
    tools = project["build-system"]["requires"]
    run(python, *PIP, *tools)
    wanted = [*project["project"]["dependencies"]]
    for group in groups:
        wanted += requirements(project, project["dependency-groups"][group])
    wanted = sorted(set(wanted))
    say(f"compiles its modules, and installs {', '.join(re.split('[ <>=!~;]', each)[0] for each in wanted)}")
    # Unbuffered: its progress is shown at once.
    with Step(python, "-u", "setup.py", "build_ext", "--inplace") as compilation:
        run(python, *PIP, *wanted)
        compilation.wait()
    run(python, *PIP, "--no-deps", "--no-build-isolation", "--editable", ".")
    if any(each.startswith("pyspark") for each in wanted) and not has_java(python):
        say("finds no Java 17 or later: installs one for Spark")
        run(python, *PIP, *requirements(project, ["kstore[jre]"]))


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    problem = lacking()
    if problem:
        sys.exit(f"kstore: {problem}")
    import tomllib  # Python 3.11 has it; an older one gets the sentence above

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = sys.argv[2:]
    unknown = set(groups) - project["dependency-groups"].keys()
    if unknown:
        known = ", ".join(project["dependency-groups"])
        sys.exit(f"kstore: no group {', '.join(sorted(unknown))} in pyproject.toml, expected some of {known}")
    environment = ROOT / sys.argv[1]
    began = time.monotonic()
    environment.mkdir(parents=True, exist_ok=True)
    # Never closed: the lock ends with the process.
    lock = os.open(environment, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another command is installing; waits for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    install(environment, groups, project)
    for name in ("kstore", *groups):
        (environment / f".with-{name}").touch()
    say(f"installed {', '.join(groups) or 'kstore'} in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
