"""Compacts a log in its own process; prints seconds, the peak growth of its memory in bytes, and the keys.

usage: python -m tools.bench.compaction_child PATH
"""

from __future__ import annotations

import sys
import time

import kstore
from tools.bench.memory_child import greatest_bytes, reset_peak, status_bytes


def main() -> None:
    (path,) = sys.argv[1:]
    with kstore.Log(path, durability="os") as log:
        is_exact = reset_peak()
        before = status_bytes("VmRSS") if is_exact else greatest_bytes()
        started = time.perf_counter()
        report = log.compact()
        seconds = time.perf_counter() - started
        grown = (status_bytes("VmHWM") if is_exact else greatest_bytes()) - before
    assert not report.map_full and not report.corrupt and not report.stopped, report  # noqa: PT018
    print(seconds, grown, report.keys)


if __name__ == "__main__":
    main()
