"""The planted bugs in compiled appends, group commit, producers' writes and runs of batches. See ``planted_bugs``."""

from __future__ import annotations

from tools.crash.mutant import Mutant

SINGLE = "tests/unit/engine/test_append_single.py"
SYNCED = "tests/unit/engine/test_append_synced.py tests/unit/engine/test_group_commit.py"
WRITES = "tests/unit/producer/test_sender.py tests/crash/test_memory_errors.py tests/crash/test_producer_interrupts.py"
CHECKED = "tests/unit/engine/test_log_checked.py"
RUNS_OF_BATCHES = "tests/property/test_run_properties.py tests/unit/record/test_runs.py"

COMPILED_BUGS = (
    Mutant(
        "a compiled append does not sync",
        "kstore/files/_direct.pyx",
        "return pwritev2(fd, &all, 1, position, RWF_DSYNC);",
        "return pwritev2(fd, &all, 1, position, 0);",
        "tests/crash/test_compiled_power_cuts.py",
    ),
    Mutant(
        "a member that closes a shared log leaves what it wrote to others",
        "kstore/engine/writer.py",
        "elif not files.is_sync and files.ends.recovery_point < files.ends.end_offset:",
        "elif not files.is_sync and files.tail is not None:",
        "tests/crash/test_compiled_power_cuts.py tests/unit/engine/test_log_shared.py",
    ),
    Mutant(
        "a part of a record that a full disk took is not cut off",
        "kstore/files/_direct.pyx",
        "        ftruncate(fd, position)\n    return written == size",
        "        pass\n    return written == size",
        SINGLE,
    ),
    Mutant(
        "a poisoned log takes single records",
        "kstore/engine/append/_path.pyx",
        " or files.poisoned is not None or type(before) is not Ends:",
        " or type(before) is not Ends:",
        SINGLE,
    ),
    Mutant(
        "a child of fork writes to its parent's log",
        "kstore/engine/append/_path.pyx",
        "        return self.forks == forks",
        "        return True",
        SINGLE + " tests/crash/test_forks.py",
    ),
    Mutant(
        "a single record goes into a segment whose roll was interrupted",
        "kstore/engine/append/_path.pyx",
        "            return None  # an interrupt came between a roll and its publication\n",
        "            pass\n",
        SINGLE + " tests/crash/test_interrupts.py",
    ),
    Mutant(
        "a single record is not taken back when its index entry fails",
        "kstore/engine/append/_path.pyx",
        "        self.rolls.undo(plan.before)\n        return 0",
        "        return 0",
        SINGLE + " tests/crash/test_log_faults.py tests/crash/test_interrupts.py",
    ),
    Mutant(
        "records of several threads are acknowledged though their sync failed",
        "kstore/engine/append/_path.pyx",
        "            plan.tail.cut_unsynced(failed)\n",
        "            pass\n",
        SYNCED,
    ),
    Mutant(
        "a sync that failed is repeated",
        "kstore/engine/append/_path.pyx",
        "            plan.tail.open_file._has_failed_sync = True\n",
        "",
        SYNCED,
    ),
    Mutant(
        "the group of an interrupted leader is not released",
        "kstore/engine/append/_group.pyx",
        "        for at in range(self.last_count):\n            (<Pending>PyList_GET_ITEM(group, at)).release()\n",
        "        for at in range(0):\n            (<Pending>PyList_GET_ITEM(group, at)).release()\n",
        SYNCED + " tests/crash/test_interrupted_leader.py",
    ),
    Mutant(
        "an interrupted leader keeps the lead",
        "kstore/engine/append/_group.pyx",
        "        except BaseException:\n            self.withdraw(item)\n            self.pass_on(item)\n",
        "        except BaseException:\n            self.withdraw(item)\n",
        SYNCED + " tests/crash/test_interrupted_leader.py",
    ),
    Mutant(
        "single records are never flushed as due",
        "kstore/engine/append/_path.pyx",
        "            self.durability.flush_as_due(ends)",
        "            pass",
        SINGLE,
    ),
    Mutant(
        "a write that was interrupted after it was published is repeated",
        "kstore/producer/_accumulate_write.pxi",
        "            self._restore(queue, taken, appends)\n",
        "            self._restore(queue, taken)\n",
        WRITES,
    ),
    Mutant(
        "the memory of a batch that was delivered is not returned",
        "kstore/producer/_accumulate_open.pxi",
        "            self.return_memory(batch)\n        finally:",
        "            pass\n        finally:",
        WRITES,
    ),
    Mutant(
        "a producer's batches are taken as its next ones whatever their sequence is",
        "kstore/engine/append/_path.pyx",
        "        or first_sequence != ((sequence + 1) & INT32_MAX)\n",
        "",
        "tests/unit/rules/test_sequence.py",
    ),
    Mutant(
        "a block whose body was interrupted keeps its lock",
        "kstore/files/_locks.pyx",
        "        try:\n            self.steps.throw(error)\n",
        "        try:\n            return False\n",
        "tests/unit/files/test_block.py tests/unit/files/test_lock_interrupts.py",
    ),
    Mutant(
        "the CRC of a small batch of a run is not checked",
        "kstore/record/_runs.pyx",
        "        elif unlikely(small_crc(batch + CRC_START, head.size - CRC_START) != big_endian_32(batch + 17)):",
        "        elif unlikely(False):",
        RUNS_OF_BATCHES,
    ),
    Mutant(
        "the CRC of a large batch of a run is not checked",
        "kstore/record/_runs.pyx",
        "            if <uint32_t>crc != big_endian_32(walk.data + large[number].at + 17):",
        "            if False:",
        RUNS_OF_BATCHES,
    ),
    Mutant(
        "the CRC of a large batch is not checked when one record of it is read",
        "kstore/record/_runs_lookup.pxi",
        "    if size < LARGE_SIZE or HAS_INSTRUCTION:\n        return small_crc(",
        "    if size >= LARGE_SIZE:\n        return True\n    if True:\n        return small_crc(",
        CHECKED + " " + RUNS_OF_BATCHES,
    ),
    Mutant(
        "a piece of a batch that was checked before is not checked",
        "kstore/record/_runs_checked.pxi",
        "        if small_crc(at, size, self.pieces[number - 1].crc",
        "        if False and small_crc(at, size, self.pieces[number - 1].crc",
        CHECKED,
    ),
    Mutant(
        "the header of a batch that was checked before is not compared",
        "kstore/record/_runs_checked.pxi",
        "        if memcmp(PyBytes_AS_STRING(data) + at, self.header, HEADER_SIZE) != 0:",
        "        if False:",
        CHECKED,
    ),
)
