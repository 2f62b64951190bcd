"""Plants bugs, one by one, in a copy of the package, and says how many lives the simulation needs to find each.

usage: python -m tests.simulation.mutants [--lives 1000] [NAME-PART...]

Each bug needs two parts of the store, or two crashes: a short test with a single power cut may well miss it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("kstore", "tests", "pyproject.toml")
# How many of them must be found within 1,000 lives.
FOUND_MIN = 9


class Mutant(NamedTuple):
    """In ``file``, ``old`` becomes ``new``."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "recovery does not sync what it found: a kill, and then a power cut",
        "kstore/engine/open/recovery.py",
        '    tail.file.fsync()\n    tail.file.advise(0, 0, "dontneed")\n',
        '    tail.file.advise(0, 0, "dontneed")\n',
    ),
    Mutant(
        "what was cut comes back: a truncation or a recovery, and a power cut",
        "kstore/segments/tail.py",
        "        file.truncate(position)\n        file.fdatasync()\n        numbers.position",
        "        file.truncate(position)\n        numbers.position",
    ),
    Mutant(
        "the next process forgets which partitions a decided transaction has to be ended in",
        "kstore/transactions/coordinator.py",
        "            unmarked = set(metadata.partitions) if metadata.state.is_prepared else set()\n",
        "            unmarked: set[TopicPartition] = set()\n",
    ),
    Mutant(
        "a replaced segment goes before the swap is committed: a compaction, and a power cut",
        "kstore/engine/open/swap.py",
        "suffix + CLEANED_SUFFIX, suffix + SWAP_SUFFIX)\n    fs.sync_dir(directory)\n\n\ndef begin_swaps",
        "suffix + CLEANED_SUFFIX, suffix + SWAP_SUFFIX)\n\n\ndef begin_swaps",
    ),
    Mutant(
        "a compacted segment is not synced: a compaction, and a power cut",
        "kstore/compaction/blocks.py",
        "        self._tail.file.fsync()\n",
        "        pass\n",
    ),
    Mutant(
        "a deleted topic comes back: a deletion, and a power cut",
        "kstore/logs/directory.py",
        "            # Before the entry goes: a directory without one would be a topic again.\n"
        "            self.fs.sync_dir(self.path)\n",
        "",
    ),
    Mutant(
        "records go before the new start is stored: a deletion, and a power cut",
        "kstore/engine/change/cuts.py",
        "        files.change(\n            ends._replace(start_offset=before, recovery_point=recovery_point),\n"
        "            files.losses.within(before, ends.end_offset),\n        )\n",
        "        files.publish(ends._replace(start_offset=before, recovery_point=recovery_point))\n",
    ),
    Mutant(
        "recovery does not write the index of aborted transactions",
        "kstore/engine/open/transaction_rebuild.py",
        "        segment.files.replace_transaction_index(aborted)\n        return True",
        "        return True",
    ),
    Mutant(
        "offsets of an aborted transaction are committed",
        "kstore/transactions/group_offsets.py",
        "        if marker.type == ControlRecordType.COMMIT:",
        "        if marker is not None:",
    ),
    Mutant(
        "a queue's journal is rewritten with its snapshot: the next process does not know what is done",
        "kstore/queue/journal.py",
        "            self.log.delete_records(first_needed)",
        "            self.log.delete_records(self.log.high_watermark)",
    ),
    Mutant(
        "retention believes a clock that jumps ahead",
        "kstore/rules/retain.py",
        "            believed_ms = min(now_ms, self._now_ms + passed_ms + JUMP_MS_MAX)\n",
        "            believed_ms = now_ms\n",
    ),
    Mutant(
        "a write that failed in the middle is not cut back: a full disk, and the next append",
        "kstore/segments/tail.py",
        "            self.is_doubtful = True  # the first step: an interrupt may come before the next one\n"
        "            # An interrupt may have come after the sync: a power cut would bring back what was cut.\n"
        "            self.cut_back(sync=sync and not isinstance(error, SyncFailedError))\n",
        "",
    ),
)


def lives_needed(mutant: Mutant, root: Path, lives: int) -> int | None:
    """How many lives it takes until one fails in the copy at ``root``; None if none fails.

    Raises: ValueError if the bug does not fit the code, or the lives could not be lived.
    """
    path = root / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: found {source.count(mutant.old)} times in {mutant.file}, expected once")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    command = [sys.executable, "-m", "tests.simulation", "--first", "--no-shrink", "--lives", str(lives)]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    finally:
        path.write_text(source, encoding="utf-8")
    if done.returncode == 0:
        return None
    found = re.search(r"failed: life (\d+)", done.stdout)
    if found is None:
        raise ValueError(f"{mutant.name}: {done.stdout[-1000:]} {done.stderr[-1000:]}")
    return int(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description="Planted bugs.")
    parser.add_argument("--lives", type=int, default=1000, help="how many lives to try for each bug")
    parser.add_argument("parts", nargs="*", metavar="NAME-PART", help="only the bugs whose names contain these")
    given = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if all(part in mutant.name for part in given.parts)]
    found_count = 0
    with tempfile.TemporaryDirectory(prefix="kstore-simulated-") as directory:
        root = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, root / name)
        for mutant in chosen:
            needed = lives_needed(mutant, root, given.lives)
            found_count += needed is not None
            print(f"{'MISSED' if needed is None else f'life {needed:4}'}  {mutant.name}", flush=True)
    print(f"{found_count} of {len(chosen)} found within {given.lives} lives")
    return 0 if found_count >= min(FOUND_MIN, len(chosen)) else 1


if __name__ == "__main__":
    sys.exit(main())
