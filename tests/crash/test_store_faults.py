"""Every file operation of a store's life fails, once or from then on: what is certain stays, nothing is half there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import DiskFullError, KstoreError, TopicNotFoundError
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import CLEAN_SHUTDOWN, KSTORE_STATE
from kstore.store import Store
from tests.crash.store_life import SETTINGS, Model, check_store, do, scripted
from tests.support.fakes.fake_clock import ManualClock
from tests.support.fakes.fake_fs import CHANGES, READS, SYNCS, WRITES, FailingFs, Fault, RecordingFs
from tests.support.harness.evidence import Untyped, shuffled
from tests.support.harness.selection import tries

EVERYTHING = CHANGES | READS
NEED_ROOM = WRITES | {"create", "mkdir"}
# How many operations fail in one case of ``make test``; in ``make soak`` all do.
SAMPLE = tries(25, quick=6)

pytestmark = [pytest.mark.usefixtures("abandons_logs"), pytest.mark.filterwarnings("ignore::ResourceWarning")]


def live(path: Path, fs: FailingFs) -> Model:
    """A life in which operations fail and the next step is done anyway. Raises: Untyped, and as ``check_store``."""
    model = Model()
    clock = ManualClock()
    store: Store | None = None
    for step in scripted():
        try:
            if store is None:
                store = Store(path, background=False, fs=fs, clock=clock, **SETTINGS)
            clock.advance(70_000)
            model.pending = step
            do(store, step)
            model.done()
        except KstoreError:
            _give_up(store)
            store = None
            fs.forget_syncs()
            faults, fs.faults = fs.faults, []
            model = check_store(path, model, fs)
            fs.faults = faults
        except Exception as error:
            raise Untyped(repr(error)) from error
    if store is not None:
        _give_up(store)
    return model


def _give_up(store: Store | None) -> None:
    if store is not None:
        try:
            store.close()
        except KstoreError:
            pass


def go_on(path: Path, fs: FailingFs) -> Model:
    """A life in which one operation finds no space: the same store does the step when repeated."""
    model = Model()
    clock = ManualClock()
    with Store(path, background=False, fs=fs, clock=clock, **SETTINGS) as store:
        for step in scripted():
            clock.advance(70_000)
            model.pending = step
            try:
                do(store, step)
            except DiskFullError:
                try:
                    do(store, step)
                except TopicNotFoundError:
                    if step[0] != "delete":
                        raise
                    # The first call decided the deletion.
                    store.run_task("removal")
            model.done()
    return model


def count_operations(path: Path) -> int:
    fs = RecordingFs()
    live(path, FailingFs(fs))
    return len(fs.kinds(of=EVERYTHING))


def _try_all(
    directory: Path, number: int, sticky: bool, sample: int | None, tried: Callable[[str, int], None], seed: int
) -> None:
    total = count_operations(directory / "counted")
    for at in shuffled(range(1, total + 1), seed + number + sticky, sample or total):
        path = directory / "store"
        fs = FailingFs(SYSTEM_FS, Fault(at, errno=number, sticky=sticky, kinds=EVERYTHING))
        model = live(path, fs)
        fs.faults.clear()
        assert fs.failures
        fs.forget_syncs()
        check_store(path, model, fs) if path.exists() else None
        assert not [again for again in fs.second_syncs if again.kind in SYNCS and again.path.endswith(".log")]
        tried("faults", 1)
        shutil.rmtree(path, ignore_errors=True)


def _go_on_after_all(directory: Path, sample: int | None, tried: Callable[[str, int], None], seed: int) -> None:
    counted = RecordingFs()
    go_on(directory / "counted", FailingFs(counted))
    opened = RecordingFs()
    Store(directory / "opened", background=False, fs=opened, **SETTINGS).close()
    total = len(counted.kinds(of=NEED_ROOM))
    for at in shuffled(range(len(opened.kinds(of=NEED_ROOM)), total + 1), seed, sample or total):
        path = directory / "store"
        fs = FailingFs(SYSTEM_FS, Fault(at, errno=errno.ENOSPC, kinds=NEED_ROOM))
        try:
            model = go_on(path, fs)
        except DiskFullError:
            assert fs.failures[0].path.endswith((CLEAN_SHUTDOWN + ".tmp", KSTORE_STATE, "-checkpoint.tmp", ".snapshot"))
            model = Model()  # at the close, which raises
        else:
            check_store(path, model)
        tried("faults", 1)
        shutil.rmtree(path)


CASES = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for-good"])
ERRORS = pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])


@CASES
@ERRORS
@pytest.mark.sampled(1)
def test_a_store_survives_the_failure_of_any_operation(
    number: int, sticky: bool, directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    _try_all(directory, number, sticky, SAMPLE, tried, seed)


@pytest.mark.soak
@CASES
@ERRORS
def test_a_store_survives_the_failure_of_every_operation(
    number: int, sticky: bool, directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    _try_all(directory, number, sticky, None, tried, seed)


@pytest.mark.promise("disk full")
def test_a_store_goes_on_when_there_is_room_again(
    directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    _go_on_after_all(directory, SAMPLE, tried, seed)


@pytest.mark.soak
@pytest.mark.promise("disk full")
def test_a_store_goes_on_after_any_write_that_finds_no_room(
    directory: Path, tried: Callable[[str, int], None], seed: int
) -> None:
    _go_on_after_all(directory, None, tried, seed)
