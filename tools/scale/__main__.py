"""Counts what each operation costs at 1, 10 and 100 times as much of each thing, and prints a page of it.

Run as ``python -m tools.scale``; it writes to a temporary directory. ``--write docs/scale.md`` replaces the page.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.bench.machine import machine_words
from tools.scale.cost import Cost, costs_of, growth_of
from tools.scale.scenes import SCENES, Scene

INTRODUCTION = """# How cost grows

What an operation costs when there is 10 and 100 times as much of something. *Steps* are calls of functions, Python's
and compiled ones, in the calling thread; they are the same on every machine. *us* is the processor time of that thread,
where compiled code and the system show; time is noisy. *Flat* is what takes no more than 1.5 times the steps, and 3
times the time, at 100 times as much. `tests/unit/project/test_scale.py` holds the steps.

What grows looks at each of the things, or says something of each: `verify` reads everything; a store's metrics are one
set for each log; the first look at a directory lists it; `create_topic` writes the list of topics as one file. A
consumer compares one object for each of its partitions, and reads only those that have grown.

Above the last number of each heading nothing was measured here. [BENCHMARKS](../BENCHMARKS.md) has rates.
"""
NAMES_A_LINE = 3


def section_of(scene: Scene, costs: dict[str, list[Cost]]) -> str:
    """The scene as a section: a table of what grows, and what is flat in a list with the costs at the most."""
    growing = {name: each for name, each in costs.items() if growth_of(each) != "flat"}
    lines = [f"## {' / '.join(f'{count:,}' for count in scene.counts)} {scene.things}", ""]
    if growing:
        lines += ["| | growth | steps | us |", "|---|---|---|---|"]
        for name, each in growing.items():
            steps = " / ".join(f"{cost.steps:,.0f}" for cost in each)
            us = " / ".join(f"{cost.us:,.0f}" for cost in each)
            lines.append(f"| {name} | {growth_of(each)} | {steps} | {us} |")
        lines.append("")
    flat = [f"{name} ({each[-1].us:,.0f} us)" for name, each in costs.items() if name not in growing]
    parts = ["; ".join(flat[at : at + NAMES_A_LINE]) for at in range(0, len(flat), NAMES_A_LINE)]
    lines.append("Flat: " + ";\n".join(parts) + "." if flat else "Nothing is flat.")
    return "\n".join(lines) + "\n"


def measured_on() -> str:
    """The machine in a sentence."""
    words = dict(machine_words(Path(tempfile.gettempdir())))
    return "Measured on " + ", ".join(words[name] for name in ("processor", "file system", "kernel", "Python")) + ".\n"


def main() -> int:
    """Prints the page, or the sections that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.scale", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="THINGS", help="words of the scenes to try; all by default")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page to FILE too")
    args = parser.parse_args()
    page = [INTRODUCTION, measured_on()]
    with tempfile.TemporaryDirectory() as root:
        for scene in SCENES:
            if not args.scenes or any(word in scene.things for word in args.scenes):
                page.append(section_of(scene, costs_of(scene, Path(root), scene.counts)))
                print(page[-1], flush=True)
    if args.write is not None:
        args.write.write_text("\n".join(page), encoding="utf-8")
    return 0


sys.exit(main())
