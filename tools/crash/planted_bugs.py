"""The bugs that ``mutants`` plants: the lines that each one changes, and the tests that must catch it.

They name code, and change with it.
"""

from __future__ import annotations

from tools.crash.compiled_bugs import COMPILED_BUGS
from tools.crash.fault_bugs import FAULT_BUGS, cells
from tools.crash.mutant import Mutant

LIVES = "tests/crash/test_power_cut.py::test_a_power_cut_loses_nothing_that_was_durable"
COMPACTION = cells("compaction-power_cut")
SWAP = "tests/unit/segments/test_segment_swap.py"
STORE = cells("store-power_cut")
SHARED_LOG = " ".join(
    f"tests/unit/{name}.py"
    for name in ("engine/test_log_shared", "shared/test_shared_announcements", "shared/test_shared_failures")
)
LOSSES = (
    "tests/unit/engine/test_log_losses.py tests/unit/engine/test_log_damaged_end.py tests/crash/test_loss_crashes.py"
)
TRANSACTION_INDEXES = "tests/unit/engine/test_log_producers.py tests/crash/test_transaction_index_crashes.py"
FLUSHES = "tests/unit/engine/test_log_flush.py"
STATE = "tests/unit/state/test_log_state.py tests/golden/test_golden_own.py"
KNOWN_NAMES = "tests/unit/engine/test_known_names.py"
QUEUE = "tests/crash/test_queue_crashes.py"
EVIDENCE = "tests/unit/engine/test_lost_evidence.py"
CUT_COPIES = "tests/crash/test_cut_copies.py"
PROGRAM_ENDS = "tests/crash/test_program_ends.py"
SHARED = "tests/crash/test_shared_power_cut.py"
DOOR_GROUP = "tests/unit/door/test_door_group.py"


def lives(*names: str) -> str:
    """The tests of these lives' power cuts."""
    return " ".join(f"{LIVES}[{name}]" for name in names)


