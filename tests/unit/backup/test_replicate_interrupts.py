"""An interrupted call of a replicator loses no record and no file that a manifest names, and holds nothing back."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from kstore.archive.manifest import Manifest
from kstore.backup.plan import NamedFiles
from kstore.errors import KstoreError
from kstore.log import writer_of
from kstore.store import Store
from tests.crash.interrupted_life import InterruptAfterCode, InterruptWithin
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.selection import tries
from tests.unit.backup.test_backup import SETTINGS, contents, restored
from tests.unit.engine.test_interrupted_counts import Tried
from tests.unit.rules.test_backup_plan import named_by, random_manifest

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

PLACES_MAX = 500


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


def test_what_is_named_stays_named_after_an_interrupt_anywhere(seed: int, tried: Tried) -> None:
    draw = random.Random(f"named {seed}")
    struck = 0
    for _ in range(tries(30, quick=3)):
        manifests = [random_manifest(draw, time_ms) for time_ms in range(5)]
        # As after a round whose manifest could not be written: the next one has the same entries.
        manifests.insert(3, manifests[3]._replace(time_ms=2))
        for number in count(1):
            assert number < PLACES_MAX
            named, kept = NamedFiles(), list[Manifest]()
            with InterruptWithin(number, "backup/plan.py") as interrupted:
                for manifest in manifests:
                    try:
                        named.add(manifest)
                        kept.append(manifest)
                        while named.replica_count > 2:
                            # Before the call: the manifest goes even if it is interrupted.
                            kept = [one for one in kept if one.time_ms != named.oldest_time]
                            named.drop_oldest()
                    except KeyboardInterrupt:
                        pass
            missing = [key for key in named_by(kept) if key not in named]
            assert not missing, f"interrupted at {interrupted.place} in {interrupted.functions[:3]}"
            if not interrupted.struck:
                break
            struck += 1
    tried("faults", struck)


def test_a_replicator_that_is_interrupted_while_it_ends_can_be_closed_again(tmp_path: Path, tried: Tried) -> None:
    with Store(tmp_path / "store", clock=ManualClock(), **SETTINGS) as store:
        store.create_topic("orders")
        for number in count(1):
            assert number < PLACES_MAX
            replicator = store.replicator(tmp_path / "target", hold_retention=True)
            replicator.flush()
            with InterruptWithin(number, "backup/replicate.py") as interrupted:
                try:
                    replicator._end()
                except KeyboardInterrupt:
                    pass
            replicator.close()
            assert not any(task.name.startswith("replicate") for task in store.status().tasks), interrupted.place
            if not interrupted.struck:
                break
    tried("faults", number - 1)


def test_a_replicator_that_is_interrupted_while_it_begins_leaves_nothing(tmp_path: Path, tried: Tried) -> None:
    with Store(tmp_path / "store", clock=ManualClock(), **SETTINGS) as store:
        store.create_topic("orders")
        for number in count(1):
            assert number < PLACES_MAX
            with InterruptWithin(number, "backup/replicate.py") as interrupted:
                try:
                    store.replicator(tmp_path / "target")
                except (KeyboardInterrupt, KstoreError):
                    pass
            if not interrupted.struck:
                break
            assert not any(task.name.startswith("replicate") for task in store.status().tasks), interrupted.place
            store.replicator(tmp_path / "target").close()
    tried("faults", number - 1)


class InterruptASealedSegment(InterruptAfterCode):
    """``InterruptAfterCode``, only where a sealed segment is copied."""

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        return super()._call(frame, event, argument) if frame.f_code.co_name == "_copy_one_sealed" else None


def test_a_round_after_an_interrupted_one_has_all_of_the_segments_that_were_sealed(
    tmp_path: Path, tried: Tried
) -> None:
    for number in count(1):
        assert number < PLACES_MAX
        path = tmp_path / str(number)
        with Store(path / "store", clock=ManualClock(), **SETTINGS) as store:
            store.create_topic("orders")
            log = store.log("orders")
            with store.replicator(path / "target") as replicator:
                log.append(b"in the target before its segment is sealed")
                replicator.flush()
                for value in (b"the rest of this segment", b"a segment that the target lacks"):
                    log.append(value)
                    writer_of(log).roll()
                with InterruptASealedSegment(number) as interrupted:
                    try:
                        replicator.flush()
                    except KeyboardInterrupt:
                        pass
                replicator.flush()
            before = contents(store)
        with restored(path / "target", path / "new") as new:
            assert contents(new) == before, interrupted.place
        if not interrupted.struck:
            break
    assert number > 2
    tried("faults", number - 1)


def test_each_log_reports_its_appends_after_an_interrupted_round_or_append(tmp_path: Path, tried: Tried) -> None:
    clock = ManualClock()
    with Store(tmp_path / "store", clock=clock, **SETTINGS) as store:
        store.create_topic("orders")
        log = store.log("orders")
        with store.replicator(tmp_path / "target") as replicator:
            for call in (replicator.flush, lambda: log.append(b"interrupted")):
                for number in count(1):
                    assert number < PLACES_MAX
                    clock.advance(1000)
                    log.append(b"heard once")
                    if call != replicator.flush:
                        replicator.flush()
                    with InterruptWithin(number, "backup/replicate.py", "engine/change/growth.py") as interrupted:
                        try:
                            call()
                        except KeyboardInterrupt:
                            pass
                    replicator.flush()
                    clock.advance(1000)
                    store.run_due_tasks()  # what was reported before
                    clock.advance(1000)
                    log.append(b"must be heard")
                    store.run_due_tasks()
                    assert replicator.lag_seconds == 0
                    assert replicator._copier.copied()[writer_of(log)] == log.end_offset, interrupted.place
                    if not interrupted.struck:
                        break
                assert number > 10
                tried("faults", number - 1)


def test_a_store_as_before_an_interrupted_round_gets_a_manifest(tmp_path: Path, tried: Tried) -> None:
    for number in count(1):
        assert number < PLACES_MAX
        path = tmp_path / str(number)
        with Store(path / "store", clock=ManualClock(), **SETTINGS) as store:
            store.create_topic("orders")
            store.log("orders").append(b"x")
            with store.replicator(path / "target") as replicator:
                replicator.flush()
                store.create_topic("passing")
                with InterruptWithin(number, "backup/replicate.py") as interrupted:
                    try:
                        replicator.flush()
                    except KeyboardInterrupt:
                        pass
                store.delete_topic("passing")
                replicator.flush()
            before = contents(store)
        with restored(path / "target", path / "new") as new:
            assert contents(new) == before, interrupted.place
        if not interrupted.struck:
            break
    assert number > 10
    tried("faults", number - 1)


class InterruptedLock:
    """A lock that is never free: Ctrl-C ends the wait for it."""

    def __enter__(self) -> None:
        raise KeyboardInterrupt

    def __exit__(self, *error: object) -> None: ...


def test_a_replicator_keeps_its_rate_after_a_close_that_was_interrupted_while_it_waited(tmp_path: Path) -> None:
    with Store(tmp_path / "store", clock=ManualClock(), **SETTINGS) as store:
        store.create_topic("orders")
        with store.replicator(tmp_path / "target", bytes_per_second=1e9) as replicator:
            has_ended = replicator._copier._throttle._has_ended
            with mock.patch.object(replicator, "_lock", InterruptedLock()), pytest.raises(KeyboardInterrupt):
                replicator.close()
            assert (replicator.closed, has_ended()) == (False, False)
        assert (replicator.closed, has_ended()) == (True, True)
