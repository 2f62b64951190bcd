"""The programs of the crash tests: their last line counts, and only one that is silent for long counts as hanging."""

from __future__ import annotations

import os
import selectors
from pathlib import Path

import pytest

from tests.crash.programs import last_line
from tests.support.harness.evidence import Crashed, Hung, Lost

LONG = 120.0


def test_the_last_line_of_a_program_is_its_result() -> None:
    assert last_line("-c", "print(1, flush=True); print(2, flush=True); print(2, 'of', 3)") == "2 of 3"


def test_a_program_may_go_on_for_ever_as_long_as_it_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each wait is only for the next line, which the program prints after the wait has begun."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = f"""
with open({str(pipe)!r}) as file:
    for line in file:
        print(line, flush=True)
"""
    waits: list[float | None] = []
    select = selectors.DefaultSelector.select
    with os.fdopen(os.open(pipe, os.O_RDWR), "w") as file:

        def selecting(selector: selectors.DefaultSelector, timeout: float | None = None) -> object:
            waits.append(timeout)
            if len(waits) <= 3:
                print(len(waits), file=file, flush=True)
            else:
                file.close()
            return select(selector, timeout)

        monkeypatch.setattr(selectors.DefaultSelector, "select", selecting)
        assert last_line("-c", program, silence=LONG) == "3"
    assert waits[:4] == [LONG] * 4


def test_a_program_that_says_nothing_hangs() -> None:
    with pytest.raises(Hung, match=r"nothing for 0\.5 s"):
        last_line("-c", "import threading; threading.Event().wait()", silence=0.5)


@pytest.mark.parametrize(("error", "verdict"), [("Lost('offset 7')", Lost), ("OSError('no')", Crashed)])
def test_a_program_fails_with_its_verdict(error: str, verdict: type[AssertionError]) -> None:
    with pytest.raises(verdict, match="status 1"):
        last_line("-c", f"from tests.support.harness.evidence import Lost\nraise {error}")
