"""kstore's main job on real data, from a checkout: dump, append, kill, recover, read back.

usage: python tools/demo.py [DIRECTORY]      the directory is made, and must not exist (default: .demo, removed first)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import kstore  # noqa: E402  # the checkout comes first on the path
from tests.golden_data import golden_root  # noqa: E402

BATCH_LINES = 1_000
CORPUS_BYTES_MIN = 10_000_000
BROKER_PARTITION = "rolled-0"
DUMP_LINES_SHOWN = 6


def corpus() -> list[bytes]:
    """Every line of the running standard library's own sources, in the order of the files' names."""
    library = Path(sysconfig.get_paths()["stdlib"])
    lines: list[bytes] = []
    for path in sorted(library.rglob("*.py")):
        if "site-packages" not in path.parts:
            lines.extend(path.read_bytes().splitlines())
    size = sum(map(len, lines))
    if size < CORPUS_BYTES_MIN:
        sys.exit(f"the standard library in {library} holds {size:,} bytes of sources, expected {CORPUS_BYTES_MIN:,}")
    return lines


def batches(lines: list[bytes], start: int) -> Iterator[list[bytes]]:
    for at in range(start, len(lines), BATCH_LINES):
        yield lines[at : at + BATCH_LINES]


def write_until_killed(directory: str) -> None:
    """The child: appends the corpus, and says after each append what is acknowledged."""
    log = kstore.Log(directory)
    for batch in batches(corpus(), log.end_offset):
        info = log.append_many(batch)
        print(info.last_offset + 1, flush=True)
    signal.pause()


def kill_half_way(directory: Path, count: int) -> int:
    """Runs the child until half of the corpus is acknowledged, kills it in the midst of its work; what it confirmed."""
    command = [sys.executable, __file__, "--write", str(directory)]
    acknowledged = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= count // 2:
                os.kill(writer.pid, signal.SIGKILL)
                break
        # What was printed before the kill and not read yet was acknowledged too.
        for line in writer.stdout:
            acknowledged = int(line)
    return acknowledged


def show_broker_partition() -> None:
    partition = golden_root() / "clean" / BROKER_PARTITION
    print(f"1. A partition that a Kafka broker wrote: {BROKER_PARTITION}")
    with kstore.Log(partition, read_only=True) as log:
        report = log.verify()
        counts = f"{report.records_scanned} records in {report.batches_scanned} batches"
        print(f"   verified: {counts}, damaged: {len(report.corrupt)}")
    files = ",".join(sorted(map(str, partition.glob("*.log"))))
    dump = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "dump_log.py"), "--files", files, "--print-data-log"],
        check=True,
        capture_output=True,
        text=True,
    )
    lines = dump.stdout.splitlines()
    for line in lines[:DUMP_LINES_SHOWN]:
        print("   |", line.replace(str(partition) + "/", "")[:150])
    print(f"   | ... {len(lines):,} lines in all")


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        write_until_killed(sys.argv[2])
        return
    if len(sys.argv) > 1:
        directory = Path(sys.argv[1])
    else:
        directory = ROOT / ".demo"
        shutil.rmtree(directory, ignore_errors=True)
    show_broker_partition()

    lines = corpus()
    size = sum(map(len, lines))
    print(f"2. The standard library's sources as records: {len(lines):,} lines, {size / 1e6:.1f} MB")
    path = directory / "corpus-0"
    acknowledged = kill_half_way(path, len(lines))
    print(f"3. The writer was killed (SIGKILL) after {acknowledged:,} acknowledged records")

    started = time.perf_counter()
    log = kstore.Log(path)
    seconds = time.perf_counter() - started
    report = log.recovery
    print(
        f"4. Reopened in {seconds * 1000:.1f} ms: scanned {report.records_scanned:,} records, "
        f"cut {report.bytes_cut} bytes, {len(report.corrupt)} damaged ranges; the log ends at {log.end_offset:,}"
    )
    if log.end_offset < acknowledged:
        sys.exit(f"LOST: {acknowledged - log.end_offset} acknowledged records")

    rest = log.end_offset
    started = time.perf_counter()
    for batch in batches(lines, rest):
        log.append_many(batch)
    seconds = time.perf_counter() - started
    written = sum(map(len, lines[rest:]))
    print(
        f"5. Finished, synced at each {BATCH_LINES} records: {(len(lines) - rest) / seconds / 1e6:.2f} M records/s, "
        f"{written / seconds / 1e6:.0f} MB/s"
    )
    log.close()

    with kstore.Log(path, read_only=True) as log:
        started = time.perf_counter()
        read = [record.value for record in log.read()]
        seconds = time.perf_counter() - started
        print(f"6. Read back: {len(read) / seconds / 1e6:.2f} M records/s, {size / seconds / 1e6:.0f} MB/s")
        if read != lines:
            sys.exit("WRONG: what was read is not the corpus")
    print(f"   identical to the corpus: {len(read):,} of {len(lines):,} records")


if __name__ == "__main__":
    main()
