"""Plants bugs, one by one, in a copy of the package, and runs the crash tests: they must catch each bug.

usage: python -m tools.crash.mutants [NAME-PART...]

They run first as in `make test` and, if they find nothing, with the counts of `make test-all`.

A bug that is not caught shows a hole in the tests, or a line that is not needed.
"""

from __future__ import annotations

import compileall
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.crash.mutant import Mutant
from tools.crash.planted_bugs import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("kstore", "tests", "tools", "pyproject.toml", "setup.py", "README.md", "LICENSE")
SECONDS_MAX = 1800
MISSED = "MISSED"
# What `make test` and `make test-all` leave out, and how a bug that they find is reported.
RUNS = {"caught": "not long and not soak and not interop", "caught by make test-all only": "not soak and not interop"}


def run(mutant: Mutant, root: Path) -> str:
    """Which of ``RUNS`` catches ``mutant`` in the copy at ``root``, or ``MISSED``.

    Raises: ValueError if the mutant does not fit the code.
    """
    try:
        with planted(mutant, root):
            return next(
                (found for found, markexpr in RUNS.items() if not tests_pass(mutant.tests, root, markexpr)), MISSED
            )
    except subprocess.TimeoutExpired:
        return "hangs, which is noticed"


@contextmanager
def planted(mutant: Mutant, root: Path) -> Iterator[None]:
    """Within the block the copy has the bug, compiled if it is in a compiled module."""
    path = root / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: found {source.count(mutant.old)} times in {mutant.file}, expected once")
    sound = {}
    if path.suffix != ".py":
        sound = {module: module.read_bytes() for module in (root / "kstore").rglob("*.so")}
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        if sound:
            subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=root, check=True)
        yield
    finally:
        path.write_text(source, encoding="utf-8")
        for module, code in sound.items():
            module.unlink(missing_ok=True)
            module.write_bytes(code)


def tests_pass(tests: str, root: Path, markexpr: str) -> bool:
    """Raises: ValueError if they could not be run; TimeoutExpired."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-p", "no:cacheprovider"]
    command += ["-m", markexpr, *tests.split()]
    done = subprocess.run(command, cwd=root, capture_output=True, timeout=SECONDS_MAX, check=False)
    # 1: tests failed; 5: all of them were left out; anything else but 0 is no run. (A worker that stops early says 2.)
    if done.returncode not in (0, 1, 2, 5) or b" error" in done.stdout.splitlines()[-1]:
        raise ValueError(f"pytest ended with {done.returncode}: {done.stdout.decode()[-2000:]}")
    return done.returncode in (0, 5)


def main() -> int:
    chosen = [mutant for mutant in MUTANTS if all(part in mutant.name for part in sys.argv[1:])]
    caught = 0
    print(f"{len(chosen)} planted bugs; first the tests without any", flush=True)
    with tempfile.TemporaryDirectory(prefix="kstore-mutants-") as directory:
        root = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, root / name)
        # A test's late imports must not be compiled while it measures memory.
        compileall.compile_dir(root / "kstore", quiet=1)
        if not tests_pass(
            " ".join(dict.fromkeys(" ".join(mutant.tests for mutant in chosen).split())),
            root,
            RUNS["caught by make test-all only"],
        ):
            print("they fail: the bugs cannot be tried")
            return 1
        for mutant in chosen:
            found = run(mutant, root)
            caught += found != MISSED
            print(f"{found}  {mutant.name}", flush=True)
    print(f"{caught} of {len(chosen)}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
