"""The one table of faults: which lives meet which faults, and which files made by hand try a cell too.

A cell that stays empty has a reason in place of its files. ``grid`` draws the table for ``tests/README.md``.
"""

from __future__ import annotations

from typing import NamedTuple

LIFE_NAMES = (
    "log",
    "shared",
    "store",
    "queue",
    "producer",
    "group",
    "transaction",
    "backup",
    "replicate",
    "sink",
    "compaction",
    "split",
)
FAULTS = ("power cut", "kill", "I/O error", "full disk", "interrupt", "refused allocation", "failed sync")
# Of which promise each column is evidence.
PROMISES = {
    "power cut": "power cut: sync",
    "kill": "killed: sync",
    "I/O error": "whole or absent",
    "full disk": "disk full",
    "interrupt": "whole or absent",
    "refused allocation": "whole or absent",
    "failed sync": "sync fails",
}

# By life and fault: the files of tests/ that try the cell with programs and disks of their own.
BY_HAND: dict[tuple[str, str], str] = {
    ("log", "power cut"): "crash/test_power_cut crash/test_compiled_power_cuts crash/test_faults_before_power_cuts",
    ("log", "kill"): "crash/test_kill_loop crash/test_killed_at",
    ("log", "I/O error"): "crash/test_log_faults",
    ("log", "full disk"): "crash/test_full_disk crash/test_log_faults",
    ("log", "interrupt"): "crash/test_interrupts crash/test_interrupted_leader",
    ("log", "refused allocation"): "crash/test_memory_errors",
    ("log", "failed sync"): "crash/test_failed_syncs crash/test_log_faults",
    ("shared", "power cut"): "crash/test_shared_power_cut",
    ("shared", "kill"): "crash/test_shared_kills crash/test_shared_trio",
    ("shared", "I/O error"): "crash/test_shared_faults",
    ("shared", "full disk"): "crash/test_shared_faults crash/test_limited_member",
    ("shared", "interrupt"): "crash/test_shared_faults",
    ("shared", "failed sync"): "unit/shared/test_shared_failures",
    ("store", "kill"): "crash/test_store_kills",
    ("store", "I/O error"): "crash/test_store_faults",
    ("store", "full disk"): "crash/test_store_faults",
    ("queue", "power cut"): "crash/test_queue_crashes",
    ("queue", "kill"): "crash/test_queue_kills crash/test_queue_crashes",
    ("queue", "I/O error"): "crash/test_queue_faults",
    ("queue", "full disk"): "crash/test_queue_faults",
    ("queue", "interrupt"): "unit/queue/test_queue_interrupts",
    ("queue", "refused allocation"): "crash/test_memory_errors",
    ("producer", "power cut"): "crash/test_producer_crashes",
    ("producer", "kill"): "crash/test_producer_kills",
    ("producer", "I/O error"): "crash/test_producer_faults",
    ("producer", "full disk"): "crash/test_producer_faults",
    ("producer", "interrupt"): "crash/test_producer_interrupts",
    ("producer", "refused allocation"): "crash/test_memory_errors",
    ("producer", "failed sync"): "crash/test_producer_faults",
    ("group", "kill"): "crash/test_group_kills",
    ("group", "interrupt"): "unit/consumer/test_consumer_interrupts",
    ("transaction", "power cut"): "crash/test_transaction_index_crashes",
    ("backup", "power cut"): "crash/test_backup_crashes",
    ("backup", "kill"): "crash/test_backup_crashes",
    ("backup", "I/O error"): "crash/test_backup_crashes",
    ("backup", "full disk"): "crash/test_backup_crashes",
    ("backup", "interrupt"): "crash/test_backup_crashes",
    ("replicate", "power cut"): "crash/test_replicate_crashes",
    ("replicate", "kill"): "crash/test_replicate_crashes",
    ("replicate", "I/O error"): "crash/test_replicate_crashes",
    ("replicate", "full disk"): "crash/test_replicate_crashes",
    ("replicate", "interrupt"): "crash/test_replicate_crashes unit/backup/test_replicate_interrupts",
    ("compaction", "interrupt"): "unit/engine/test_swap_interrupts",
    ("split", "power cut"): "crash/test_split_crashes",
    ("split", "I/O error"): "crash/test_split_crashes",
    ("split", "interrupt"): "crash/test_split_crashes",
}


class Counts(NamedTuple):
    """How often a cell is tried that stands in place of a file by hand, or must catch a planted bug.

    ``quick`` and ``full`` are the states, kills or faults of `make test` and `make test-all`, in each of ``variants``
    of the life. `make soak` tries all kills and faults, and 1 / ``soak`` of its states in each of four variants.
    ``also`` are promises beside the column's.
    """

    quick: int
    full: int = 60
    soak: int = 500
    variants: int = 1
    also: tuple[str, ...] = ()


COUNTS: dict[tuple[str, str], Counts] = {
    ("store", "power cut"): Counts(80, 1500, soak=200, also=("rebuilt",)),
    ("transaction", "power cut"): Counts(30, 120, soak=200),
    ("transaction", "kill"): Counts(12, 150),
    ("transaction", "I/O error"): Counts(3, 100),
    ("transaction", "full disk"): Counts(2, 60),
    ("transaction", "interrupt"): Counts(2),
    ("transaction", "failed sync"): Counts(3, 100),
    ("sink", "power cut"): Counts(6, 60, soak=200),
    ("sink", "kill"): Counts(20, 90),
    ("sink", "I/O error"): Counts(2, 60),
    ("sink", "full disk"): Counts(1, 60),
    ("sink", "interrupt"): Counts(2),
    ("sink", "failed sync"): Counts(2, 60),
    ("compaction", "power cut"): Counts(
        36, 1000, soak=66, variants=3, also=("power cut: interval", "power cut: os", "rebuilt")
    ),
    ("compaction", "kill"): Counts(6),
    ("compaction", "I/O error"): Counts(1, 90, also=("rebuilt",)),
    ("compaction", "full disk"): Counts(1, 90, also=("rebuilt",)),
    ("compaction", "failed sync"): Counts(1, 90),
    ("group", "power cut"): Counts(12),
    ("group", "I/O error"): Counts(5),
    ("group", "full disk"): Counts(5),
    ("group", "failed sync"): Counts(5),
    ("backup", "failed sync"): Counts(2),
    ("replicate", "failed sync"): Counts(2),
    ("split", "kill"): Counts(12),
    ("split", "full disk"): Counts(8),
    ("split", "failed sync"): Counts(8),
}


def grid() -> str:
    """The table as Markdown: "table" for a cell that only this one fills, "+ 2" with two files beside it."""
    lines = ["| life | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 1) + "|"]
    for life in LIFE_NAMES:
        cells = []
        for fault in FAULTS:
            count = len(BY_HAND.get((life, fault), "").split())
            cells.append(f"+ {count}" if count else "table")
        lines.append(f"| {life} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
