"""An interrupt at any place of a swap leaves the old segments, or a poisoned log that its next open makes whole."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from kstore.errors import KstoreError, PoisonedError
from kstore.log import Log
from tests.crash.interrupted_life import InterruptWithin
from tests.support.harness.selection import tries
from tests.unit.engine.test_interrupted_counts import Tried

# The files of the swap itself.
SWAPPING = ("engine/change/cuts.py", "engine/open/swap.py", "engine/segments.py")
PLACES_MAX = 500
VALUES = {b"a": b"2", b"b": b"2", b"c0": b"0", b"c1": b"1", b"c2": b"2"}


def test_a_swap_that_is_interrupted_anywhere_is_undone_or_completed(tmp_path: Path, seed: int, tried: Tried) -> None:
    step, struck = tries(1, quick=8), 0
    for number in count(1 + seed % step, step):
        assert number < PLACES_MAX
        path = tmp_path / str(number)
        log = Log(path, durability="os")
        for segment in range(3):
            for key in (b"a", b"b", b"c%d" % segment):
                log.append(b"%d" % segment, key=key)
            log.roll()
        with InterruptWithin(number, *SWAPPING) as interrupted:
            try:
                log.compact()
            except (KeyboardInterrupt, KstoreError):
                pass
        try:
            if any(path.glob("*.log.swap")):
                # A truncation or a deletion below it would be undone when the next open completes the swap.
                with pytest.raises(PoisonedError):
                    log.append(b"3", key=b"a")
            assert {record.key: record.value for record in log.read()} == VALUES
            try:
                log.delete_records(3)
            except PoisonedError:
                pass
            try:
                log.close()
            except PoisonedError:
                pass
            with Log(path, durability="os") as again:
                found = {record.key: record.value for record in again.read()}
                assert found == {key: value for key, value in VALUES.items() if key != b"c0" or again.start_offset < 3}
                assert not again.verify().corrupt
        except BaseException as error:
            error.add_note(f"interrupted at {interrupted.place} in {interrupted.functions[:4]}")
            raise
        if not interrupted.struck:
            break
        struck += 1
    assert struck > 10
    tried("faults", struck)
