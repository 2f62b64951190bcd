"""A reader keeps nothing that it has returned, and nothing at all once it is dropped."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstore.engine.read.reader import LogReader
from kstore.log import Log


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Without the garbage collector, which would hide a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("method", ["read", "read_values"])
@pytest.mark.usefixtures("uncollected")
def test_a_forgotten_reader_goes_at_once(tmp_path: Path, method: str) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many([b"x"] * 10)
        for _ in range(3):
            next(getattr(log, method)(5))
        assert not [one for one in gc.get_objects() if isinstance(one, LogReader)]


@pytest.mark.usefixtures("uncollected")
def test_the_first_batch_is_let_go_when_the_next_one_is_read(tmp_path: Path) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append_many([b"first of all"])
        log.append_many([b"second"])
        values = log.read_values()
        first = next(values)
        next(values)
        # This name, and the counting call.
        assert sys.getrefcount(first) == 2
