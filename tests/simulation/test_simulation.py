"""Long lives of a store: dozens of crashes, each over what the last one left. See ``life.py``."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.simulation.life import Life, before_rot, offsets_at
from tests.simulation.model import Batch, Entry, Found, LogModel
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.shrink import shrunk
from tests.support.harness.evidence import Lost
from tests.support.harness.selection import tries

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]

Tried = Callable[[str, int], None]

# The same each time; those after the first twelve each found a bug once.
SEEDS = [*range(1, tries(13, quick=2)), 31106, 1795454579, 1795515853, 1795519149]
SOAK_CRASHES = int(os.environ.get("KSTORE_SOAK_CRASHES", 10_000))
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "killed: sync", "clock")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_life_loses_nothing_that_was_promised(seed: int, tried: Tried) -> None:
    outcome = Life(seed).run()
    tried("kills", outcome.crash_count)


@pytest.mark.promise("power cut: sync", "whole or absent")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt as a generator is freed
@pytest.mark.parametrize("seed", [98, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 7))])
def test_a_long_life_with_interrupts_loses_nothing_and_brings_nothing_back(seed: int, tried: Tried) -> None:
    outcome = Life(seed, harsh=True).run()
    tried("kills", outcome.crash_count)


@pytest.mark.soak
@pytest.mark.promise("power cut: sync", "power cut: interval", "power cut: os", "killed: sync", "clock")
def test_long_lives_with_new_seeds(tried: Tried) -> None:
    # New seeds each time: a failure names its seed, and the odd ones are --harsh.
    first = int(time.time())
    crash_count, seed = 0, first
    while crash_count < SOAK_CRASHES:
        crash_count += Life(seed, harsh=seed % 2 == 1).run().crash_count
        seed += 1
    tried("kills", crash_count)


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.sampled(2)
def test_a_life_without_syncs_that_is_judged_as_if_it_had_them_has_losses(seed: int) -> None:
    with pytest.raises(Lost):
        Life(seed, durability="os", judged="sync").run()


def test_a_seed_gives_the_same_life_in_every_process() -> None:
    code = "from tests.simulation.life import Life; print(Life(5, step_count=60).run())"
    said = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert said[0] == said[1]
    assert "trace=" in said[0]


def test_a_tombstone_that_a_compaction_has_removed_still_counts_and_one_that_a_power_cut_took_does_not() -> None:
    model = LogModel("table-0", lossless=False, compacted=True, compacted_to=3, durable=1, end=3)
    values = [Entry(b"k", b"first"), Entry(b"k", None), Entry(b"other", b"last")]
    model.certain = [Batch(offset, (entry,), 0, offset) for offset, entry in enumerate(values)]
    model.hold(Found(0, 3, {2: values[2]}, ()), power_cut=True)
    model.hold(Found(0, 1, {0: values[0]}, ()), power_cut=True)
    with pytest.raises(Lost, match="expected what offset 0 has"):
        model.hold(Found(0, 1, {}, ()), power_cut=True)


def test_a_failed_append_whose_offset_another_one_has_is_gone() -> None:
    model = LogModel("table-0", compacted=True)
    failed, other = (Batch(0, (Entry(b"k", value), Entry(b"k", None)), 0, at) for at, value in enumerate((b"1", b"2")))
    model.begin([failed])
    model.begin([other])
    model.done([other], 0)
    assert (model.doubtful, model.gone, model.certain) == ([], {failed.entries[0]}, [other])


def test_what_a_truncation_leaves_is_as_durable_as_before() -> None:
    batches = [Batch(offset, (Entry(None, b"%d" % offset),), 0, offset) for offset in range(3)]
    for lossless, durable in ((True, 2), (False, 1)):
        model = LogModel("orders-0", lossless=lossless, certain=batches, durable=1, end=3)
        model.begin_truncation(2)
        model.truncated(2)
        assert (model.end, model.durable) == (2, durable)


def test_what_rots_in_a_batch_is_reported_though_the_batch_before_it_has_another_size_and_offset_now() -> None:
    data = b"".join(build_batch([Record(offset, 0, value=b"v")]) for offset in range(3))
    size = len(data) // 3
    flips = {size + 7: (1 ^ 8, 1), size + 9: (0xFF, data[size + 9])}
    changed = bytearray(data)
    for at, (now, _) in flips.items():
        changed[at] = now
    rotten = bytes(changed)
    assert offsets_at(before_rot(rotten, flips), 2 * size + 65) == range(2, 3)
    assert offsets_at(before_rot(rotten, flips), size + 65) == range(1, 2)
    assert before_rot(rotten[:size], flips) == data[:size]


def test_a_failing_life_is_made_shorter() -> None:
    assert shrunk(range(300), lambda steps: {7, 130, 131} <= set(steps)) == [7, 130, 131]
    assert shrunk(range(5), lambda steps: True) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_fits_the_code(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
