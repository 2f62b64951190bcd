"""The sorted map of segments, and its published snapshot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.engine.segments import LogSegments
from kstore.segment import LogSegment
from tests.support.lives.log_helpers import context

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def segments(tmp_path: Path) -> LogSegments:
    shared = context(tmp_path)
    return LogSegments(LogSegment(shared, base, size=1 << 31) for base in (20, 0, 10))


def base(segment: LogSegment | None) -> int | None:
    return None if segment is None else segment.base_offset


def test_an_empty_map_finds_nothing() -> None:
    segments = LogSegments()
    assert (len(segments), segments.floor(0), segments.lower(0), segments.higher(0)) == (0, None, None, None)
    with pytest.raises(IndexError):
        _ = segments.last


@pytest.mark.parametrize(
    ("offset", "floor", "lower", "higher"),
    [(0, 0, None, 10), (5, 0, 0, 10), (10, 10, 0, 20), (19, 10, 10, 20), (20, 20, 10, None), (10**9, 20, 20, None)],
)
def test_floor_lower_and_higher(
    segments: LogSegments, offset: int, floor: int | None, lower: int | None, higher: int | None
) -> None:
    assert (base(segments.floor(offset)), base(segments.lower(offset)), base(segments.higher(offset))) == (
        floor,
        lower,
        higher,
    )


def test_no_floor_below_the_first(tmp_path: Path) -> None:
    segments = LogSegments([LogSegment(context(tmp_path), 10)])
    assert segments.floor(9) is None


def test_segments_are_kept_in_order(segments: LogSegments) -> None:
    assert segments.bases == (0, 10, 20)
    assert (segments.first.base_offset, segments.last.base_offset) == (0, 20)
    segments.check()


def test_a_range_begins_at_the_floor(segments: LogSegments) -> None:
    assert [base(each) for each in segments.range(12, 20)] == [10]
    assert [base(each) for each in segments.range(12, 21)] == [10, 20]
    assert [base(each) for each in segments.range(0, 100)] == [0, 10, 20]
    assert [base(each) for each in segments.range(25, 100)] == [20]
    assert list(segments.range(5, 5)) == [segments.first]


def test_adding_returns_what_it_replaced(segments: LogSegments, tmp_path: Path) -> None:
    new = LogSegment(context(tmp_path), 10)
    old = segments.floor(10)
    assert segments.add(new) is old
    assert segments.floor(10) is new
    assert segments.add(LogSegment(context(tmp_path), 30)) is None
    assert len(segments) == 4


def test_removing_takes_segments_out_and_ignores_others(segments: LogSegments) -> None:
    segments.remove([0, 99])
    assert segments.bases == (10, 20)
    assert 0 not in segments
    segments.check()


def test_a_snapshot_does_not_change_under_its_reader(segments: LogSegments) -> None:
    snapshot = segments.snapshot
    segments.remove([0, 10, 20])
    assert snapshot.bases == (0, 10, 20)
    assert base(snapshot.floor(15)) == 10


# In its own program: all threads and finalizers of a process share the refusals.
SHORT_OF_MEMORY = """
import gc, sys
from pathlib import Path
from kstore.engine.segments import LogSegments
from kstore.segment import LogSegment
from tests.crash.refusals import refused
from tests.support.lives.log_helpers import context

gc.disable()
here = context(Path(sys.argv[1]))
segments = LogSegments(LogSegment(here, base) for base in (0, 10, 20))
new = LogSegment(here, 30)
adds = sys.argv[2] == "add"
change = (lambda: segments.add(new)) if adds else (lambda: segments.remove([0, 20]))
after = (0, 10, 20, 30) if adds else (10,)
number = 0
while segments.bases != after:
    assert segments.bases == (0, 10, 20), segments.bases
    assert isinstance(refused(change, number), MemoryError | None)
    segments.check()
    number += 1
print(number)
"""


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_change_that_runs_out_of_memory_is_made_whole_or_not_at_all(
    change: str, tmp_path: Path, tried: Callable[[str, int], None]
) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter was built without its test module")
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY, str(tmp_path), change],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 2
    tried("faults", int(done.stdout))


def test_sizes_sum_up_beyond_32_bits(segments: LogSegments) -> None:
    assert sum(each.size for each in segments) == 3 << 31
