"""Several processes on one log: how soon a follower has what another process appends, and what it costs to wait."""

from __future__ import annotations

import struct
import subprocess
import sys
import time

import kstore
from tools.bench.logs import fresh
from tools.bench.measure import Line, Run, percentile

__all__ = ["follow"]

RECORDS = 300
GAP_SECONDS = 0.01
IDLE_SECONDS = 3.0
P50_MS_MAX, P99_MS_MAX = 5.0, 50.0
IDLE_SHARE_MAX = 0.01
TIME = struct.Struct("<d")

WRITER = """
import struct, sys, time, kstore
path, durability, count, gap = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
with kstore.Log(path, durability=durability) as log:
    print("open", flush=True)
    sys.stdin.readline()
    for _ in range(count):
        time.sleep(gap)
        log.append(struct.pack("<d", time.monotonic()))
"""


def follow(run: Run) -> list[Line]:
    return [line for durability in ("os", "sync") for line in _follow(run, durability)]


def _follow(run: Run, durability: str) -> list[Line]:
    with fresh(run.root, "follow") as path:
        kstore.Log(path).close()
        command = [sys.executable, "-c", WRITER, str(path), durability, str(RECORDS), str(GAP_SECONDS)]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer,
            kstore.Log(path, read_only=True) as log,
        ):
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdout.readline()
            writer.stdin.write(b"\n")
            writer.stdin.flush()
            delays = []
            for value in log.read_values(stop=RECORDS, follow=True, timeout=30):
                delays.append((time.monotonic() - TIME.unpack(value or b"")[0]) * 1000)
            writer.wait()
            assert len(delays) == RECORDS
            used, began = time.process_time(), time.monotonic()
            assert not list(log.read(RECORDS, follow=True, timeout=IDLE_SECONDS))
            share = (time.process_time() - used) / (time.monotonic() - began)
    p50, p99 = percentile(delays, 0.5), percentile(delays, 0.99)
    name = f'a follower in another process, "{durability}"'
    return [
        Line(name, f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", "from before the append, a sync included", "-",
             f"p50 {P50_MS_MAX:.0f} ms, p99 {P99_MS_MAX:.0f} ms", p50 <= P50_MS_MAX and p99 <= P99_MS_MAX),
        Line("the same, with nothing to follow", f"{share:.2%} of a core", "-", "-", f"{IDLE_SHARE_MAX:.0%}",
             share < IDLE_SHARE_MAX),
    ]  # fmt: skip
