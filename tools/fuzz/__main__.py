"""Fuzzes the readers of kstore with hostile bytes; exit status 1 means that something was found.

examples:
  python -m tools.fuzz --seconds 10                     every target, inputs made from a seed
  python -m tools.fuzz --engine atheris batches         coverage-guided
  python -m tools.fuzz --engine asan                    compiled modules built with sanitizers
  python -m tools.fuzz --replay build/fuzz/batches-1-0 batches
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tools.fuzz.asan import ROOT, build, environment
from tools.fuzz.outcome import Ended, read_atheris, read_seeded
from tools.fuzz.targets import TARGETS

SEED = 20260131
# Additional time: for imports, the seeds, and the last input.
SECONDS_BESIDE = 120
ENGINES = ("seeded", "atheris", "asan")


class Job(NamedTuple):
    """What all workers of a run share."""

    engine: str
    seconds: float
    seed: int
    out: Path
    asan: Path | None


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", nargs="*", help=f"all by default: {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=float, default=60, help="for each target (default: 60)")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--engine", choices=ENGINES, default="seeded")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel targets (default: processors)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "fuzz", help="the directory of the findings")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try this one input on the target")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.target if name not in TARGETS]
    if unknown:
        parser.error(f"there is no target {unknown[0]!r}: there are {', '.join(TARGETS)}")
    if chosen.replay:
        if len(chosen.target) != 1:
            parser.error("--replay needs the one target to try it on")
        TARGETS[chosen.target[0]].run(chosen.replay.read_bytes())
        return
    if chosen.engine == "atheris" and not _has_atheris():
        sys.exit("kstore: atheris is not installed (pip install atheris; Linux only): use --engine seeded.")
    chosen.out.mkdir(parents=True, exist_ok=True)
    names = chosen.target or [name for name, row in TARGETS.items() if chosen.engine != "asan" or row.compiled]
    instrumented = build(ROOT / "build" / "asan") if chosen.engine == "asan" else None
    job = Job(chosen.engine, chosen.seconds, chosen.seed, chosen.out.resolve(), instrumented)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        found = sum(pool.map(lambda name: _run(name, job), names))
    sys.exit(1 if found else 0)


def _run(name: str, job: Job) -> int:
    """Runs one target in its own process, and prints its line; returns the number of findings."""
    shared = Path("/dev/shm")
    scratch = tempfile.mkdtemp(prefix="kstore-fuzz-", dir=shared if os.access(shared, os.W_OK) else None)
    settings = {**os.environ, "KSTORE_FUZZ_SCRATCH": scratch, "PYTHONPATH": str(ROOT)}
    if job.asan is not None:
        settings |= environment(job.asan)
    engine = "atheris" if job.engine == "atheris" else "seeded"
    arguments = [engine, name, str(job.seconds), str(job.seed), str(job.out)]
    started = time.time()
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "tools.fuzz.worker", *arguments],
            env=settings,
            cwd=job.asan or ROOT,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=job.seconds + SECONDS_BESIDE,
        )
        status, out, err = ended.returncode, ended.stdout, ended.stderr
    except subprocess.TimeoutExpired:
        status, out, err = None, "", ""
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    how = Ended(name, status, out, err, job.out, started)
    inputs, findings = read_atheris(how) if engine == "atheris" else read_seeded(how)
    print(f"{job.engine:8} {name:18} {inputs:>12,} inputs  {len(findings)} findings", flush=True)
    for verdict, message, file in findings:
        print(f"    {verdict}: {message}\n        {file}", flush=True)
        print(f"        again: {re.sub('^.*/', '', sys.executable)} -m tools.fuzz --replay {file} {name}", flush=True)
    return len(findings)


def _has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
