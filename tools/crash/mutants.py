"""Plants one bug after the other in a copy of the package, and runs the crash tests: each must be caught.

usage: python -m tools.crash.mutants [NAME-PART...]

A bug that is not caught is a hole in the tests, or a line that nobody needs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("kstore", "tests", "tools", "pyproject.toml")
POWER_CUT = "tests/crash/test_power_cut.py"
SECONDS_MAX = 600


class Mutant(NamedTuple):
    """In ``file``, ``old`` becomes ``new``; ``tests`` must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: str = POWER_CUT


MUTANTS = (
    Mutant(
        "a rolled segment's name is not synced",
        "kstore/log_files.py",
        "            # Until then a crash may lose the new file's name, with what was acknowledged in it.\n"
        "            self.context.fs.sync_dir(self.context.directory)\n",
        "            pass\n",
    ),
    Mutant(
        "an append is not synced",
        "kstore/segment_tail.py",
        "            if sync:\n                self.file.write_and_sync",
        "            if False:\n                self.file.write_and_sync",
    ),
    Mutant(
        "the known end is not lowered before a truncation",
        "kstore/log_files.py",
        "        self._store_state_or(known, durable_end=end_in_file)\n",
        "",
    ),
    Mutant(
        "a truncation is not synced",
        "kstore/segment_tail.py",
        "        self.file.truncate(position)\n        self.file.fdatasync()\n        self.position = self._allocated",
        "        self.file.truncate(position)\n        self.position = self._allocated",
    ),
    Mutant(
        "the state is not synced",
        "kstore/state/log_state.py",
        "        self._file.fdatasync()\n        self.current = state",
        "        self.current = state",
    ),
    Mutant(
        "the new start is not stored before records are deleted",
        "kstore/log_files.py",
        "        self._recovery_point = max(self._recovery_point, min(before, self._durable_end))\n"
        "        self._store_state_or(known)\n",
        "        self._recovery_point = max(self._recovery_point, min(before, self._durable_end))\n",
    ),
    Mutant(
        "a close does not sync",
        "kstore/log_files.py",
        "            self._sync_tails(self._dirty_tails(), ())\n",
        "            pass\n",
    ),
    Mutant(
        "a flush forgets sealed segments",
        "kstore/log_files.py",
        "        return [*self._unflushed, *(",
        "        return [*(",
    ),
    Mutant(
        "a flush does not sync",
        "kstore/log_files.py",
        "                tail.file.fdatasync()\n",
        "                pass\n",
    ),
    Mutant(
        "the first segment's name is not synced",
        "kstore/log_loader.py",
        "        segment.create()\n        fs.sync_dir(directory)\n",
        "        segment.create()\n",
    ),
    Mutant(
        "a new log's directory is not synced",
        "kstore/log_loader.py",
        "        fs.sync_dir(path.parent)\n",
        "        pass\n",
    ),
    Mutant(
        "a gap between segments is taken for a compaction's",
        "kstore/rules/recover.py",
        "            if doubt.suffix_only and segment.base_offset > doubt.recovery_point:",
        "            if False:",
    ),
    Mutant(
        "damage is cut though a whole batch follows",
        "kstore/rules/recover.py",
        "(doubt.suffix_only or (follower is None and not acknowledged))",
        "True",
        "tests/unit/test_recover.py tests/unit/test_log_recovery.py",
    ),
    Mutant(
        "a batch's CRC is not checked when it is read",
        "kstore/record/scan.py",
        "                        batch.ensure_valid()\n",
        "                        pass\n",
        "tests/property/test_hostile_bytes.py",
    ),
    Mutant(
        "a batch's CRC is not checked when it is looked up",
        "kstore/log_reader.py",
        "            batch.ensure_valid()\n",
        "",
        "tests/property/test_hostile_bytes.py tests/unit/test_log_lookup.py tests/golden/test_golden_damage.py",
    ),
    Mutant(
        "the CRC of what is found behind damage is not checked",
        "kstore/record/scan.py",
        "        return batch if batch.is_valid() else None",
        "        return batch",
        "tests/unit/test_scan.py",
    ),
    Mutant(
        "a failed write is not cut back",
        "kstore/segment_tail.py",
        "        except BaseException:\n            self.cut_back()\n            raise",
        "        except BaseException:\n            raise",
        "tests/crash/test_log_faults.py",
    ),
)


def run(mutant: Mutant, root: Path) -> bool:
    """Whether the tests catch ``mutant`` in the copy at ``root``. Raises: ValueError where it does not fit the code."""
    path = root / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: found {source.count(mutant.old)} times in {mutant.file}, expected once")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-m",
            "not soak and not interop",
        ]
        done = subprocess.run(
            [*command, *mutant.tests.split()], cwd=root, capture_output=True, timeout=SECONDS_MAX, check=False
        )
        # 1: tests failed; anything else but 0 is a run that did not come about.
        if done.returncode not in (0, 1):
            raise ValueError(f"{mutant.name}: pytest ended with {done.returncode}: {done.stdout.decode()[-500:]}")
        return done.returncode == 1
    except subprocess.TimeoutExpired:
        return True  # it hangs, which nobody overlooks
    finally:
        path.write_text(source, encoding="utf-8")


def main() -> int:
    chosen = [mutant for mutant in MUTANTS if all(part in mutant.name for part in sys.argv[1:])]
    caught = 0
    with tempfile.TemporaryDirectory(prefix="kstore-mutants-") as directory:
        root = Path(directory)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, root / name)
        for mutant in chosen:
            is_caught = run(mutant, root)
            caught += is_caught
            print(f"{'caught' if is_caught else 'MISSED'}  {mutant.name}", flush=True)
    print(f"{caught} of {len(chosen)}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
