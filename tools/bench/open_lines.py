"""Opening: a cleanly closed log of 10,000 segments, and lookups in it; and one that needs recovery."""

from __future__ import annotations

import time

import kstore
from kstore.files.local import SYSTEM_FS
from tools.bench.logs import BATCH_COUNT, RECORDS, fill, fresh, many_segments
from tools.bench.lookup_lines import lookup_line
from tools.bench.measure import Line, Run, in_turn, seconds_of

SEGMENTS = 10_000
# A batch of ten records, a segment's whole content.
SEGMENT_BYTES = 1_141
# By the records in a batch: how many records are recovered, and the required share of the disk's rate.
RECOVERED = {1: (3 * RECORDS // 10, 0.5), 10: (RECORDS, 0.85), BATCH_COUNT: (4 * RECORDS, 0.85)}


def segments(run: Run) -> list[Line]:
    with fresh(run.root, "segments") as path:
        many_segments(path, SEGMENTS)

        def opened() -> float:
            started = time.perf_counter()
            log = kstore.Log(path)
            seconds = time.perf_counter() - started
            assert log.recovery.clean
            log.close()
            return 1 / seconds

        rate, limit = in_turn(opened, lambda: 1 / seconds_of(lambda: SYSTEM_FS.list(path)), rounds=run.rounds)
        ms, limit_ms = 1000 / rate, 1000 / limit
        name, beside = f"open, {SEGMENTS:,} segments closed cleanly", f"one directory listing {limit_ms:.1f} ms"
        return [
            Line(name, f"{ms:.0f} ms", beside, f"{ms / limit_ms:.1f}", "75 ms", ms <= 75),
            lookup_line(run, path, f"get one record, segment not open, one of {SEGMENTS:,}", 14, SEGMENT_BYTES,
                        opens=True),
        ]  # fmt: skip


def recovery(run: Run) -> list[Line]:
    return [_recovery(run, count, *RECOVERED[count]) for count in RECOVERED]


def _recovery(run: Run, count: int, records: int, asked: float) -> Line:
    with fresh(run.root, "recovery") as path:
        fill(path, records, count)
        total = sum(file.stat().st_size for file in path.glob("*.log"))

        def recovered() -> float:
            (path / "kstore.state").unlink()
            started = time.perf_counter()
            log = kstore.Log(path)
            seconds = time.perf_counter() - started
            assert log.recovery.records_scanned == records
            log.close()
            return total / seconds

        def limit() -> float:
            file = SYSTEM_FS.open(next(path.glob("*.log")))
            file.advise(0, 0, "dontneed")

            def read_all() -> None:
                at = 0
                while data := file.pread(1 << 20, at):
                    at += len(data)

            return total / seconds_of(read_all)

        rate, bound = in_turn(recovered, limit, rounds=run.rounds)
    name = f"recovery after a crash, every record checked, batches of {count:,}"
    beside = f"pread, the cache dropped {bound / 1e9:.2f} GB/s"
    ratio = rate / bound
    return Line(name, f"{rate / 1e9:.2f} GB/s", beside, f"{ratio:.2f}", f"{asked} of it", ratio >= asked)
