"""A transaction over three partitions is whole or absent: after power cuts, kills, and failures of the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from kstore.errors import InvalidTransactionStateError, KstoreError, PoisonedError, ProducerFencedError
from tests.crash.power_cuts import ROOT, cut_power, kill_after
from tests.crash.transaction_life import PARTITIONS, PATH, Session, TransactionLife, hold, opened, prepared_image, typed
from tests.support.fakes.crash_states import Image
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, FailingFs, Fault
from tests.support.fakes.memory_fs import MemoryFs, MemoryRecording, in_memory
from tests.support.harness.evidence import Untyped, Wrong, shuffled
from tests.support.harness.selection import tries


@pytest.mark.promise("power cut: sync", "whole or absent")
def test_a_power_cut_leaves_a_transaction_whole_or_absent(seed: int, tried: Callable[[str, int], None]) -> None:
    with in_memory() as machine:
        life = TransactionLife()
        life.live()
        counts = cut_power(life, machine, count=tries(120, quick=40), seed=seed)
    assert counts.states > tries(100, quick=30)
    tried("states", counts.states)


@pytest.mark.soak
@pytest.mark.promise("power cut: sync", "whole or absent")
def test_many_power_cuts_leave_a_transaction_whole_or_absent(seed: int, tried: Callable[[str, int], None]) -> None:
    with in_memory() as machine:
        life = TransactionLife()
        life.live()
        counts = cut_power(life, machine, count=20_000, seed=seed)
    tried("states", counts.states)


@pytest.mark.promise("killed: sync", "whole or absent")
def test_a_kill_after_an_operation_leaves_a_transaction_whole_or_absent(
    seed: int, tried: Callable[[str, int], None]
) -> None:
    with in_memory():
        life = TransactionLife()
        life.live()
        tried("kills", kill_after(life, set(shuffled(range(len(life.operations)), seed, tries(150, quick=25)))))


@pytest.mark.soak
@pytest.mark.promise("killed: sync", "whole or absent")
def test_a_kill_after_any_operation_leaves_a_transaction_whole_or_absent(tried: Callable[[str, int], None]) -> None:
    with in_memory():
        life = TransactionLife()
        life.live()
        tried("kills", kill_after(life))


class Outcome:
    """What the producer knows of its transaction: True or False once an end has returned, None before."""

    committed: bool | None = None
    # It requested a commit, which may have happened.
    asked = False


def transact(session: Session, outcome: Outcome, *, abort_instead: bool) -> None:
    """One transaction; failed steps are repeated; a failed commit may be followed by an abort instead."""

    def twice(step: Callable[[], object]) -> None:
        try:
            step()
        except KstoreError:
            step()

    twice(session.init)
    twice(session.add)
    for owner in PARTITIONS:
        twice(lambda owner=owner: session.write(1, owner))  # type: ignore[misc]
    twice(lambda: session.offsets(1))
    outcome.asked = True
    try:
        session.end(commit=True)
    except KstoreError:
        if abort_instead:
            try:
                session.end(commit=False)
                outcome.committed = False
                return
            except InvalidTransactionStateError:
                pass  # the commit was decided
        session.end(commit=True)
    outcome.committed = True


def survive_fault(image: Image, fault: Fault, *, abort_instead: bool) -> bool:
    """Whether the fault struck."""
    memory = MemoryFs(ROOT, image)
    failing = FailingFs(memory)
    clock = ManualClock()
    outcome = Outcome()
    store = opened(failing, clock)
    failing.faults.append(fault)
    try:
        transact(Session(store, "first", clock), outcome, abort_instead=abort_instead)
    except ProducerFencedError as error:
        raise Wrong(f"fenced, but by no other producer: {error}") from error
    except KstoreError as error:
        # A step fails twice only if nothing can be written until the log is reopened.
        if not isinstance(error, PoisonedError):
            raise Wrong(f"the second attempt fails with {error!r}, but the disk works") from error
    except (OSError, LookupError, ValueError) as error:
        raise Untyped(repr(error)) from error
    failing.faults.clear()
    try:
        store.close()
    except KstoreError:
        pass  # a poisoned log
    # A reopened log may sync again: it reads first.
    if any(operation.path == str(PATH) for operation in failing.second_syncs):
        raise Wrong("a second sync of the store's directory")

    def check() -> None:
        with opened(memory, clock) as store:
            found = hold(store, {1} if outcome.asked else set(), {1})
            if outcome.committed is not None and (1 in found) != outcome.committed:
                raise Wrong(f"reported as {'committed' if outcome.committed else 'aborted'}, but found: {found}")
            session = Session(store, "first", clock)
            session.init()
            session.begin(2, offsets=True)
            session.end(commit=True)
            hold(store, {1, 2}, {1, 2}, found | {2})

    typed(check)
    return bool(failing.failures)


def fault_count(image: Image) -> int:
    """How many operations of one transaction can fail."""
    fs = MemoryRecording(MemoryFs(ROOT, image))
    clock = ManualClock()
    with opened(fs, clock) as store:
        before = len(fs.operations)
        transact(Session(store, "first", clock), Outcome(), abort_instead=False)
        return sum(operation.kind in CHANGES for operation in fs.operations[before:])


@pytest.mark.parametrize("abort_instead", [False, True], ids=["commit again", "abort instead"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.promise("whole or absent", "disk full", "sync fails")
@pytest.mark.sampled(1)
def test_an_operation_that_fails_leaves_a_transaction_whole_or_absent(
    code: int, abort_instead: bool, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", fail(code, seed, tries(50, quick=12), abort_instead=abort_instead))


@pytest.mark.soak
@pytest.mark.parametrize("abort_instead", [False, True], ids=["commit again", "abort instead"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.promise("whole or absent", "disk full", "sync fails")
def test_any_operation_that_fails_leaves_a_transaction_whole_or_absent(
    code: int, abort_instead: bool, seed: int, tried: Callable[[str, int], None]
) -> None:
    tried("faults", fail(code, seed, 10**9, abort_instead=abort_instead))


def fail(code: int, seed: int, count: int, *, abort_instead: bool) -> int:
    """Fails this many operations of a transaction, each in its own store; returns how many did."""
    with in_memory():
        image = prepared_image()
        numbers = shuffled(range(1, fault_count(image) + 1), seed, count)
        struck = 0
        for number in numbers:
            # A write that syncs fails in its write, or in its sync.
            for written in (0, None):
                try:
                    struck += survive_fault(image, Fault(number, code, written=written), abort_instead=abort_instead)
                except AssertionError as error:
                    error.add_note(f"operation {number}, written {written}")
                    raise
    assert struck > count / 2 or struck > 100
    return struck
