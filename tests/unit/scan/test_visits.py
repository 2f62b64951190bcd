"""A scan shows visitors everything in order: runs, single batches, damage, and known losses; and takes runs apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kstore.files.fs import File
from kstore.files.local import SYSTEM_FS
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.record.walk import Damage, walk, walk_runs
from kstore.rules.losses import LossRanges
from kstore.scan import visits
from kstore.scan.visits import Lost, Progress, RecordCheck, Visitor, visit, whole_batches
from tests.support.lives.log_cases import data, flip
from tests.support.lives.log_helpers import TIME


class Seen(Visitor):
    """Everything that it was shown, as text."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def note(self, position: int, batch: Batch) -> None:
        self.items.append(f"{batch.base_offset}-{batch.last_offset}")

    def note_damage(self, damage: Damage) -> None:
        self.items.append(f"damage {damage.first_offset} to {damage.next_offset}")

    def note_lost(self, lost: Lost) -> None:
        self.items.append(f"lost {lost.first}-{lost.last} at {lost.position}")


class SeenRuns(Seen):
    def note_run(self, run: Run) -> None:
        self.items.append(f"run {run.base_offset}-{run.next_offset - 1}")


class Segment(NamedTuple):
    file: File
    size: int
    starts: list[int]

    def runs(self, **bounds: Any) -> Iterator[Run | tuple[int, Batch] | Damage]:
        return walk_runs(self.file, 0, self.size, next_offset=0, **bounds)

    def batches(self, **bounds: Any) -> Iterator[tuple[int, Batch] | Damage]:
        return walk(self.file, 0, self.size, next_offset=0, **bounds)


def segment(path: Path, *batches: bytes, damaged: int | None = None) -> Segment:
    starts = [sum(map(len, batches[:number])) for number in range(len(batches))]
    target = path / f"{0:020d}.log"
    target.write_bytes(b"".join(batches))
    if damaged is not None:
        flip(target, starts[damaged] + len(batches[damaged]) - 1)
    return Segment(SYSTEM_FS.open(str(target)), target.stat().st_size, starts)


def test_a_visitor_without_code_for_runs_sees_their_batches(tmp_path: Path) -> None:
    of = segment(tmp_path, data(0, 1), data(2), data(3))
    by_runs, by_batches = SeenRuns(), Seen()
    assert visit(of.runs(), by_runs, by_batches, base_offset=0) == 4
    assert by_runs.items == ["run 0-3"]
    assert by_batches.items == ["0-1", "2-2", "3-3"]


def test_damage_is_shown_between_the_batches_around_it(tmp_path: Path) -> None:
    of = segment(tmp_path, data(0), data(1), data(2), damaged=1)
    seen = Seen()
    assert visit(of.runs(), seen, base_offset=0) == 3
    assert seen.items == ["0-0", "damage 1 to 2", "2-2"]


def test_after_damage_at_the_end_the_last_whole_batch_counts(tmp_path: Path) -> None:
    of = segment(tmp_path, data(0), data(1), damaged=1)
    seen = Seen()
    losses = LossRanges(lost=((1, 9),))
    # What was lost may be what is damaged: only damage is reported of it.
    assert visit(of.runs(), seen, base_offset=0, offset_stop=10, size=of.size, losses=losses) == 1
    assert seen.items == ["0-0", "damage 1 to None"]


def test_known_losses_are_shown_where_no_batch_holds_them(tmp_path: Path) -> None:
    of = segment(tmp_path, data(2), data(3), data(7))
    seen, runs = Seen(), SeenRuns()
    losses = LossRanges(lost=((0, 3), (5, 5), (9, 11)))
    end = visit(of.runs(), seen, runs, base_offset=0, offset_stop=10, size=of.size, losses=losses)
    lost = [f"lost 0-1 at {of.starts[0]}", "2-2", "3-3", f"lost 5-5 at {of.starts[2]}", "7-7", f"lost 9-9 at {of.size}"]
    assert (end, seen.items, runs.items) == (8, lost, lost)


def test_a_run_without_a_gap_stays_whole_whatever_is_lost(tmp_path: Path) -> None:
    of = segment(tmp_path, data(0), data(1))
    seen = SeenRuns()
    visit(of.runs(), seen, base_offset=0, offset_stop=4, size=of.size, losses=LossRanges(lost=((3, 3),)))
    assert seen.items == ["run 0-1", f"lost 3-3 at {of.size}"]


def test_a_loss_knows_the_time_of_the_batch_after_it(tmp_path: Path) -> None:
    class Times(Visitor):
        found: tuple[int, ...] = ()

        def note_lost(self, lost: Lost) -> None:
            self.found += (lost.before_ms,)

    of, times = segment(tmp_path, data(2)), Times()
    visit(of.batches(), times, base_offset=0, offset_stop=9, losses=LossRanges(lost=((0, 0), (8, 8))))
    assert times.found == (TIME + 2, -1)


@pytest.mark.parametrize("way", ["runs", "batches"])
def test_whole_batches_leave_damage_out(tmp_path: Path, way: str) -> None:
    of = segment(tmp_path, data(0), data(1), data(2), damaged=1)
    found = [(position, batch.base_offset) for position, batch in whole_batches(getattr(of, way)())]
    assert found == [(of.starts[0], 0), (of.starts[2], 2)]


@pytest.mark.parametrize("way", ["runs", "batches"])
def test_counts_are_those_of_the_headers(tmp_path: Path, way: str) -> None:
    of = segment(tmp_path, data(0, 1), data(2), data(3, 4), damaged=1)
    counts = RecordCheck(1 << 20, lambda position, batch, reason: None)
    visit(getattr(of, way)(), counts, base_offset=0)
    assert (counts.batch_count, counts.record_count) == (2, 4)


@pytest.mark.parametrize("with_compressed", [False, True])
def test_records_that_cannot_be_read_are_refused(tmp_path: Path, with_compressed: bool) -> None:
    large = data(0, 1, codec="zstd", size=5000)
    of = segment(tmp_path, large, data(2), data(3, codec="zstd"))
    refused = []
    check = RecordCheck(1000, lambda position, batch, reason: refused.append((position, batch.base_offset, reason)))
    visit(of.runs(with_compressed=with_compressed), check, base_offset=0)
    ((position, base_offset, reason),) = refused
    assert (position, base_offset) == (0, 0)
    assert "1000" in reason


def test_progress_is_reported_in_steps_and_drops_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "STEP_BYTES", 1)
    of = segment(tmp_path, data(0), data(1), data(2, 3))
    told: list[int] = []
    dropped: list[tuple[int, int, str]] = []

    class Advised:
        def advise(self, position: int, size: int, advice: str) -> None:
            dropped.append((position, size, advice))

    progress = Progress(told.append, dropped_from=Advised())  # type: ignore[arg-type]
    visit(of.batches(), base_offset=0, progress=progress)
    progress.reach(of.size)
    assert told == [of.starts[1], of.starts[2] - of.starts[1], of.size - of.starts[2]]
    assert dropped == [(at, size, "dontneed") for at, size in zip(of.starts, told, strict=True)]
