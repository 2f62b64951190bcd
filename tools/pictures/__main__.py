"""Draws the pictures that the documents show: ``make pictures``. See the package for what there is."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tools.pictures import pages, reports, speed, terminal

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    page = (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as directory:
        terminal.lay_out(Path(directory))
        session = terminal.session(Path(directory))
    for name, drawn in {"speed.svg": speed.drawn(page), "terminal.svg": terminal.drawn(session)}.items():
        (IMAGES / name).write_text(drawn, encoding="utf-8")
        print(IMAGES / name)
    return reports.main(IMAGES) or pages.main(IMAGES)


if __name__ == "__main__":
    sys.exit(main())
