"""A backup makes way for those who append meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import kstore
from kstore.backup import take
from kstore.backup.take import PAUSE_SECONDS, PAUSE_SECONDS_MAX
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock

SETTINGS: dict[str, Any] = {"background": False, "durability": "os"}
STEP_BYTES = 1000


class WorkClock(ManualClock):
    """Each look at it takes a millisecond."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


@pytest.fixture
def clock() -> ManualClock:
    return WorkClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    """Three segments, of which one is active, and an empty log."""
    with Store(tmp_path / "store", clock=clock, **SETTINGS) as store:
        store.create_topic("orders")
        store.create_topic("live")
        for number in range(3):
            store.log("orders").append_many([b"%d" % number * 100] * 200)
            if number < 2:
                store.log("orders").roll()
        yield store


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Iterator[list[float]]:
    """For how long each pause of a backup was to last."""
    found: list[float] = []

    class Noted(take.Copier):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._wait = found.append  # type: ignore[assignment]

    monkeypatch.setattr(take, "BESIDE_BYTES", STEP_BYTES)
    with mock.patch.object(take, "Copier", Noted):
        yield found


def appending(store: Store, sizes: list[int]) -> Callable[[int], None]:
    def append(size: int) -> None:
        sizes.append(size)
        store.log("live").append(b"x")

    return append


def test_beside_appends_a_backup_copies_little_at_a_time_and_waits(
    store: Store, waits: list[float], tmp_path: Path
) -> None:
    sizes: list[int] = []
    result = store.backup(tmp_path / "backups", progress=appending(store, sizes))
    assert sum(sizes) == result.copied_bytes
    # Also the first piece of each stage, before which it has not looked. The first append comes after the first look.
    assert sizes[0] == STEP_BYTES
    assert sum(size > STEP_BYTES for size in sizes) == 1
    assert len(sizes) > 20
    assert len(waits) >= len(sizes) - 2
    assert all(0.9 * PAUSE_SECONDS / 1000 <= seconds <= PAUSE_SECONDS_MAX for seconds in waits)
    expected = list(store.log("orders").read())
    kstore.restore(tmp_path / "backups", tmp_path / "new")
    with Store(tmp_path / "new", **SETTINGS) as new:
        assert list(new.log("orders").read()) == expected


def test_a_backup_waits_for_nothing_if_nothing_is_appended(store: Store, waits: list[float], tmp_path: Path) -> None:
    sizes: list[int] = []
    store.backup(tmp_path / "backups", progress=sizes.append)
    assert not waits
    assert max(sizes) > STEP_BYTES


def test_a_pace_that_is_asked_for_is_kept(store: Store, waits: list[float], tmp_path: Path) -> None:
    store.backup(tmp_path / "backups", bytes_per_second=1e12, progress=appending(store, []))
    assert not waits


def test_uploads_do_not_wait_for_appends(store: Store, waits: list[float], memory: str) -> None:
    store.backup(memory, progress=appending(store, []))
    assert not waits


@pytest.mark.long
def test_what_is_appended_faster_than_it_is_copied_ends_the_pauses(
    store: Store, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file that is copied brings a new sealed segment: only the first round waits, so a backup ends."""
    monkeypatch.setattr(take, "OPEN_SEGMENTS_MAX", 0)
    rounds: list[int] = []
    copy_sealed = take.Copier._copy_sealed

    def noted(copier: take.Copier, *, makes_way: bool) -> int:
        before = len(waits)
        count = copy_sealed(copier, makes_way=makes_way)
        rounds.append(len(waits) - before)
        return count

    monkeypatch.setattr(take.Copier, "_copy_sealed", noted)

    def append(size: int) -> None:
        store.log("live").append(b"x" * 100)
        store.log("live").roll()

    store.backup(tmp_path / "backups", progress=append)
    assert rounds[0]
    assert len(rounds) == take.ROUNDS
    assert not any(rounds[1:])
