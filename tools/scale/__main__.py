"""Counts what each operation costs at 1, 10 and 100 times as much of each thing, and prints a page of it.

Run as ``python -m tools.scale``; it writes to a temporary directory.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tools.scale.cost import costs_of, growth_of
from tools.scale.scenes import SCENES, Scene


def rows_of(scene: Scene, root: Path) -> list[str]:
    """The scene as lines of a table."""
    rows = [
        f"| {' / '.join(f'{count:,}' for count in scene.counts)} {scene.things} | growth | steps | us |",
        "|---|---|---|---|",
    ]
    for name, costs in costs_of(scene, root, scene.counts).items():
        steps = " / ".join(f"{cost.steps:,.0f}" for cost in costs)
        us = " / ".join(f"{cost.us:,.0f}" for cost in costs)
        rows.append(f"| `{name}` | {growth_of(costs)} | {steps} | {us} |")
    return rows


def main() -> int:
    """Prints the table of each scene, or of those that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.scale", description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="THINGS", help="words of the scenes to try; all by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        for scene in SCENES:
            if not args.scenes or any(word in scene.things for word in args.scenes):
                print("\n".join(rows_of(scene, Path(root))), flush=True)
                print(flush=True)
    return 0


sys.exit(main())
