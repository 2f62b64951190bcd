"""The promises of README.md, cell by cell; docs/promises.md names the tests that are evidence for each."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from tests.support.harness.catalogue import ROOT, Listed, all_tests
from tests.support.harness.evidence import KINDS, Evidence

# By name, as the marker ``promise`` uses it: what is promised.
PROMISES = {
    "returns: sync": 'durability "sync": an append returns when its bytes are on disk; waiting callers share one sync',
    "returns: interval": 'durability "interval": written; synced every flush_ms or flush_messages by one lazy thread',
    "returns: os": 'durability "os": written to the page cache',
    "killed: sync": 'process killed, "sync": nothing acknowledged is lost',
    "killed: interval": 'process killed, "interval": nothing acknowledged is lost',
    "killed: os": 'process killed, "os": nothing acknowledged is lost',
    "power cut: sync": 'OS crash or power cut, "sync": nothing acknowledged is lost',
    "power cut: interval": 'OS crash or power cut, "interval": the tail since the last flush, always a suffix',
    "power cut: os": 'OS crash or power cut, "os": the tail that the OS had not written, always a suffix',
    "high watermark": "no reader sees what may still vanish",
    "torn tail": "a torn, zero or garbage tail is cut at the last whole batch and reported",
    "damage below": "a damaged batch below the recovery point, or in a sealed segment, is never served and never cut",
    "damage above": "a damaged batch above it is cut only if nothing whole follows, or after a restart without syncs",
    "set aside": "what is cut and held a whole batch is set aside and reported; without space nothing is cut",
    "rebuilt": "an index, checkpoint or snapshot that is lost or damaged is rebuilt; never a reason to delete data",
    "lost state": "kstore.state is lost: offsets that other files show are never used again, durable ones are reported",
    "disk full": "disk full, quota, file size limit: the append fails whole, the log works again when there is space",
    "sync fails": "after a failed sync the log is poisoned: reads up to the durable end, never a second sync",
    "unclean open": "an open after any unclean end syncs, drops the cache, reads again and checks every CRC",
    "one writer": "a second writer, kstore or a broker, gets LockedError at once; readers need no lock and never write",
    "fork": "a child's handles raise an error; the parent's keep working",
    "program ends": "what send accepted is delivered at the end of a program, for 10 s, or its count is logged; "
    "a fork writes it once",
    "reentrant": "a finalizer or handler inside a call of its own thread does not wait: send accepts, append raises",
    "clock": "clock jumps affect neither offsets nor reads",
    "hostile file": "a hostile segment file gives a typed error: no crash, no hang, no allocation beyond the cap",
    "whole or absent": "an append that any exception ends, KeyboardInterrupt and MemoryError too, is whole or absent",
    "bytes": "bytes in, bytes out: every record that is decoded was checked by CRC and by the order of offsets",
}

_ROW = re.compile(
    r"\| `(?P<test>[^`]+)` \| (?P<promises>[^|]+) \| (?P<said>[^|]+) \| (?P<commit>\S+) "
    r"\| (?P<verdict>holds|\*\*FAILS\*\*) \|$"
)


def marked(tests: Iterable[Listed]) -> set[tuple[str, str]]:
    """Each promise with each test that is marked with it, the long ones too."""
    return {
        (name, test.name) for test in tests if not {"interop", "spark"} & set(test.markers) for name in test.promises
    }


@dataclass(frozen=True, slots=True)
class Row:
    """The last run of a test: how much it tried, whether the promise held, and the commit."""

    counts: dict[str, int]
    holds: bool
    commit: str

    def line(self, test: str, promises: str) -> str:
        return f"| `{test}` | {promises} | {_said(self.counts)} | {self.commit} | {_verdict(self.holds)} |"


def tried_rows(evidence: Evidence, commit: str) -> dict[str, Row]:
    """A row for each test that a run has tried as evidence for a promise; the cases of a test are one row."""
    rows: dict[str, Row] = {}
    for tried in evidence.tests:
        if tried.promises:
            test = tried.test.partition("[")[0]
            before = rows.get(test, Row({}, True, commit))
            cases = {"cases": 1, **tried.counts}
            counts = {kind: before.counts.get(kind, 0) + cases.get(kind, 0) for kind in ("cases", *KINDS)}
            rows[test] = Row(counts, before.holds and tried.passed, commit)
    return rows


def rows_of(page: str) -> dict[str, Row]:
    """The rows of a page that ``page`` made, without the tests that were not run."""
    rows = {}
    for line in page.splitlines():
        if (match := _ROW.match(line)) is not None:
            numbers = re.findall(r"([\d,]+) ([a-z ]+)", match["said"])
            counts = {kind: int(number.replace(",", "")) for number, kind in numbers}
            rows[match["test"]] = Row(counts, match["verdict"] == "holds", match["commit"])
    return rows


def page(rows: dict[str, Row], marked_tests: Set[tuple[str, str]], ages: Mapping[str, int]) -> str:
    """docs/promises.md as Markdown: a table of the promises, and below it each of ``marked_tests``, which says
    *not run* if ``rows`` lacks it.

    ``ages``: the time of each commit, in seconds since 1970, as ``commit_times`` gives it; one that is not there counts
    as the oldest.

    Raises: AssertionError for a promise without a test.
    """
    by_promise = {name: sorted(test for promise, test in marked_tests if promise == name) for name in PROMISES}
    tests = sorted({test for _, test in marked_tests})
    on_page = [rows[test] for test in tests if test in rows]
    totals = _sums(on_page)
    fail = sum(not row.holds for row in on_page)
    lines = [
        "# Promises, and the tests that prove them",
        "",
        "Made by the tests: each promise of the README, how many tests prove it, how much they tried when they last",
        "ran, and the oldest commit among those that were tried. `make soak` updates the page, with its long counts.",
        "",
        f"Together they tried {_said(totals) or 'nothing'}. Of {len(tests)} tests, {len(on_page) - fail} hold, "
        f"{fail} fail, {len(tests) - len(on_page)} were not run.",
        "",
        "| promise | | tests | tried | oldest | |",
        "|---|---|---|---|---|---|",
    ]
    for name, text in PROMISES.items():
        here = [rows[test] for test in by_promise[name] if test in rows]
        assert by_promise[name], f"no test is evidence for {name!r}"
        oldest = min((row.commit for row in here), key=lambda commit: ages.get(commit.rstrip("+"), 0), default="")
        count, held = len(by_promise[name]), sum(row.holds for row in here)
        said = ", ".join(
            f"{number} {what}"
            for number, what in [(held, "hold"), (len(here) - held, "**FAIL**"), (count - len(here), "not run")]
            if number
        )
        lines.append(f"| {name} | {text} | {count} | {_said(_sums(here))} | {oldest} | {said} |")
    lines += [
        "",
        "## The tests",
        "",
        "Each test with the promises that it proves. One marked *not run* has not run since it was written.",
        "",
        "| test | promises | tried | commit | |",
        "|---|---|---|---|---|",
    ]
    for test in tests:
        promises = "; ".join(name for name in PROMISES if test in by_promise[name])
        lines.append(rows[test].line(test, promises) if test in rows else f"| `{test}` | {promises} | | | *not run* |")
    return "\n".join(lines) + "\n"


def commit_times(rows: dict[str, Row]) -> dict[str, int]:
    """When each commit of the rows was made, in seconds since 1970, as far as the checkout has it."""
    times = {}
    for commit in {row.commit.rstrip("+") for row in rows.values()}:
        words = ["git", "-C", str(ROOT), "show", "--no-patch", "--format=%ct", commit, "--"]
        if (found := subprocess.run(words, capture_output=True, text=True, check=False)).returncode == 0:
            times[commit] = int(found.stdout)
    return times


def commit() -> str:
    """The commit of the checkout, with a "+" if files differ from it."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=7", "--dirty=+", "--exclude=*"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[kind]:,} {kind}" for kind in ("cases", *KINDS) if counts.get(kind))


def _sums(rows: Iterable[Row]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in rows:
        for kind in KINDS:
            sums[kind] = sums.get(kind, 0) + row.counts.get(kind, 0)
    return sums


def _verdict(holds: bool) -> str:
    return "holds" if holds else "**FAILS**"


def main() -> None:
    file = ROOT / "docs" / "promises.md"
    rows = rows_of(file.read_text(encoding="utf-8"))
    file.write_text(page(rows, marked(all_tests()), commit_times(rows)), encoding="utf-8")


if __name__ == "__main__":
    main()
