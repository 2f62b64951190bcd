"""What kstore does, on real data: a broker's files, a killed writer, a queue with two workers, speed.

usage: python tools/demo.py [DIRECTORY]     the directory is created, and must not exist (default: .demo, removed first)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import kstore  # noqa: E402  # the checkout comes first on the path
from tests.support.harness.golden_data import golden_root  # noqa: E402

BATCH_LINES = 1_000
LINES = 400_000
BROKER_PARTITION = "rolled-0"
DUMP_LINES_SHOWN = 5
JOB_COUNT = 40
# The length of a shown line.
WIDTH = 118


def corpus() -> list[bytes]:
    """The first lines of the running standard library's own sources, ordered by file name."""
    library = Path(sysconfig.get_paths()["stdlib"])
    lines: list[bytes] = []
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            lines.extend(path.read_bytes().splitlines())
        if len(lines) >= LINES:
            return lines[:LINES]
    sys.exit(f"the standard library in {library} has {len(lines):,} lines of sources, expected {LINES:,}")


def batches(lines: list[bytes], start: int) -> Iterator[list[bytes]]:
    for at in range(start, len(lines), BATCH_LINES):
        yield lines[at : at + BATCH_LINES]


def write_until_killed(directory: str) -> None:
    """The child: appends the corpus, and reports after each append what is acknowledged."""
    log = kstore.Log(directory)
    for batch in batches(corpus(), log.end_offset):
        info = log.append_many(batch)
        print(info.last_offset + 1, flush=True)
    signal.pause()


def kill_half_way(directory: Path, count: int) -> int:
    """Runs the child until half of the corpus is acknowledged, and kills it at work; returns its reports."""
    command = [sys.executable, __file__, "--write", str(directory)]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= count // 2:
                os.kill(writer.pid, signal.SIGKILL)
                break
        # Unread output from before the kill is acknowledged too.
        for line in writer.stdout:
            acknowledged = int(line)
    return acknowledged


def command(*arguments: str | Path) -> list[str]:
    """The lines that a kstore command prints."""
    called = [sys.executable, "-m", "kstore", *map(str, arguments)]
    return subprocess.run(called, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def show(lines: list[str], partition: Path) -> None:
    for line in lines:
        text = line.replace(f"{partition}/", "").replace(str(partition), partition.name)[:WIDTH]
        print("   |", "".join(character if character.isprintable() else "." for character in text))


def show_broker_partition() -> None:
    partition = golden_root() / "clean" / BROKER_PARTITION
    print(f"1. A partition that a Kafka broker wrote, {BROKER_PARTITION}: checked, dumped, and a lookup explained")
    with kstore.Log(partition, read_only=True) as log:
        report = log.verify()
        middle = log.end_offset // 2
    counts = f"{report.records_scanned:,} records in {report.batches_scanned:,} batches"
    print(f"   verified: {counts}, damaged: {len(report.corrupt)}")
    lines = command("dump-log", "--files", ",".join(map(str, sorted(partition.glob("*.log")))), "--print-data-log")
    print("   $ kstore dump-log --files ... --print-data-log")
    show(lines[:DUMP_LINES_SHOWN], partition)
    print(f"   | ... {len(lines):,} lines in all, the same as kafka-dump-log's")
    print(f"   $ kstore explain {BROKER_PARTITION} --offset {middle}")
    show(command("explain", partition, "--offset", str(middle)), partition)


def show_killed_writer(path: Path, lines: list[bytes]) -> None:
    print(f"2. A writer is killed: {len(lines):,} lines of Python's own sources, {BATCH_LINES:,} a batch, each on disk")
    acknowledged = kill_half_way(path, len(lines))
    print(f"   SIGKILL after {acknowledged:,} acknowledged records")
    started = time.perf_counter()
    log = kstore.Log(path)
    milliseconds = (time.perf_counter() - started) * 1000
    report = log.recovery
    print(
        f"   reopened in {milliseconds:.0f} ms: {report.records_scanned:,} records checked, {report.bytes_cut} bytes "
        f"of a torn write cut; the log ends at {log.end_offset:,}"
    )
    if log.end_offset < acknowledged:
        sys.exit(f"LOST: {acknowledged - log.end_offset} acknowledged records")
    for batch in batches(lines, log.end_offset):
        log.append_many(batch)
    log.close()
    with kstore.Log(path, read_only=True) as log:
        if list(log.read_values()) != lines:
            sys.exit("WRONG: what was read is not what was written")
    print(f"   finished and read back: {len(lines):,} of {len(lines):,} records are identical")


def work(directory: str, number: str) -> None:
    """A worker: takes items until none arrives; the first one dies while holding an item."""
    done = 0
    with kstore.open(directory, shared=True) as store:
        jobs = store.queue("jobs", lease_seconds=1)
        while True:
            try:
                with jobs.get(timeout=2):
                    if number == "1" and done == JOB_COUNT // 4:
                        print(done, flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                done += 1
            except kstore.Empty:
                print(done, flush=True)
                return


def show_queue(directory: Path) -> None:
    print(f"3. A queue of {JOB_COUNT} jobs and two worker processes, one of which is killed with a job")
    with kstore.open(directory, shared=True) as store:
        jobs = store.queue("jobs", lease_seconds=1)
        jobs.put_many([b"job %d" % number for number in range(JOB_COUNT)])
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, "--work", str(directory), number], stdout=subprocess.PIPE, text=True
            )
            for number in ("1", "2")
        ]
        counts = [int(worker.communicate()[0]) for worker in workers]
        left = jobs.qsize()
    for number, (worker, count) in enumerate(zip(workers, counts, strict=True), 1):
        end = "then was killed" if worker.returncode == -signal.SIGKILL else "then found the queue empty"
        print(f"   worker {number} finished {count} jobs, {end}")
    print(f"   left in the queue: {left}. The killed worker's job went to the other when its lease expired")
    if left or sum(counts) < JOB_COUNT:
        sys.exit(f"WRONG: {sum(counts)} of {JOB_COUNT} jobs were finished, {left} are left")


