"""Mirrors of logs with losses: accepted and lost ranges are copied too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.errors import CorruptBatchError, DivergedError
from kstore.files.remote import open_remote
from kstore.log import Log
from tests.support.lives.log_cases import fenced, lost_in_the_middle, offsets, state_of
from tests.support.lives.mirror_parts import run, values


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


# --- what is lost -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["disk", "store"])
@pytest.mark.parametrize("make", [lost_in_the_middle, fenced])
def test_a_copy_honours_what_its_source_has_accepted(
    make: Callable[[Path], Path], to: str, tmp_path: Path, memory: str
) -> None:
    source = make(tmp_path / "source")
    with Log(source) as log:
        log.roll()  # a store gets only sealed segments
    target = str(tmp_path / "copy") if to == "disk" else memory
    assert run(source, target).ok == (make is lost_in_the_middle)
    place = open_remote(target)
    with Log(place.path, read_only=True, fs=place.reading) as copy, pytest.raises(CorruptBatchError):
        list(copy.read())
    with Log(source) as log:
        (gone,) = log.verify().corrupt
        log.accept_loss(gone.first, gone.last)
        expected = offsets(log)
    for _ in range(2):
        assert run(source, target).ok
        with Log(place.path, read_only=True, fs=place.reading) as copy:
            assert offsets(copy) == expected
    if to == "disk":
        with Log(target) as copy:
            assert offsets(copy) == expected
            copy.append(b"more")
    shutil.copytree(source, tmp_path / "other")
    (tmp_path / "other" / "kstore.state").unlink()
    if make is fenced:
        with Log(tmp_path / "other") as other, pytest.raises(CorruptBatchError):
            list(other.read())


def test_a_copy_that_is_replaced_forgets_what_was_accepted(tmp_path: Path) -> None:
    source, target = fenced(tmp_path / "source"), tmp_path / "copy"
    with Log(source) as log:
        log.accept_loss(4, 4)
    assert run(source, target).ok
    with Log(source) as log:
        log.truncate_to(3)
        for number in range(7):
            log.append(b"new %d" % number)
    with pytest.raises(DivergedError):
        run(source, target)
    assert run(source, target, force=True).ok
    assert state_of(target).accepted == ()
    assert values(target) == values(source)


def test_a_copy_keeps_the_losses_below_the_start_of_its_source(tmp_path: Path) -> None:
    source, target = lost_in_the_middle(tmp_path / "source"), tmp_path / "copy"
    with Log(source) as log:
        log.accept_loss(9, 9)
    run(source, target)
    with Log(source) as log:
        log.delete_records(11)
    run(source, target)
    assert (state_of(target).lost, state_of(target).accepted) == (((9, 10),), ((9, 9),))
    run(source, target, delete=True)
    assert (state_of(target).lost, state_of(target).accepted) == ((), ())
