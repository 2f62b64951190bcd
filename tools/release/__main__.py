"""Builds a release in dist/, and tries it: ``make release``.

usage: python -m tools.release [--draft]

It packs the last commit: a source archive, and a wheel for each minor version of Python of this machine that can
build kstore. It builds the source archive and the first wheel twice, and they must be the same bytes; it looks at what
the archives hold; and it installs the wheels on each Python, without a compiler, and runs README.md and
docs/first_steps.md there.
--draft does so before the version and the changelog say that this is a release.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

import kstore
from tools.release.archives import (
    ReleaseError,
    build_source,
    build_wheel,
    digest,
    export,
    run,
    source_problems,
    wheel_problems,
)
from tools.release.pythons import Python, found, one_of_each_minor
from tools.release.trial import promised_sizes, size_problems, try_wheel

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"


def unready(changelog: str, version: str) -> str | None:
    """Why the changelog does not describe this version as a release, or None."""
    heading = re.search(r"^## (.*)$", changelog, re.MULTILINE)
    name = heading[1] if heading else "nothing"
    if re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", name):
        return None
    return (
        f"CHANGELOG.md begins with {name!r}, expected '{version} (YYYY-MM-DD)': give the heading the new version and "
        "its date, set __version__ in kstore/__init__.py, and commit both; --draft tries the archives without that"
    )


def same(first: Path, second: Path) -> None:
    if digest(first) != digest(second):
        raise ReleaseError(f"two builds of {first.name} differ")


def sound(path: Path, problems: list[str]) -> None:
    if problems:
        raise ReleaseError("\n".join([f"{path.name}:", *problems]))


def source_of(work: Path) -> tuple[Path, str]:
    """The source archive, in dist/, and the time of everything in it."""
    epoch = export(ROOT, work / "tree")
    # A build writes into its tree.
    shutil.copytree(work / "tree", work / "again")
    packed = build_source(work / "tree", DIST, epoch)
    same(packed, build_source(work / "again", work, epoch))
    sound(packed, source_problems(packed, work / "again"))
    return packed, epoch


def release(pythons: list[Python]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        source, epoch = source_of(work)
        print(f"{source.name}: twice the same bytes", flush=True)
        wheels: dict[tuple[int, int], Path] = {}
        for python in one_of_each_minor(pythons):
            wheel = build_wheel(python, source, DIST, epoch)
            if not wheels:
                same(wheel, build_wheel(python, source, work, epoch))
            sound(wheel, wheel_problems(wheel, kstore.__version__))
            wheels[python.version[:2]] = wheel
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, built by Python {python.name}", flush=True)
        promised = promised_sizes((work / "tree" / "docs" / "choosing.md").read_text(encoding="utf-8"))
        for python in pythons:
            wheel = wheels[python.version[:2]]
            trial = try_wheel(python, wheel, work / "tree")
            sound(wheel, size_problems(trial, promised))
            sizes = f"{trial.own_mb:.0f} MB, {trial.all_mb:.0f} MB with its dependencies"
            print(f"Python {python.name}, without a compiler: {sizes}; {trial.said}", flush=True)
    sums = "".join(f"{digest(path)}  {path.name}\n" for path in (source, *wheels.values()))
    (DIST / "SHA256SUMS").write_text(sums, encoding="ascii")
    print(sums, end="")


def main(*options: str) -> int:
    if set(options) - {"--draft"}:
        print(__doc__)
        return 2
    problem = unready((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), kstore.__version__)
    if problem and "--draft" not in options:
        print(problem)
        return 1
    pythons = found()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)}
    absent = named - {".".join(map(str, python.version[:2])) for python in pythons}
    print(f"Pythons: {', '.join(python.name for python in pythons)}; not here: {', '.join(sorted(absent)) or 'none'}")
    changed = run("git", "status", "--porcelain", cwd=ROOT)
    if changed:
        print(f"Not in the archives, since it is not committed:\n{changed}", end="", flush=True)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        release(pythons)
    except ReleaseError as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
