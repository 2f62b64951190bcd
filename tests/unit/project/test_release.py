"""``make release``: what it refuses. The release itself tries what it accepts."""

from __future__ import annotations

import gzip
import io
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release import readme
from tools.release.__main__ import unready
from tools.release.archives import source_problems, wheel_problems
from tools.release.pythons import Python, one_of_each_minor
from tools.release.trial import PAGES, Trial, promised_sizes, size_problems

ROOT = Path(__file__).resolve().parents[3]
INFO = "kstore-1.2.0.dist-info"
WHEEL = {
    "kstore/": "",
    "kstore/__init__.py": "",
    "kstore/py.typed": "",
    "kstore/record/_codec.pyx": "",
    "kstore/record/_codec.pyi": "",
    "kstore/record/_codec.cpython-311-x86_64-linux-gnu.so": "",
    "pyspark_kstore/__init__.py": "",
    f"{INFO}/METADATA": "Name: kstore\n\n[a site](https://example.org), [below](#limits)",
    "kstore-1.2.0.data/data/share/man/man1/kstore-verify.1": "",
    f"{INFO}/RECORD": "",
    f"{INFO}/entry_points.txt": "",
    f"{INFO}/licenses/LICENSE": "",
}


def packed(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def test_a_wheel_with_what_it_needs_and_nothing_else_has_no_problems(tmp_path: Path) -> None:
    assert wheel_problems(packed(tmp_path / "it.whl", WHEEL), "1.2.0") == []


@pytest.mark.parametrize("missing", [name for name in WHEEL if not name.endswith(("/", "__init__.py"))])
def test_a_wheel_that_lacks_a_file_is_refused(tmp_path: Path, missing: str) -> None:
    # Without its source, that a module is compiled proves nothing.
    files = {name: text for name, text in WHEEL.items() if name != missing}
    problems = wheel_problems(packed(tmp_path / "it.whl", files), "1.2.0")
    assert bool(problems) != missing.endswith(".pyx")


@pytest.mark.parametrize("name", ["tests/test_it.py", "kstore/record/_codec.c", "setup.py", "kstore/page.html"])
def test_a_wheel_with_a_file_of_the_checkout_is_refused(tmp_path: Path, name: str) -> None:
    assert wheel_problems(packed(tmp_path / "it.whl", {**WHEEL, name: ""}), "1.2.0") == [f"it holds {name}"]


@pytest.mark.parametrize("link", ["[more](docs/log.md)", "![a picture](docs/images/speed.svg)"])
def test_a_description_that_needs_a_checkout_is_refused(tmp_path: Path, link: str) -> None:
    files = {**WHEEL, f"{INFO}/METADATA": link}
    (problem,) = wheel_problems(packed(tmp_path / "it.whl", files), "1.2.0")
    assert problem.startswith("its description links to docs/")


def test_the_description_of_the_package_is_the_readme_without_what_needs_a_checkout(tmp_path: Path) -> None:
    description = runpy.run_path(str(ROOT / "setup.py"))["description"]
    assert description("# kstore\n\n![A picture\nof it](docs/x.svg)\n\n[a](docs/a.md), [b](#b), [c](https://c)\n") == (
        "# kstore\n\na, [b](#b), [c](https://c)\n"
    )
    text = description((ROOT / "README.md").read_text(encoding="utf-8"))
    assert wheel_problems(packed(tmp_path / "it.whl", {**WHEEL, f"{INFO}/METADATA": text}), "1.2.0") == []
    assert "](#limits)" in text


def test_a_source_archive_holds_what_its_tree_holds(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "setup.py").touch()
    (tmp_path / "tree" / "README.md").touch()
    with tarfile.open(tmp_path / "it.tar.gz", "w:gz") as archive:
        for name in ("kstore-1.2.0/README.md", "kstore-1.2.0/kstore/_codec.c"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert source_problems(tmp_path / "it.tar.gz", tmp_path / "tree") == [
        "it lacks setup.py",
        "it holds kstore/_codec.c",
    ]


def test_source_archives_of_the_same_time_are_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution = pytest.importorskip("setuptools").Distribution()
    sdist = runpy.run_path(str(ROOT / "setup.py"))["Sdist"](distribution)
    made = []
    for at in range(2):
        tree = tmp_path / str(at)
        (tree / "it").mkdir(parents=True)
        (tree / "it" / "b.sh").touch(mode=0o750 if at else 0o755)
        (tree / "it" / "a.py").touch(mode=0o600 if at else 0o644)
        monkeypatch.chdir(tree)
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        path = Path(sdist.make_archive("it-1", "gztar", base_dir="it"))
        made.append(path.read_bytes())
        with tarfile.open(path) as archive:
            assert [(member.name, member.mode, member.mtime) for member in archive] == [
                ("it", 0o755, 1_700_000_000),
                ("it/a.py", 0o644, 1_700_000_000),
                ("it/b.sh", 0o755, 1_700_000_000),
            ]
    assert made[0] == made[1]
    assert len(gzip.decompress(made[0])) > 0


@pytest.mark.parametrize(
    ("changelog", "is_ready"),
    [
        ("# Changelog\n\n## 1.2.0 (2026-11-28)\n", True),
        ("# Changelog\n\n## Unreleased\n\n## 1.2.0 (2026-11-28)\n", False),
        ("# Changelog\n\n## 1.2.0\n", False),
        ("# Changelog\n\n## 1.1.0 (2026-11-28)\n", False),
        ("", False),
    ],
)
def test_a_release_is_what_the_changelog_begins_with(changelog: str, is_ready: bool) -> None:
    assert (unready(changelog, "1.2.0") is None) == is_ready


def test_sizes_far_from_those_that_the_documents_promise_are_refused() -> None:
    promised = promised_sizes((ROOT / "docs" / "choosing.md").read_text(encoding="utf-8"))
    assert size_problems(Trial(*promised, ""), promised) == []
    (problem,) = size_problems(Trial(promised[0] / 2, promised[1], ""), promised)
    assert "alone" in problem
    (problem,) = size_problems(Trial(promised[0], promised[1] * 2, ""), promised)
    assert "with its dependencies" in problem


def test_the_oldest_python_of_each_minor_version_builds_its_wheel() -> None:
    pythons = [Python(version, Path("python")) for version in ((3, 11, 2), (3, 11, 7), (3, 12, 1), (3, 13, 0))]
    assert [python.name for python in one_of_each_minor(pythons)] == ["3.11.2", "3.12.1", "3.13.0"]


# --- the README's examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("```python\nprint(1 + 1)  # 2\n```\n", 0, "README.md: 1 examples, which printed 1 lines, and 0 commands"),
        ("```python\nprint(1 + 1)  # -> 2\n```\n", 0, "1 examples, which printed 1 lines, and 0 commands"),
        ("```python\nprint(1 + 1)  # 3\n```\n", 1, "print ['2'], expected ['3']"),
        ("no example", 1, "expected []"),
        ("```python\nprint(1)  # 1\n```\n`kstore verify data`", 1, "kstore verify data ends with status"),
    ],
    ids=["true", "true-with-an-arrow", "false", "none", "a-command-that-fails"],
)
def test_the_readme_s_runner_finds_what_is_not_true(tmp_path: Path, text: str, status: int, said: str) -> None:
    (tmp_path / "README.md").write_text(text, encoding="utf-8")
    runner = Path(readme.__file__)
    done = subprocess.run([sys.executable, runner, "README.md"], cwd=tmp_path, capture_output=True, text=True)
    assert said in done.stdout, done.stderr
    assert done.returncode == status


@pytest.mark.parametrize(
    ("page", "names"),
    [("README.md", {"explain", "grep", "verify"}), ("docs/first_steps.md", {"read", "explain", "dump-log", "verify"})],
)
def test_the_first_pages_have_commands_that_look_at_their_examples_data(page: str, names: set[str]) -> None:
    assert page in PAGES
    called = readme.commands((ROOT / page).read_text(encoding="utf-8"))
    assert {words[1] for words in called} >= names
