"""Changes random statements of one module, one by one, and asks which of two sets of tests notices each more often.

usage: python -m tools.crash.random_mutants FILE COUNT SEED "TESTS..." ["OTHER TESTS..."]

A mutant of kind

    undo      leaves out a statement of an ``except`` or ``finally``
    sync      leaves out a call that syncs or flushes
    order     swaps two statements that follow each other
    lock      leaves out a ``with`` of a lock or a turn
    publish   leaves out an assignment to an attribute

Each set is pytest's arguments. Prints a line for each mutant and, at the end, how many each set has caught and the
processor time that it took. A mutant that is the same program shows as missed by both.
"""

from __future__ import annotations

import ast
import random
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tools.crash.mutants import COPIED, ROOT

KINDS = ("undo", "sync", "order", "lock", "publish")
SECONDS_MAX = 600
QUICK = "not long and not soak and not interop"
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)


class Change(NamedTuple):
    """Replaces lines ``start`` to ``stop`` (from 1, both included) by ``lines``."""

    kind: str
    start: int
    stop: int
    lines: tuple[str, ...]


def changes(source: str) -> list[Change]:
    """Every mutant of a module that these kinds allow, in the order of its lines."""
    lines = source.splitlines()
    return sorted(change for node in ast.walk(ast.parse(source)) for change in _of(node, lines))


def mutated(source: str, change: Change) -> str:
    lines = source.splitlines()
    lines[change.start - 1 : change.stop] = change.lines
    return "\n".join(lines) + "\n"


def drawn(source: str, count: int, seed: int) -> list[Change]:
    """At most ``count`` mutants, from all kinds in turn."""
    generator = random.Random(seed)
    pools = [[change for change in changes(source) if change.kind == kind] for kind in KINDS]
    for pool in pools:
        generator.shuffle(pool)
    found: list[Change] = []
    while len(found) < count and any(pools):
        found += [pool.pop() for pool in pools if pool]
    return found[:count]


def _of(node: ast.AST, lines: list[str]) -> Iterator[Change]:
    if isinstance(node, (ast.ExceptHandler, ast.Try)):
        for one in node.body if isinstance(node, ast.ExceptHandler) else node.finalbody:
            if not isinstance(one, (ast.Pass, ast.Raise)):
                yield _without("undo", one, lines)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name = ast.unparse(node.value.func)
        if "sync" in name or "flush" in name:
            yield _without("sync", node, lines)
    if isinstance(node, ast.With):
        names = " ".join(ast.unparse(item.context_expr) for item in node.items)
        if any(word in names for word in ("lock", "turn", "mutex")):
            start = lines[node.lineno - 1]
            indent = start[: len(start) - len(start.lstrip())]
            yield Change("lock", node.lineno, node.body[0].lineno - 1, (f"{indent}if True:",))
    if isinstance(node, ast.Assign) and all(isinstance(target, ast.Attribute) for target in node.targets):
        yield _without("publish", node, lines)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            for one, two in pairwise(block):
                if isinstance(one, SIMPLE) and isinstance(two, SIMPLE) and not _is_text(one):
                    swapped = lines[two.lineno - 1 : two.end_lineno] + lines[one.lineno - 1 : one.end_lineno]
                    yield Change("order", one.lineno, two.end_lineno or two.lineno, tuple(swapped))


def _without(kind: str, node: ast.stmt, lines: Sequence[str]) -> Change:
    start = lines[node.lineno - 1]
    indent = start[: len(start) - len(start.lstrip())]
    return Change(kind, node.lineno, node.end_lineno or node.lineno, (f"{indent}pass",))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def caught(tests: str, root: Path) -> tuple[bool, float]:
    """Whether the tests fail or hang, and their processor time in seconds."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", QUICK, *shlex.split(tests)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, timeout=SECONDS_MAX, check=False).returncode
    except subprocess.TimeoutExpired:
        done = 1
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done != 0, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    file, count, seed, *sets = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
    totals, seconds = [0] * len(sets), [0.0] * len(sets)
    with tempfile.TemporaryDirectory(prefix="kstore-mutants-") as directory:
        root = Path(directory)
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / name, root / name)
        for tests in sets:
            if caught(tests, root)[0]:
                print(f"these fail without a mutant: {tests}")
                return 1
        source = (root / file).read_text(encoding="utf-8")
        chosen = drawn(source, count, seed)
        for change in chosen:
            (root / file).write_text(mutated(source, change), encoding="utf-8")
            said = []
            for number, tests in enumerate(sets):
                is_caught, took = caught(tests, root)
                totals[number] += is_caught
                seconds[number] += took
                said.append("caught" if is_caught else "missed")
            print(f"{' '.join(said)}  {change.kind} {file}:{change.start} {change.lines[0].strip()}", flush=True)
        (root / file).write_text(source, encoding="utf-8")
    for tests, total, took in zip(sets, totals, seconds, strict=True):
        print(f"{total} of {len(chosen)} in {took:.0f} s of processor time: {tests}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
