"""The planted bugs that cells of the table of faults must catch, which no other test tries. See ``planted_bugs``."""

from __future__ import annotations

from tools.crash.mutant import Mutant

AT_AN_OPERATION = "tests/faults/test_faults.py::test_a_fault_at_an_operation_costs_a_life_nothing_that_returned"


def cells(*names: str) -> str:
    """The tests of these cells."""
    return " ".join(f"{AT_AN_OPERATION}[{name}]" for name in names)


APPENDS_OFFSETS = "            self._topics.log_of(owner).append_batches(build_batch(records))\n            return\n"

FAULT_BUGS = (
    Mutant(
        "segments that a killed compaction replaced stay next to the new one",
        "kstore/engine/open/swap.py",
        "complete_swap(fs, directory, base, replaced_by(context, base, bases))",
        "complete_swap(fs, directory, base, ())",
        cells("compaction-kill"),
    ),
    Mutant(
        "a split is committed before its other segments have their names",
        "kstore/engine/open/swap.py",
        "    for base_offset in reversed(bases[1:]):\n",
        "    for base_offset in bases:\n",
        cells("split-kill"),
    ),
    Mutant(
        "a split goes on after a failed sync of a new segment",
        "kstore/engine/open/split.py",
        "    tail.file.fsync()\n",
        "    with suppress(StorageError):\n        tail.file.fsync()\n",
        cells("split-failed_sync"),
    ),
    Mutant(
        "a split without room goes on with the segments that it has",
        "kstore/engine/open/split.py",
        '        refused = f"there is no room: {error}"\n',
        "        pass\n",
        cells("split-full_disk"),
    ),
    Mutant(
        "a compaction goes on after a failed sync of the new segment",
        "kstore/compaction/blocks.py",
        "        self._tail.file.fsync()\n",
        "        try:\n            self._tail.file.fsync()\n        except OSError:\n            pass\n",
        cells("compaction-failed_sync"),
    ),
    Mutant(
        "a commit of offsets that could not be written returns",
        "kstore/transactions/group_offsets.py",
        APPENDS_OFFSETS,
        "            try:\n                self._topics.log_of(owner).append_batches(build_batch(records))\n"
        "            except OSError:\n                pass\n            return\n",
        cells("group-I/O_error", "group-full_disk", "group-failed_sync"),
    ),
    Mutant(
        "the offsets of one commit are separate batches",
        "kstore/transactions/group_offsets.py",
        APPENDS_OFFSETS,
        "            for one in records:\n                self._topics.log_of(owner).append_batches(\n"
        "                    build_batch([Record(0, now_ms, key=one.key, value=one.value)])\n                )\n"
        "            return\n",
        cells("group-power_cut"),
    ),
    Mutant(
        "a backup is named though a sync of a directory failed",
        "kstore/archive/target.py",
        "                local.sync_dir((self._at / str(owner)).path)\n",
        "                try:\n                    local.sync_dir((self._at / str(owner)).path)\n"
        "                except OSError:\n                    pass\n",
        cells("backup-failed_sync", "replicate-failed_sync"),
    ),
    Mutant(
        "a batch of a stream whose interrupted commit was decided is written again",
        "kstore/spark/commit.py",
        "        is_dropped = batch_id <= committed\n",
        "        is_dropped = batch_id < committed\n",
        cells("sink-interrupt"),
    ),
    Mutant(
        "a step of a transaction is adopted before it is written",
        "kstore/transactions/coordinator.py",
        "        self._state_log.append(metadata)\n",
        "        entry.metadata = metadata\n        self._state_log.append(metadata)\n",
        cells("transaction-I/O_error", "transaction-failed_sync"),
    ),
)