def rate(call: Callable[[], object], count: int) -> float:
    """Calls per second, the best of three."""
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - started)
    return count / best


def show_speed(directory: Path, lines: list[bytes]) -> None:
    print("4. Speed, beside this machine's own limit in the same minute")
    part = lines[:200_000]
    size = sum(map(len, part))
    paths = iter(directory / f"speed-{number}" for number in range(6))

    def append(durability: Literal["sync", "os"]) -> None:
        with kstore.Log(next(paths), durability=durability) as log:
            for batch in batches(part, 0):
                log.append_many(batch)

    def write_and_sync() -> None:
        with (directory / "plain").open("wb", buffering=0) as file:
            for batch in batches(part, 0):
                file.write(b"".join(batch))
                os.fdatasync(file.fileno()) if hasattr(os, "fdatasync") else os.fsync(file.fileno())

    def read_plain() -> None:
        with (directory / "plain").open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass

    synced, limit = rate(lambda: append("sync"), size), rate(write_and_sync, size)
    unsynced = rate(lambda: append("os"), len(part))
    with kstore.Log(directory / "speed-0", read_only=True) as log:
        read = rate(lambda: all(record for record in log.read()), len(part))
    bytes_a_record = size / len(part)
    print(f"   append, on disk at each {BATCH_LINES:,} records   {synced / 1e6:6.1f} MB/s")
    print(f"     write and fdatasync of the same bytes {limit / 1e6:6.1f} MB/s")
    print(f"   append, left to the page cache          {unsynced / 1e6:6.1f} M records/s")
    print(f"   read as objects, every CRC checked      {read / 1e6:6.1f} M records/s")
    print(
        f"     read() of the same bytes              {rate(read_plain, size) / bytes_a_record / 1e6:6.1f} M records/s"
    )


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        write_until_killed(sys.argv[2])
        return
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:])
        return
    if len(sys.argv) > 1:
        directory = Path(sys.argv[1])
    else:
        directory = ROOT / ".demo"
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    show_broker_partition()
    lines = corpus()
    show_killed_writer(directory / "corpus-0", lines)
    show_queue(directory / "queue")
    show_speed(directory, lines)
    print("Next: README.md (ten lines that run), examples/, docs/operating.md; kstore --help has the commands.")


if __name__ == "__main__":
    main()