MUTANTS = (
    # --- reads --------------------------------------------------------------------------------------------------------
    Mutant(
        "a committed read ends above the ends that it took",
        "kstore/engine/read/reads.py",
        "high_watermark=min(source.last_stable_offset(), ends.high_watermark)",
        "high_watermark=source.last_stable_offset()",
        "tests/unit/engine/test_committed_reads.py",
    ),
    Mutant(
        "a replaced segment opens the files of the one that replaces it",
        "kstore/segment.py",
        "        if self._retired:\n            raise",
        "        if False:\n            raise",
        "tests/unit/segments/test_swap_readers.py",
    ),
    Mutant(
        "a read-only log reads the file of a segment that another process has replaced",
        "kstore/segments/pin.py",
        "        if self.is_lost(fs, path):",
        "        if False:",
        "tests/unit/engine/test_reads_after_cuts.py",
    ),
    Mutant(
        "a truncation during a verification is damage",
        "kstore/engine/over/check.py",
        "            if source.truncation_count != truncation_count:",
        "            if False:",
        "tests/unit/engine/test_log_view_races.py",
    ),
    Mutant(
        "a read-only log trusts the young times of its directory",
        "kstore/engine/known_names.py",
        " and max(mtime_ns, ctime_ns) <= now_ns - SETTLED_NS",
        "",
        KNOWN_NAMES,
    ),
    Mutant(
        "a look that was interrupted counts as made",
        "kstore/engine/view.py",
        "        was_whole, self._is_whole = self._is_whole, False\n",
        "        was_whole = True\n",
        KNOWN_NAMES,
    ),
    Mutant(
        "a read-only log believes the last bytes without a look",
        "kstore/engine/view.py",
        "        return all(file.pread(size, position) == data for position, size, data in quiet.pieces)",
        "        return True",
        KNOWN_NAMES,
    ),
    Mutant(
        "a read-only log does not look at kstore.state again",
        "kstore/engine/view.py",
        "        if quiet is None or quiet.state_data != shown.data:",
        "        if quiet is None:",
        KNOWN_NAMES,
    ),
    Mutant(
        "a roll slot tells of segments across another change",
        "kstore/state/roll_slot.py",
        "or self.changes != earlier.changes or self.changes % 2:",
        "or False:",
        KNOWN_NAMES,
    ),
    Mutant(
        "a read-only log is not told of a retention",
        "kstore/engine/files.py",
        "        with self.state_file.renaming():",
        "        if True:",
        KNOWN_NAMES,
    ),
    Mutant(
        "a roll slot outlives its writer",
        "kstore/state/log_state.py",
        "            file.write_all([bytes(ROLLS_SIZE)], ROLLS_POSITION)",
        "            pass",
        KNOWN_NAMES,
    ),
    # --- groups of the door -------------------------------------------------------------------------------------------
    Mutant(
        "a rebalance forgets the syncs that wait",
        "kstore/door/group.py",
        "                answers.append(Answer(member.syncing, Synced(codes.REBALANCE_IN_PROGRESS)))\n"
        "                member.syncing = None\n        is_first",
        "                member.syncing = None\n        is_first",
        DOOR_GROUP,
    ),
    Mutant(
        "a generation keeps its number",
        "kstore/door/group.py",
        "        self.generation += 1\n",
        "        self.generation += self.generation == 0\n",
        DOOR_GROUP,
    ),
    Mutant(
        "a static member that was replaced is not fenced",
        "kstore/door/group.py",
        "                return codes.FENCED_INSTANCE_ID\n",
        "                return 0\n",
        DOOR_GROUP,
    ),
    Mutant(
        "a leader that lives may keep its group waiting forever",
        "kstore/door/group.py",
        "            late += [one for one in self.members.values() if not one.has_synced and one not in late]\n",
        "",
        DOOR_GROUP,
    ),
    # --- appends and rolls --------------------------------------------------------------------------------------------
    Mutant(
        "an append is not synced",
        "kstore/segments/tail.py",
        "            if sync:\n                file.write_and_sync(buffers",
        "            if False:\n                file.write_and_sync(buffers",
        lives("appends-sync"),
    ),
    Mutant(
        "a failed write is not cut back",
        "kstore/segments/tail.py",
        "            self.cut_back(sync=sync and not isinstance(error, SyncFailedError))\n",
        "",
        "tests/crash/test_log_faults.py",
    ),
    Mutant(
        "a write that was interrupted after its sync comes back with a power cut",
        "kstore/segments/tail.py",
        "            self.cut_back(sync=sync and not isinstance(error, SyncFailedError))\n",
        "            self.cut_back()\n",
        "tests/unit/engine/test_append_synced.py",
    ),
    Mutant(
        "a segment that a failed roll has removed comes back with a power cut",
        "kstore/engine/change/roll.py",
        "        if exists:\n            fs.sync_dir(self._files.context.directory)\n",
        "",
        "tests/crash/test_faults_before_power_cuts.py",
    ),
    Mutant(
        "the last time entry of a segment that is continued is believed",
        "kstore/segments/resume.py",
        "        if not _bears_out(file, numbers, offsets, times.last_entry):\n            return NOT_INDEXED\n",
        "",
        "tests/unit/engine/test_log_retention.py",
    ),
    Mutant(
        "a rolled segment's name is not synced",
        "kstore/engine/change/roll.py",
        "            # must not be in a segment that may be gone.\n"
        "            files.context.fs.sync_dir(files.context.directory)\n",
        "            pass\n",
        lives("appends-sync"),
    ),
    Mutant(
        "a flush does not sync",
        "kstore/engine/change/flush.py",
        "                    file.fdatasync()\n                    files.counters",
        "                    files.counters",
        lives("appends-os", "appends-interval"),
    ),
    Mutant(
        "a flush forgets sealed segments",
        "kstore/engine/change/flush.py",
        "        return [*files.unflushed, *(",
        "        return [*(",
        FLUSHES,
    ),
    Mutant(
        "a flush does not sync the names of new segments",
        "kstore/engine/change/flush.py",
        "            sync_indexes(files, indexes)\n            fs.sync_dir(files.context.directory)\n",
        "            sync_indexes(files, indexes)\n",
        lives("appends-os", "appends-interval"),
    ),
    Mutant(
        "batches that are written and not published are not cut back",
        "kstore/engine/append/appends.py",
        "        except BaseException as error:\n            path.take_back(plan, error)\n            raise\n",
        "        except BaseException as error:\n            files.note_failure(error)\n            raise\n",
        "tests/unit/engine/test_append_batches.py",
    ),
    Mutant(
        "an interrupt hides that the sync of an append has failed",
        "kstore/engine/append/appends.py",
        "            path.take_back(plan, error)\n",
        "            isinstance(error, KstoreError) and path.take_back(plan, error)\n",
        "tests/crash/test_failed_syncs.py",
    ),
    # --- the state, open and close ------------------------------------------------------------------------------------
    Mutant(
        "the state is not synced",
        "kstore/state/log_state.py",
        "        file.write_all([data], position)\n        file.fdatasync()\n",
        "        file.write_all([data], position)\n",
        lives("deletions-sync", "truncations-sync"),
    ),
    Mutant(
        "a close does not sync",
        "kstore/engine/change/flush.py",
        "            self._sync_in_turn(self._dirty_tails(), ())\n        else:",
        "            pass\n        else:",
        lives("appends-os", "appends-interval"),
    ),
    Mutant(
        "a close does not sync the names of indexes",
        "kstore/engine/change/flush.py",
        "            # The names of indexes: the next open trusts a cleanly closed log.\n"
        "            files.context.fs.sync_dir(files.context.directory)\n",
        "            pass\n",
        FLUSHES,
    ),
    Mutant(
        "what recovery sets aside has no name on disk when the cut does",
        "kstore/engine/open/recovery.py",
        "    fs.sync_dir(directory)\n    tail.truncate_to(",
        "    tail.truncate_to(",
        "tests/crash/test_cut_copies.py",
    ),
    Mutant(
        "a second cut at the same place takes the name of the first one's copy",
        "kstore/engine/open/recovery.py",
        "        position += 1\n    return directory",
        "        break\n    return directory",
        "tests/unit/engine/test_log_recovery.py",
    ),
    Mutant(
        "a process does not take in the leader epochs that another one wrote",
        "kstore/shared/catch_up.py",
        "        if seen.epoch != before.epoch:",
        "        if False:",
        "tests/unit/engine/test_log_shared.py",
    ),
    Mutant(
        "a recovery does not sync the names of indexes",
        "kstore/engine/open/recovery.py",
        "    loaded.context.fs.sync_dir(loaded.context.directory)\n    loaded.store()",
        "    loaded.store()",
        "tests/unit/engine/test_log_producers.py",
    ),
    Mutant(
        "a new log's directory is not synced",
        "kstore/engine/directory.py",
        "with all that is in it.\n        fs.sync_dir(path.parent)\n",
        "with all that is in it.\n",
        lives("appends-sync"),
    ),
    # --- deletions and truncations ------------------------------------------------------------------------------------
    Mutant(
        "the new start is not stored before records are deleted",
        "kstore/engine/change/cuts.py",
        "        files.change(\n            ends._replace(start_offset=before, recovery_point=recovery_point),\n"
        "            files.losses.within(before, ends.end_offset),\n        )\n",
        "        files.publish(ends._replace(start_offset=before, recovery_point=recovery_point))\n",
        lives("deletions-sync"),
    ),
    Mutant(
        "the names of what stays are not synced before a deletion",
        "kstore/engine/change/cuts.py",
        "a log that begins too late.\n            files.context.fs.sync_dir(files.context.directory)\n",
        "a log.\n            pass\n",
        FLUSHES,
    ),
    Mutant(
        "the known end is not lowered before a truncation",
        "kstore/engine/change/cuts.py",
        "        lowered = files.ends.cut_to(offset, end_in_file, end_with_lost, keep.base_offset, position)\n"
        "        files.store(lowered)\n",
        "        lowered = files.ends.cut_to(offset, end_in_file, end_with_lost, keep.base_offset, position)\n",
        lives("truncations-sync"),
    ),
    Mutant(
        "a truncation is not synced",
        "kstore/segments/tail.py",
        "        file.truncate(position)\n        file.fdatasync()\n        numbers.position",
        "        file.truncate(position)\n        numbers.position",
        lives("truncations-sync"),
    ),
    Mutant(
        "what a truncation leaves behind missing offsets is kept",
        "kstore/rules/recover.py",
        "doubt.suffix_only or (doubt.is_gapless and end_offset >= doubt.durable_end)",
        "doubt.suffix_only",
        lives("truncations-sync"),
    ),
    # --- recovery and checks ------------------------------------------------------------------------------------------
    Mutant(
        "a gap between segments is taken for a compaction's",
        "kstore/rules/recover.py",
        "            if is_rest and segment.base_offset > doubt.known_end:",
        "            if False:",
        lives("appends-os", "appends-interval"),
    ),
    Mutant(
        "damage is cut though a whole batch follows",
        "kstore/rules/recover.py",
        "(doubt.suffix_only or follower is None)",
        "True",
        "tests/unit/rules/test_recover.py tests/unit/engine/test_log_recovery.py",
    ),
    Mutant(
        "a batch's CRC is not checked when a log is recovered or read",
        "kstore/record/scan.py",
        "                        batch.ensure_valid()\n",
        "                        pass\n",
        lives("appends-os"),
    ),
    Mutant(
        "a batch's CRC is not checked when it is looked up",
        "kstore/engine/read/reader.py",
        "            batch.ensure_valid()\n",
        "",
        "tests/property/test_hostile_bytes.py tests/unit/engine/test_log_lookup.py tests/golden/test_golden_damage.py",
    ),
    Mutant(
        "the CRC of what is found behind damage is not checked",
        "kstore/record/scan.py",
        "            return parse_batch(self._source.pread(head.size, position)).is_valid()",
        "            return bool(parse_batch(self._source.pread(head.size, position)))",
        "tests/unit/record/test_scan.py",
    ),
    # --- lost evidence, locks and forks -------------------------------------------------------------------------------
    Mutant(
        "what other files show of lost records is not kept before the scan replaces them",
        "kstore/engine/open/recovery.py",
        "    loaded.store()\n    loaded.end_offset, loaded.recovery_point, loaded.losses = before\n",
        "    loaded.end_offset, loaded.recovery_point, loaded.losses = before\n",
        EVIDENCE,
    ),
    Mutant(
        "offsets of which only other files know are assigned again",
        "kstore/engine/open/recovery.py",
        "    decision = _with_evidence(loaded, decision, evidence, batches_end)\n",
        "",
        EVIDENCE,
    ),
    Mutant(
        "a log without a clean close is believed to end at its recovery point",
        "kstore/engine/open/recovery.py",
        "    elif marks.clean and marks.recovery_point is not None and _ends_at(loaded, marks.recovery_point):",
        "    elif marks.recovery_point is not None:",
        EVIDENCE,
    ),
    Mutant(
        "what recovery sets aside is not on disk when the cut is",
        "kstore/engine/open/recovery.py",
        "at - position)\n        target.fsync()\n",
        "at - position)\n",
        CUT_COPIES,
    ),
    Mutant(
        "without space for a copy the cut is made all the same",
        "kstore/engine/open/recovery.py",
        '        raise DiskFullError(\n            error.errno, f"no room',
        '        return path\n        raise DiskFullError(\n            error.errno, f"no room',
        CUT_COPIES,
    ),
    Mutant(
        "a second writer of this process is let in",
        "kstore/files/lock.py",
        "    if any(not (shared and held.shared) for held in _held.get(file_id, ())):",
        "    if False:",
        "tests/unit/files/test_lock.py tests/unit/engine/test_log_lock.py",
    ),
    Mutant(
        "a forked child keeps its parent's locks",
        "kstore/files/lock.py",
        "            os.close(held.fd)\n        except OSError:\n            # Other code",
        "            pass\n        except OSError:\n            # Other code",
        "tests/unit/files/test_lock.py tests/crash/test_forks.py",
    ),
    Mutant(
        "what send accepted is forgotten at the interpreter's exit",
        "kstore/producer/background.py",
        "@atexit.register\ndef _deliver_at_exit",
        "def _deliver_at_exit",
        PROGRAM_ENDS,
    ),
    Mutant(
        "what send accepted is forgotten as a child of multiprocessing ends",
        "kstore/producer/background.py",
        "    util.Finalize(None, _deliver_after_the_threads, exitpriority=0)\n",
        "",
        PROGRAM_ENDS,
    ),
    # --- compaction ---------------------------------------------------------------------------------------------------
    Mutant(
        "records beyond a full map are judged by it",
        "kstore/compaction/cleaner.py",
        "self.blocks.map_end = stop_offset - 1",
        "self.blocks.map_end = self.uncleanable - 1",
        "tests/unit/compaction/test_cleaner.py",
    ),
    Mutant(
        "a compacted segment is not synced",
        "kstore/compaction/blocks.py",
        "        self._tail.file.fsync()\n",
        "        pass\n",
        COMPACTION,
    ),
    Mutant(
        "replaced segments go before the swap is committed",
        "kstore/engine/open/swap.py",
        "suffix + CLEANED_SUFFIX, suffix + SWAP_SUFFIX)\n    fs.sync_dir(directory)\n\n",
        "suffix + CLEANED_SUFFIX, suffix + SWAP_SUFFIX)\n\n",
        COMPACTION,
    ),
    Mutant(
        "a compacted segment may stand next to what it replaces",
        "kstore/engine/open/swap.py",
        "    # or next to an index of the old one.\n    fs.sync_dir(directory)\n",
        "",
        COMPACTION,
    ),
    Mutant(
        "a compacted segment that is sound is thrown away",
        "kstore/engine/open/swap.py",
        "    if not _examine(context, base_offset)[1]:\n        return False\n",
        "    return True\n",
        SWAP,
    ),
    Mutant(
        "what a swap replaces is guessed from the new segment's offsets",
        "kstore/engine/open/swap.py",
        "    if state is not None and state.swap and state.swap[0] == base_offset:\n",
        "    if False:\n",
        SWAP,
    ),
    # --- producers and stores -----------------------------------------------------------------------------------------
    Mutant(
        "the index of aborted transactions is not synced",
        "kstore/engine/change/flush.py",
        "        index.flush()\n",
        "        pass\n",
        FLUSHES,
    ),
    Mutant(
        "a small file is not synced before it takes its name",
        "kstore/files/checkpoint.py",
        "        file.fsync()\n        file.close()\n        fs.rename(temporary, target)",
        "        file.close()\n        fs.rename(temporary, target)",
        STORE,
    ),
    Mutant(
        "a small file's new name is not synced",
        "kstore/files/checkpoint.py",
        "    fs.sync_dir(os.path.dirname(target) or os.curdir)\n",
        "",
        STORE,
    ),
    Mutant(
        "a new topic's directories are not synced",
        "kstore/logs/directory.py",
        "        self.fs.sync_dir(self.path)\n        self.store_topic(name, replace(entry, made",
        "        self.store_topic(name, replace(entry, made",
        STORE,
    ),
    Mutant(
        "a deleted topic's directories may come back",
        "kstore/logs/directory.py",
        "            # Before the entry goes: a directory without one would be a topic again.\n"
        "            self.fs.sync_dir(self.path)\n",
        "",
        "tests/unit/logs/test_store.py",
    ),
    # --- a log that is shared -----------------------------------------------------------------------------------------
    Mutant(
        "a member of a shared log keeps the sizes of transaction indexes that another one has cut",
        "kstore/shared/catch_up.py",
        "known = None if cuts else files.producers.index_sizes",
        "known = files.producers.index_sizes",
        "tests/unit/engine/test_log_shared.py",
    ),
    Mutant(
        "a member of a shared log that cannot end a change stops the others",
        "kstore/shared/telling.py",
        "        if is_alone_in(files.poisoned) and",
        "        if False and",
        "tests/crash/test_limited_member.py",
    ),
    Mutant(
        "a shared append is not synced",
        "kstore/shared/durability.py",
        "            files.syncs.alone(file.fdatasync)\n"
        "        except SyncFailedError as error:\n            with self._turn.lock:",
        "            pass\n        except SyncFailedError as error:\n            with self._turn.lock:",
        SHARED,
    ),
    Mutant(
        "a segment that is sealed by a shared roll is not synced",
        "kstore/engine/change/roll.py",
        "            files.syncs.alone(sealed.file.fdatasync)\n",
        "            pass\n",
        SHARED,
    ),
    Mutant(
        "a joiner rebuilds indexes before it has told of that",
        "kstore/engine/others.py",
        "                self.announce_change()\n                tail = active.rebuild()\n",
        "                tail = active.rebuild()\n",
        SHARED_LOG,
    ),
    Mutant(
        "a new state of a shared log is not announced",
        "kstore/engine/files.py",
        "        self.announce()\n        if not clean and",
        "        if not clean and",
        SHARED_LOG,
    ),
    Mutant(
        "the undoing of a shared append is not announced",
        "kstore/engine/change/roll.py",
        "        files.announce_change()\n        for segment in reversed(",
        "        for segment in reversed(",
        SHARED_LOG,
    ),
    Mutant(
        "a process that joins does not believe what it was told of the tail",
        "kstore/engine/others.py",
        "        is_known = seen.flags & TAIL_KNOWN and ",
        "        is_known = False and ",
        SHARED_LOG,
    ),
    Mutant(
        "the name of a directory that another process has made is not synced",
        "kstore/engine/directory.py",
        "        fs.sync_dir(path.parent)\n    except StorageError as error:",
        "        pass\n    except StorageError as error:",
        "tests/unit/engine/test_log_loader.py",
    ),
    Mutant(
        "a writer that opens the tail does not announce it to the other processes",
        "kstore/engine/others.py",
        "        elif tail is None:\n            self.announce_change()\n            tail = active.activate()",
        "        elif tail is None:\n            tail = active.activate()",
        SHARED_LOG,
    ),
    # --- what was lost ------------------------------------------------------------------------------------------------
    Mutant(
        "what was lost is not stored",
        "kstore/engine/files.py",
        "        lost=lost,\n",
        "        lost=(),\n",
        LOSSES,
    ),
    Mutant(
        "reads pass over what was lost",
        "kstore/engine/read/reader.py",
        "        for first, last in self._log.losses.missing(self._offset, stop):\n",
        "        for first, last in ():\n",
        LOSSES,
    ),
    Mutant(
        "reads go on before an accepted loss is durable",
        "kstore/engine/files.py",
        "        current = self.state_file.current\n        if current is not None and current.clean:\n"
        "            # Nothing was",
        "        self.losses = losses\n        current = self.state_file.current\n"
        "        if current is not None and current.clean:\n            # Nothing was",
        LOSSES,
    ),
    Mutant(
        "an accepted loss outlives the offsets that were cut",
        "kstore/engine/change/cuts.py",
        "        within = files.losses.within(files.ends.start_offset, stop)\n",
        "        within = files.losses\n",
        LOSSES,
    ),
    Mutant(
        "flushed damage above the recovery point is cut",
        "kstore/rules/recover.py",
        "            durable = damage.first_offset < doubt.known_end\n",
        "            durable = damage.first_offset < doubt.recovery_point\n",
        "tests/unit/rules/test_recover.py tests/unit/engine/test_log_recovery.py",
    ),
    Mutant(
        "a transaction index that recovery keeps is not synced",
        "kstore/engine/open/transaction_rebuild.py",
        "            if found:\n",
        "            if not found:\n",
        "tests/unit/engine/test_log_producers.py",
    ),
    Mutant(
        "a lost transaction index is missed after a clean close only",
        "kstore/engine/files.py",
        "        txn_bytes = self.transaction_index_bytes(ends, clean=clean)\n",
        "        txn_bytes = self.transaction_index_bytes(ends, clean=clean) if clean else -1\n",
        TRANSACTION_INDEXES,
    ),
    Mutant(
        "a tail is parked without a sync",
        "kstore/engine/files.py",
        "            if not self.is_sync:\n                tail.file.fdatasync()\n            self.producers",
        "            self.producers",
        "tests/unit/engine/test_parked_tails.py",
    ),
    Mutant(
        "a sync follows one that has failed",
        "kstore/engine/files.py",
        "            before = self._failure\n            if before is not None:\n",
        "            before = self._failure\n            if before is not None and False:\n",
        FLUSHES,
    ),
    Mutant(
        "a flush of sealed segments counts for the active one too",
        "kstore/engine/change/flush.py",
        "            target, sealed = files.segments.last.base_offset, tuple(files.unflushed)\n",
        "            target, sealed = files.ends.end_offset, tuple(files.unflushed)\n",
        FLUSHES,
    ),
    Mutant(
        "the names of a split's segments are not on disk before it is committed",
        "kstore/engine/open/swap.py",
        "    fs.sync_dir(directory)\n    begin_swap(fs, directory, bases[0])\n",
        "    begin_swap(fs, directory, bases[0])\n",
        "tests/crash/test_split_crashes.py",
    ),
    # --- own files, locks, indexes ------------------------------------------------------------------------------------
    Mutant(
        "a state of a later version is taken for damage",
        "kstore/state/log_state.py",
        "        if version > VERSION:\n            raise",
        "        if version > VERSION:\n            return None\n            raise",
        "tests/unit/state/test_log_state.py::test_a_store_opens_beside_a_log_of_a_later_version",
    ),
    Mutant(
        "the old state goes before the new one is stored",
        "kstore/state/log_state.py",
        "            self.store(self.current)\n        self._write(0, bytes(OLD_SLOTS_SIZE))\n",
        "            self._write(0, bytes(OLD_SLOTS_SIZE))\n            self.store(self.current)\n",
        STATE,
    ),
    Mutant(
        "a lone writer does not look at its store again when it has the lock",
        "kstore/files/log_lock.py",
        "    try:\n        _probe_above(directory, shared=shared)\n    except BaseException:",
        "    try:\n        pass\n    except BaseException:",
        "tests/unit/engine/test_log_lock.py",
    ),
    Mutant(
        "a rebuilt index takes the place of that of another segment",
        "kstore/engine/index_repairs.py",
        "    if segment.tail is not None or (stat.inode, stat.size) != (scanned.inode, scanned.size):\n",
        "    if segment.tail is not None:\n",
        "tests/unit/engine/test_index_repairs.py",
    ),
    # --- queues -------------------------------------------------------------------------------------------------------
    Mutant(
        "a put inside another call of its thread puts an item and says that it did not",
        "kstore/queue/core.py",
        "        self.lock.refuse_inside()  # it is needed once the item is in the log\n",
        "",
        "tests/unit/project/test_reentrant_calls.py",
    ),
    Mutant(
        "an item that another process moves may be acked",
        "kstore/queue/state.py",
        "            and (claim is None or claim.owner == lease.owner)\n",
        "",
        "tests/unit/queue/test_queue_journal.py",
    ),
    Mutant(
        "what became of items is not on disk before their segment is removed",
        "kstore/queue/space.py",
        "                core.journal.flush()\n                items.delete_records(floor)\n",
        "                items.delete_records(floor)\n",
        QUEUE,
    ),
    Mutant(
        "a journal's beginning is removed before what replaces it is on disk",
        "kstore/queue/journal.py",
        "            self.flush()\n            self.log.delete_records(first_needed)",
        "            self.log.delete_records(first_needed)",
        QUEUE,
    ),
    Mutant(
        "a dead letter is not on disk before its item is done",
        "kstore/queue/queue.py",
        "        if not core.is_sync:\n            core.items.flush()\n        with core.lock:",
        "        with core.lock:",
        QUEUE,
    ),
    Mutant(
        "a journal that is ahead of the items is not set back",
        "kstore/queue/ledger.py",
        "            self.journal.append(encode_events(END, [(end,)]))\n",
        "",
        QUEUE,
    ),
    Mutant(
        "a process applies its own events before those of others that come first",
        "kstore/queue/ledger.py",
        "if not self.state.is_shared or self._end != end - len(values):",
        "if not self.state.is_shared:",
        "tests/unit/queue/test_queue_shared.py",
    ),
    *COMPILED_BUGS,
    *FAULT_BUGS,
)
