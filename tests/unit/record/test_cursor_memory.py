"""The iterators over records: one that runs out of memory has not passed a record that it did not return."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# In its own program: all threads and finalizers of a process share the refusals.
SHORT_OF_MEMORY = """
import gc
from kstore.record.batch import parse_v2
from tests.crash.refusals import refused
from tests.support.lives.run_helpers import small_batch, tally
from tests.unit.record.test_runs import run_of

gc.disable()
COUNT = 6
slot = [None]


def take():
    slot[0] = next(cursor)


data = small_batch(0, 3, size=600) + small_batch(3, 3, size=600)
run = run_of(data)
cursors = {
    "records": lambda: run.records(1, COUNT, tally()),
    "values": lambda: run.values(1, COUNT, tally()),
    "compressed": lambda: parse_v2(small_batch(0, COUNT, size=600, codec="zstd"), 0).records(1, COUNT),
}
for name, begin in cursors.items():
    number = refusals = 0
    while True:
        cursor, found, errors = begin(), [], 0
        while len(found) < COUNT - 1:
            assert cursor.next_offset == 1 + len(found), (name, cursor.next_offset, found)
            if name != "compressed":
                assert cursor.given_count == len(found), (name, cursor.given_count, found)
            error = refused(take, number)
            assert error is None or isinstance(error, MemoryError), error
            if error is not None:
                errors += 1
                assert cursor.has_more
                take()
            found.append(slot[0])
        expected = [value for value in begin()]
        assert found == expected, (name, number, found)
        refusals += errors
        if not errors:
            break
        number += 1
    assert refusals > 3, name
    print(refusals)
"""


def test_an_iterator_that_runs_out_of_memory_passes_over_no_record(tried: Callable[[str, int], None]) -> None:
    pytest.importorskip("_testcapi", reason="this interpreter was built without its test module")
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    tried("faults", sum(map(int, done.stdout.split())))
