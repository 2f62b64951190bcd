"""The promises of README.md, cell by cell; docs/promises.md names the tests that are evidence for each."""

from __future__ import annotations

from collections.abc import Iterable, Set

from tests.catalogue import ROOT, Listed, all_tests
from tests.evidence import KINDS, Evidence

__all__ = ["PROMISES", "marked", "page", "updated"]

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
    "disk full": "disk full, quota, file size limit: the append fails whole, the log works again when there is space",
    "sync fails": "after a failed sync the log is poisoned: reads up to the durable end, never a second sync",
    "unclean open": "an open after any unclean end syncs, drops the cache, reads again and checks every CRC",
    "one writer": "a second writer, kstore or a broker, gets LockedError at once; readers need no lock and never write",
    "fork": "a child's handles raise an error; the parent's keep working",
    "clock": "clock jumps affect neither offsets nor reads",
    "hostile file": "a hostile segment file gives a typed error: no crash, no hang, no allocation beyond the cap",
    "whole or absent": "an append that any exception ends, KeyboardInterrupt and MemoryError too, is whole or absent",
    "bytes": "bytes in, bytes out: every record that is decoded was checked by CRC and by the order of offsets",
}


def marked(tests: Iterable[Listed]) -> set[tuple[str, str]]:
    """Each promise with each test that is marked with it, the long ones too."""
    return {
        (name, test.name) for test in tests if not {"interop", "spark"} & set(test.markers) for name in test.promises
    }


def page(evidence: Evidence, marked_tests: Set[tuple[str, str]]) -> str:
    """docs/promises.md as Markdown: what a run tried, and which of ``marked_tests`` it did not run.

    Raises: AssertionError for a promise without a test.
    """
    lines = [
        "# Promises, and the tests that prove them",
        "",
        "Made by the tests: each promise of the README, the tests that prove it, and how much each tried in that run.",
        "`make soak` makes the page, with its long counts. A test marked *not run* was not part of that run.",
        "",
        f"Seed {evidence.seed}. "
        + ", ".join(f"{number:,} {kind}" for kind, number in _in_order(evidence.totals))
        + ". Of what must never be: "
        + evidence.lines()[1].removeprefix("found: ")
        + ".",
    ]
    for name, text in PROMISES.items():
        tests = [tried for tried in evidence.tests if name in tried.promises]
        lines += ["", f"## {name}", "", f"{text[0].upper()}{text[1:]}.", "", "| test | tried | |", "|---|---|---|"]
        merged: dict[str, tuple[dict[str, int], bool]] = {}
        for tried in tests:
            test = tried.test.partition("[")[0]
            counts, passed = merged.get(test, ({}, True))
            cases = {"cases": 1, **tried.counts}
            for kind, number in cases.items():
                counts[kind] = counts.get(kind, 0) + number
            merged[test] = counts, passed and tried.passed
        rows = {test: f"| `{test}` | | *not run* |" for promise, test in marked_tests if promise == name}
        for test, (counts, passed) in merged.items():
            said = ", ".join(f"{number:,} {kind}" for kind, number in _in_order(counts))
            rows[test] = f"| `{test}` | {said} | {'holds' if passed else '**FAILS**'} |"
        assert rows, f"no test is evidence for {name!r}"
        lines += [rows[test] for test in sorted(rows)]
    return "\n".join(lines) + "\n"


def updated(page: str, marked_tests: Set[tuple[str, str]]) -> str:
    """``page`` with a row for each marked test: a new one says *not run*, and a test that is gone loses its row."""
    sections = page.split("\n## ")
    lines = [sections[0].rstrip("\n")]
    for section in sections[1:]:
        name, *body = section.rstrip("\n").split("\n")
        rows = {line.split("`")[1]: line for line in body if line.startswith("| `")}
        tests = sorted(test for promise, test in marked_tests if promise == name)
        lines += ["", f"## {name}", *(line for line in body if not line.startswith("| `"))]
        lines += [rows.get(test, f"| `{test}` | | *not run* |") for test in tests]
    return "\n".join(lines) + "\n"


def _in_order(counts: dict[str, int]) -> list[tuple[str, int]]:
    return [(kind, counts[kind]) for kind in ("cases", *KINDS) if counts.get(kind)]


def main() -> None:
    page = ROOT / "docs" / "promises.md"
    page.write_text(updated(page.read_text(encoding="utf-8"), marked(all_tests())), encoding="utf-8")


if __name__ == "__main__":
    main()
