"""One target in its own process: a crash, a hang or an engine that does not return ends only that process.

usage: python -m tools.fuzz.worker ENGINE TARGET SECONDS SEED DIRECTORY

The last line of its output is JSON: [inputs, [[verdict, message, file], ...]]. The input being tried is always in
DIRECTORY/TARGET.current, for the parent after this process's end.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

# atheris must be able to instrument kstore before anything imports it.

MEMORY_MIB_MAX = 2048
SECONDS_MAX = 10
SIZE_MAX = 64 << 10


def run_seeded(name: str, seconds: float, seed: int, directory: Path) -> None:
    from tools.fuzz import seeded

    current = os.open(directory / f"{name}.current", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def note(data: bytes) -> None:
        os.ftruncate(current, len(data))
        os.pwrite(current, data, 0)

    outcome = seeded.run_seeded(name, seed=seed, seconds=seconds, note=note)
    findings = []
    for number, finding in enumerate(outcome.findings):
        file = directory / f"{name}-{seed}-{number}"
        file.write_bytes(finding.data)
        findings.append([finding.verdict, finding.message, str(file)])
    print(json.dumps([outcome.inputs, findings]))


def run_atheris(name: str, seconds: float, seed: int, directory: Path) -> None:
    """Coverage-guided. Does not return: the engine ends the process, and reports on stderr."""
    import atheris

    with atheris.instrument_imports(include=["kstore"]):
        from tools.fuzz.targets import TARGETS
    target = TARGETS[name]
    seeds = list(target.seeds())

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        # Half of the time as libFuzzer would, to use what it learned from comparisons.
        rng = random.Random(seed)
        found = target.mutate(data, rng, seeds) if rng.random() < 0.5 else atheris.Mutate(data, size_max)
        return bytes(found[:size_max])

    corpus = Path(tempfile.mkdtemp(prefix=f"{name}-corpus-", dir=directory))
    for number, data in enumerate(seeds):
        (corpus / str(number)).write_bytes(data)
    options = [
        f"-max_total_time={max(int(seconds), 1)}",
        f"-seed={seed % 2**31 or 1}",
        f"-timeout={SECONDS_MAX}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-max_len={SIZE_MAX}",
        f"-artifact_prefix={directory}/{name}-",
        "-print_final_stats=1",
        "-verbosity=0",
    ]

    def one(data: bytes) -> Any:
        target.run(data)

    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> None:
    engine, name, seconds, seed, directory = sys.argv[1:]
    run = run_atheris if engine == "atheris" else run_seeded
    run(name, float(seconds), int(seed), Path(directory))


if __name__ == "__main__":
    main()
