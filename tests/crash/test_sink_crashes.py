"""A stream's rows are there once, whatever ends the sink: power cuts, kills, failing disks, at every operation."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kstore.errors import KstoreError
from tests.crash.power_cuts import ROOT, cut_power, kill_after
from tests.crash.sink_life import BATCHES, Sink, SinkLife, check_exactly_once, committed_batches
from tests.crash.transaction_life import prepared_image, typed
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, FailingFs, Fault
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Untyped, Wrong, shuffled
from tests.support.harness.selection import tries


@pytest.fixture(autouse=True)
def each_batch_is_an_append_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition then takes several, so that some are between the first and the decision."""
    monkeypatch.setattr("kstore.spark.appending.APPEND_BYTES", 1)


@pytest.mark.promise("power cut: sync", "whole or absent")
def test_a_power_cut_leaves_each_batch_of_a_stream_once(seed: int, tried: Callable[[str, int], None]) -> None:
    with in_memory() as machine:
        life = SinkLife()
        life.live()
        counts = cut_power(life, machine, count=tries(60, quick=20), seed=seed)
    assert counts.states > tries(50, quick=12)
    tried("states", counts.states)


@pytest.mark.soak
@pytest.mark.promise("power cut: sync", "whole or absent")
def test_many_power_cuts_leave_each_batch_of_a_stream_once(seed: int, tried: Callable[[str, int], None]) -> None:
    with in_memory() as machine:
        life = SinkLife()
        life.live()
        counts = cut_power(life, machine, count=5_000, seed=seed)
    tried("states", counts.states)


@pytest.mark.promise("killed: sync", "whole or absent")
def test_a_kill_after_an_operation_leaves_each_batch_of_a_stream_once(
    seed: int, tried: Callable[[str, int], None]
) -> None:
    with in_memory():
        life = SinkLife()
        life.live()
        tried("kills", kill_after(life, set(shuffled(range(len(life.operations)), seed, tries(90, quick=25)))))


@pytest.mark.soak
@pytest.mark.promise("killed: sync", "whole or absent")
def test_a_kill_after_any_operation_leaves_each_batch_of_a_stream_once(tried: Callable[[str, int], None]) -> None:
    with in_memory():
        life = SinkLife()
        life.live()
        tried("kills", kill_after(life))


def survive_fault(image: Image, fault: Fault) -> bool:
    """Whether the fault struck: a failed batch is repeated, as Spark does, on a disk that works again."""
    memory = MemoryFs(ROOT, image)
    failing = FailingFs(memory)
    clock = ManualClock()
    failing.faults.append(fault)
    sink = Sink(failing, clock)
    for batch_id in range(BATCHES):
        try:
            sink.run(batch_id)
        except KstoreError:
            failing.faults.clear()

            def check(batch_id: int = batch_id) -> None:
                if committed_batches(memory, clock) not in (batch_id, batch_id + 1):
                    raise Wrong("a batch is neither whole nor absent")
                sink.run(batch_id)

            typed(check)
        except (OSError, LookupError, ValueError) as error:
            raise Untyped(repr(error)) from error
    # The disk may have failed to remove what the slow attempt of a task had staged: the next commit does it.
    typed(lambda: Sink(memory, clock).run(BATCHES - 1))
    typed(lambda: check_exactly_once(memory, clock))
    return bool(failing.failures)


def fault_count(image: Image) -> int:
    fs = MemoryRecording(MemoryFs(ROOT, image))
    sink = Sink(fs, ManualClock())
    for batch_id in range(BATCHES):
        sink.run(batch_id)
    return sum(operation.kind in CHANGES for operation in fs.operations)


def fail(code: int, seed: int, count: int) -> int:
    with in_memory():
        image = prepared_image()
        struck = 0
        for number in shuffled(range(1, fault_count(image) + 1), seed, count):
            # A write that syncs fails in its write, or in its sync.
            for written in (0, None):
                try:
                    struck += survive_fault(image, Fault(number, code, written=written))
                except AssertionError as error:
                    error.add_note(f"operation {number}, written {written}")
                    raise
    assert struck > count / 2 or struck > 100
    return struck


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.promise("whole or absent", "disk full", "sync fails")
@pytest.mark.sampled(1)
def test_an_operation_that_fails_leaves_each_batch_of_a_stream_once(
    code: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", fail(code, seed, tries(20, quick=8)))


@pytest.mark.soak
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.promise("whole or absent", "disk full", "sync fails")
def test_any_operation_that_fails_leaves_each_batch_of_a_stream_once(
    code: int, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", fail(code, seed, 10**9))
