"""Runs the benchmarks and prints one table.

usage: python -m tools.bench [NAME...]      all of them by default; the directory is TMPDIR's, on a real disk
"""

import platform
import sys
import tempfile
from pathlib import Path

from tools.bench.log_lines import BENCHES
from tools.bench.measure import table


def main() -> None:
    chosen = [bench for bench in BENCHES if not sys.argv[1:] or bench.__name__ in sys.argv[1:]]
    if not chosen:
        sys.exit(f"no such benchmark; there are {', '.join(bench.__name__ for bench in BENCHES)}")
    lines = []
    with tempfile.TemporaryDirectory(prefix="kstore-bench-", dir=".") as directory:
        for bench in chosen:
            print(f"{bench.__name__} ...", file=sys.stderr, flush=True)
            lines.append(bench(Path(directory)))
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}\n")
    print(table(lines))


main()
