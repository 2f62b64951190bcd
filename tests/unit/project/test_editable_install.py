"""What ``pip install -e .`` gives a user: the packages alone, with their types, from the sources as they are now."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("kstore", "pyspark_kstore")

# Each line with a comment has one mistake; every other one is right.
PROGRAM = """\
import kstore

with kstore.Log("events-0") as log:
    offset: int = log.append(b"x")
    log.append("text")  # str for bytes
    record = log.get(offset)
    record.value  # may be None
    kstore.Log("events-0", segment_byts=1)  # a misspelt setting
    kstore.Log("events-0", compression_type="zip")  # no such codec
with kstore.open("data", retention_ms="7d") as store:
    store.topic("bills", partitions="2")  # str for int
    for message in store.consumer("bills"):
        print(message.topics)  # a misspelt attribute
"""
MISTAKES = {number for number, line in enumerate(PROGRAM.splitlines(), 1) if "  # " in line}

# What a program of the user's finds; run where no checkout is.
FOUND = """
import os, pkgutil
from importlib.util import find_spec
import kstore.record._codec as codec
print([name for name in ("tests", "tools", "examples", "docs", "setup") if find_spec(name)])
print(sorted(found.name for found in pkgutil.iter_modules() if found.name.endswith("kstore")))
print(os.path.realpath(codec.__file__))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout whose compiled modules are the newest, so that the build compiles nothing."""
    pytest.importorskip("setuptools")
    copy = tmp_path_factory.mktemp("user") / "checkout"
    for name in PACKAGES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tests", "tools", "examples"):
        (copy / name).mkdir()
        (copy / name / "__init__.py").touch()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "tools/man.py"):
        shutil.copy(ROOT / name, copy / name)
    for pattern in ("*.c", "*.so"):
        for path in sorted((copy / "kstore").rglob(pattern)):
            path.touch()
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """What pip asks the build for."""
    command = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_editable('.')"]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = checkout.glob("*.whl")
    return found


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=500)
    return done.stdout + done.stderr


def test_an_editable_install_adds_one_directory_that_holds_the_packages_alone(wheel: Path, checkout: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        added = [name for name in archive.namelist() if ".dist-info/" not in name]
        (path,) = added
        (entry,) = archive.read(path).decode().split()
    assert path.endswith(".pth")
    assert Path(entry).is_relative_to(checkout)
    assert {(found.name, found.resolve()) for found in Path(entry).iterdir()} == {
        (name, checkout / name) for name in PACKAGES
    }


def test_a_program_finds_the_packages_as_they_are_in_the_checkout_and_nothing_else(
    wheel: Path, checkout: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    installed = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    # Without the tests' own kstore, but with what it requires: as a plain directory, whose .pth files Python ignores.
    begin = f"import site, sys; site.addsitedir({str(tmp_path / 'site')!r}); sys.path += {installed!r}"
    said = run(sys.executable, "-S", "-c", f"{begin}\n{FOUND}", cwd=tmp_path).splitlines()
    compiled = [str(path) for path in (checkout / "kstore" / "record").glob("_codec*.so")]
    assert said[:2] == ["[]", str(sorted(PACKAGES))]
    assert said[2] in compiled


def test_links_that_another_build_left_are_put_right(wheel: Path, checkout: Path) -> None:
    link = checkout / ".editable" / "kstore"
    link.unlink()
    link.symlink_to("/nowhere")
    command = "import setup; setup.make_links()"
    assert run(sys.executable, "-c", command, cwd=checkout) == ""
    assert link.resolve() == checkout / "kstore"


# A new Cython, as pip unpacks it for each build: its own declarations are newer than every C file.
CYTHON = {
    "__init__.py": "__version__ = {version!r}",
    "Build.py": "def cythonize(modules, **_): raise SystemExit(f'asked for {{sorted(each.name for each in modules)}}')",
}


@pytest.mark.parametrize(
    ("version", "edited", "said"),
    [
        ("", "", ""),
        ("", "kstore/record/_codec_varint.pxi", "asked for ['kstore.aio._line', "),
        ("0.1", "", "asked for ['kstore.aio._line', "),
    ],
    ids=["nothing-new", "an-edited-source", "another-cython"],
)
def test_another_build_translates_only_what_is_new(
    checkout: Path, tmp_path: Path, version: str, edited: str, said: str
) -> None:
    Cython = pytest.importorskip("Cython")
    for name, text in CYTHON.items():
        path = tmp_path / "new" / "Cython" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(version=version or Cython.__version__), encoding="utf-8")
    copy = tmp_path / "checkout"
    shutil.copytree(checkout, copy, symlinks=True)
    if edited:
        (copy / edited).touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'new')!r}); from setuptools import build_meta; "
    program += "build_meta.build_editable('.')"
    done = run(sys.executable, "-c", program, cwd=copy)
    assert ("asked for" in done) == bool(said), done
    assert said in done
    assert "building 'kstore" not in done


# --- in an environment of its own -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment's Python, in which pip has installed the checkout."""
    environment = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    interpreter = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", interpreter)
    said = run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=environment)
    assert "Successfully installed kstore" in said, said
    return interpreter


def lines_with_errors(output: str) -> set[int]:
    return {int(number) for number in re.findall(r"program\.py:(\d+):.*\berror\b", output)}


@pytest.mark.long
def test_mypy_finds_every_mistake(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    said = run(*(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "program.py"), cwd=tmp_path)
    assert lines_with_errors(said) == MISTAKES, said


@pytest.mark.long
def test_pyright_finds_every_mistake(python: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    if shutil.which("node") is None:
        pytest.skip("pyright needs Node.js")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    said = run(sys.executable, "-m", "pyright", "--pythonpath", python, "program.py", cwd=tmp_path)
    assert lines_with_errors(said) == MISTAKES, said


@pytest.mark.long
def test_it_uninstalls_without_a_trace(wheel: Path, tmp_path: Path) -> None:
    def files() -> set[Path]:
        return {path for path in (tmp_path / "environment").rglob("*") if not path.is_dir()}

    run(sys.executable, "-m", "venv", "--without-pip", "environment", cwd=tmp_path)
    pip = (sys.executable, "-m", "pip", "--python", tmp_path / "environment" / "bin" / "python")
    before = files()
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    assert files() > before
    run(*pip, "uninstall", "--yes", "kstore", cwd=tmp_path)
    assert files() == before
