"""Logs and stores from kstore with version 1 of its files: nothing is lost, and no more is scanned than before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

import kstore
from kstore.files.local import SYSTEM_FS
from kstore.state.compaction_state import read_compaction_state
from kstore.state.log_state import OLD_SLOTS_SIZE, LogState, StateFile, read_state
from tests.support.fakes.fake_fs import SYNCS, WRITES, Operation, WatchedFs
from tests.support.fakes.version_one import encode_version_one, restamp, version_one_file
from tests.support.harness.golden_data import golden_root

Result = TypeVar("Result")
LOGS = [f"{tree}/{name}" for tree in ("closed", "killed") for name in ("sync", "interval", "os")]
ALL_LOGS = [*LOGS, "shared/log"]


@cache
def expected() -> dict[str, Any]:
    rows: dict[str, Any] = json.loads((golden_root() / "own1" / "expected.json").read_text())
    return rows


def copied(name: str, target: Path) -> Path:
    """A private, writable copy of a log or a store, cleanly closed if the original was."""
    copy = target / "copy"
    shutil.copytree(golden_root() / "own1" / name, copy, copy_function=shutil.copyfile)
    for state in copy.rglob("kstore.state"):
        restamp(state.parent)
    return copy


def contents(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def held(log: kstore.Log) -> dict[str, Any]:
    records = [[record.offset, (record.value or b"").decode()] for record in log.read()]
    return {"start": log.start_offset, "end": log.end_offset, "records": records}


def of_log(name: str) -> dict[str, Any]:
    tree, _, log = name.partition("/")
    found: dict[str, Any] = expected()[tree][log]
    return found


@pytest.mark.parametrize("name", ALL_LOGS)
def test_a_read_only_open_reads_version_one_and_writes_nothing(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path)
    before = contents(path)
    with kstore.Log(path, read_only=True) as log:
        assert held(log) == of_log(name)
    assert contents(path) == before


@pytest.mark.parametrize("name", LOGS)
def test_a_log_opens_as_it_did_and_is_version_two_from_then_on(name: str, tmp_path: Path) -> None:
    path = copied(name, tmp_path)
    with kstore.Log(path, durability=name.partition("/")[2]) as log:  # type: ignore[arg-type]
        assert log.recovery.clean == name.startswith("closed/")
        assert log.recovery.segments_scanned == 0 or not log.recovery.clean
        assert not log.recovery.cut
        assert not log.recovery.notes
        assert held(log) == of_log(name)
        assert not any((path / "kstore.state").read_bytes()[:OLD_SLOTS_SIZE])
    with kstore.Log(path) as log:
        assert log.recovery.clean
        assert held(log) == of_log(name)


def test_the_processes_of_a_shared_log_open_it(tmp_path: Path) -> None:
    path = copied("shared/log", tmp_path)
    with kstore.Log(path, shared=True) as one, kstore.Log(path, shared=True) as two:
        assert held(one) == held(two) == of_log("shared/log")
        assert one.append(b"next") == of_log("shared/log")["end"]


def test_a_queue_still_has_what_was_not_done(tmp_path: Path) -> None:
    path = copied("queue", tmp_path)
    with kstore.open(path) as store:
        queue = store.queue("jobs")
        found = []
        for _ in expected()["queue"]["jobs"]:
            with queue.get(timeout=10) as job:
                found.append((job.value or b"").decode())
        assert sorted(found) == sorted(expected()["queue"]["jobs"])
        assert queue.empty()


def test_transactions_end_as_they_were_decided(tmp_path: Path) -> None:
    path = copied("transactions", tmp_path)
    with kstore.open(path) as store:
        for number in range(2):
            log = store.log("orders", number)
            found = [(record.value or b"").decode() for record in log.read(isolation_level="read_committed")]
            assert found == expected()["transactions"][f"orders-{number}"]["committed"]
        # A successor can end the open transaction, under a producer id that was never used.
        with store.producer(transactional_id="invoices") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"again", partition=0)
            producer.commit_transaction()
        last = list(store.log("orders", 0).read(isolation_level="read_committed"))[-1]
        assert last.value == b"again"
        with store.consumer("orders", group="billing") as consumer:
            rest = [record.value for records in consumer.poll(timeout=5).values() for record in records]
        assert b"again" in rest
        assert b"committed 0" not in rest


def test_a_compacted_log_stays_compacted(tmp_path: Path) -> None:
    path = copied("compacted", tmp_path)
    compaction = path / "state-0" / "kstore.compaction"
    assert compaction.read_bytes().startswith(b"version 1\n")
    first_dirty = read_compaction_state(SYSTEM_FS, compaction)
    assert first_dirty is not None
    with kstore.open(path) as store:
        log = store.log("state", 0)
        assert log.recovery.clean
        assert held(log)["records"] == expected()["compacted"]["state-0"]["records"]
        for number in range(30):
            log.append(b"again %d" % number, key=b"key %d" % (number % 7))
        log.roll()
        report = log.compact()
        assert report.first_dirty == first_dirty.first_dirty
    assert compaction.read_bytes().startswith(b"version 2\n")


@pytest.mark.parametrize("clean", [False, True])
def test_a_crash_at_any_step_of_the_upgrade_loses_no_field(clean: bool, tmp_path: Path) -> None:
    state = LogState("os", clean, 7, 5, 3, 9, bytes(range(16)), 0, 1, 2, 3, txn_bytes=34 if clean else -1)
    older = LogState("os", False, 6, 5, 3, 8, bytes(range(16)))
    path = tmp_path / "kstore.state"
    path.write_bytes(version_one_file(older, state))
    before = path.read_bytes()
    StateFile.open(SYSTEM_FS, path, mode=0o600).close()
    after = path.read_bytes()
    sectors = range(0, len(before), 512)
    changed = [at for at in sectors if before[at : at + 512] != after[at : at + 512]]
    zeroed = [at for at in changed if at < OLD_SLOTS_SIZE]
    assert zeroed == [0, 512]
    # Before the second write begins, any subset of the first one's sectors may be on disk, and so on.
    written = [at for at in changed if at not in zeroed]
    images = [merged(before, after, subset) for subset in subsets(written)]
    images += [merged(before, after, [*written, *subset]) for subset in subsets(zeroed)]
    for image in images:
        path.write_bytes(image)
        found = read_state(SYSTEM_FS, path)
        assert found is not None
        assert found.generation in (7, 8)
        assert found._replace(generation=7, session=0) == state
        again = StateFile.open(SYSTEM_FS, path, mode=0o600)
        assert again.current is not None
        assert again.current.durable_end == 9
        again.close()
        assert not any(path.read_bytes()[:OLD_SLOTS_SIZE])


@pytest.mark.parametrize("clean", [False, True])
def test_the_old_record_goes_only_when_the_new_one_is_on_disk(clean: bool, tmp_path: Path) -> None:
    """What the test above assumes: the order of the two writes, and a sync between them."""
    state = LogState("os", clean, 7, 5, 3, 9, bytes(range(16)), 0, 1, 2, 3, txn_bytes=34 if clean else -1)
    path = tmp_path / "kstore.state"
    path.write_bytes(version_one_file(state, state._replace(generation=6)))
    unsynced: list[int] = []

    class Watching(WatchedFs):
        def perform(self, operation: Operation, action: Callable[[], Result]) -> Result:
            result = action()
            found = read_state(SYSTEM_FS, path)
            assert found is not None, f"killed after {operation.kind} at {operation.position}"
            assert found._replace(generation=7, session=0) == state
            if operation.kind in WRITES:
                assert operation.position >= OLD_SLOTS_SIZE or not unsynced, "the new record is not on disk yet"
                unsynced.append(operation.position)
            elif operation.kind in SYNCS:
                unsynced.clear()
            return result

    StateFile.open(Watching(), path, mode=0o600).close()
    assert not unsynced
    assert not any(path.read_bytes()[:OLD_SLOTS_SIZE])


def subsets(items: list[int]) -> list[list[int]]:
    return [[item for bit, item in enumerate(items) if mask >> bit & 1] for mask in range(1 << len(items))]


def merged(before: bytes, after: bytes, sectors: list[int]) -> bytes:
    image = bytearray(before)
    for at in sectors:
        image[at : at + 512] = after[at : at + 512]
    return bytes(image)


def test_what_writes_version_one_here_writes_what_the_release_wrote() -> None:
    found = 0
    for path in (golden_root() / "own1").rglob("kstore.state"):
        data = path.read_bytes()
        for at in (0, 512):
            state = LogState.decode_old(data[at : at + 512])
            if state is not None and (state.clean or not any(data[at + 88 : at + 96])):
                record = encode_version_one(state)
                assert data[at : at + len(record)] == record
                found += 1
    assert found > 10
