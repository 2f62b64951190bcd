"""Several processes on one log: a follower's latency for another process's appends, and the cost of sharing."""

from __future__ import annotations

import struct
import subprocess
import sys
import time

import kstore
from tools.bench.logs import fresh, values
from tools.bench.measure import Line, Run, in_turn, percentile, seconds_of

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

APPENDER = """
import sys, time, kstore
from tools.bench.process_lines import append_rate
with kstore.Log(sys.argv[1], durability=sys.argv[2], shared=True) as log:
    print("open", flush=True)
    sys.stdin.readline()
    print(append_rate(log, int(sys.argv[3])))
"""
APPENDS = {"os": 5_000, "sync": 500}


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


def shared(run: Run) -> list[Line]:
    return [line for durability in ("os", "sync") for line in _shared(run, durability)]


def append_rate(log: kstore.Log, count: int) -> float:
    value = values(1)[0]
    return count / seconds_of(lambda: [log.append(value) for _ in range(count)])


def _shared(run: Run, durability: str) -> list[Line]:
    count = APPENDS[durability]

    def one(*, is_shared: bool) -> float:
        with (
            fresh(run.root, "shared") as path,
            kstore.Log(path, durability=durability, shared=is_shared) as log,  # type: ignore[arg-type]
        ):
            return append_rate(log, count)

    name = f'one record an append, "{durability}"'
    mine, alone = in_turn(lambda: one(is_shared=True), lambda: one(is_shared=False), rounds=run.rounds)
    both, again = in_turn(
        lambda: _two(run, durability, count), lambda: one(is_shared=False), rounds=run.rounds, warm_up=0
    )
    return [
        Line(f"{name}: a log that may be shared", f"{mine:,.0f}/s", f"one's own {alone:,.0f}/s", f"{mine / alone:.2f}",
             "", None),
        Line(f"{name}: two processes together", f"{both:,.0f}/s", f"one's own {again:,.0f}/s", f"{both / again:.2f}",
             "", None),
    ]  # fmt: skip


def _two(run: Run, durability: str, count: int) -> float:
    with fresh(run.root, "shared") as path:
        command = [sys.executable, "-c", APPENDER, str(path), durability, str(count)]
        writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"\n")
            writer.stdin.flush()
        rates = [float(writer.communicate()[0]) for writer in writers]
        with kstore.Log(path, read_only=True) as log:
            assert log.end_offset == 2 * count
    return sum(rates)
