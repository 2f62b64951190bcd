"""A program in which a call is interrupted at one line after another; run by ``test_interrupts``.

    python -m tests.crash.interrupted_life DIRECTORY DURABILITY CALL FIRST STEP BETWEEN

Each time a call on a new log is interrupted at line FIRST, FIRST + STEP, ... of what it runs or, if BETWEEN is "codes",
at a byte code after which CPython serves signals; then the log continues and is reopened. This ends when the call has
no more such places. Prints a line for each interrupt; the last line is their number. It is a program because CPython
3.11 loses count of its stack when trace functions raise.
"""

from __future__ import annotations

import dis
import linecache
import logging
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, cast

import kstore
from kstore.errors import KstoreError, PoisonedError
from kstore.files.local import SYSTEM_FS
from kstore.types import Durability
from tests.crash.log_life import FLUSH, ROLL, TRUNCATE, Life, Step, append, append_batches, transaction
from tests.support.harness.evidence import Hung, Untyped

PACKAGE = str(Path(kstore.__file__).parent)
# A call with more lines, or byte codes, does not end.
LINES_MAX = 40_000
# The byte codes after which CPython 3.11 to 3.13 looks for signals: calls, jumps backwards, the start of a function.
SERVING_CODES = frozenset(
    code
    for name, code in dis.opmap.items()
    if name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD") or "JUMP_BACKWARD_IF" in name
)
# Python code outside the package that its modules and calls run: events, and named tuples.
OTHER_FILES = (threading.__file__, "<string>")

STEPS: dict[str, Step] = {
    "append": append(1),
    "append_many": append(5),
    "append_batches": append_batches(6),
    "abort": transaction(1, 0, aborts=True),
    "roll": ROLL,
    "flush": FLUSH,
    "truncate_to": TRUNCATE,
}
# Each life starts with these, so that there is something to roll, to flush, to abort and to cut.
BEGINNING = (append(), append(), transaction(1, 2, aborts=True), append())


class InterruptAt:
    """Raises ``error`` before the ``number``-th line (from 1) of the package that runs in this thread."""

    def __init__(self, number: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self._left = number
        self._error = error
        self.struck = False
        # The place, to analyse a failure: file and line, and the functions on the stack.
        self.place = ""
        self.functions: list[str] = []

    def __enter__(self) -> InterruptAt:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(PACKAGE) or in_finalizer(frame):
            return None
        previous = 0

        def line(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            nonlocal previous
            if event == "line":
                before, previous = previous, frame.f_lineno
                if not is_between(frame, comes_back=before > previous):
                    if self._left == 1:
                        self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                        self.functions = [one.f_code.co_name for one in ends_of(frame)]
                    self._count_line()
            return line

        return line

    def _count_line(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.struck = True
            raise self._error


class InterruptAfterCode(InterruptAt):
    """Like ``InterruptAt``, at every place where CPython serves a signal, even in the middle of a line.

    A place is left out if CPython serves the signal outside of the handler that the program has there, as 3.13 does at
    some jumps backwards (python/cpython gh-130279).
    """

    def __enter__(self) -> InterruptAfterCode:
        # 3.12 traces byte codes only if a frame wants it as the trace begins.
        sys._getframe().f_trace_opcodes = True
        super().__enter__()
        return self

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        if not file_of(frame).startswith(PACKAGE) or in_finalizer(frame):
            return None
        # A function starts, or a generator goes on: no byte code is traced there. At the start of what the test calls,
        # an interrupt comes before the call.
        if frame.f_back is not None and file_of(frame.f_back).startswith(PACKAGE):
            if self._left == 1:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}, at its start"
                self.functions = [one.f_code.co_name for one in ends_of(frame)]
            self._count_line()
        return self._traced(frame)

    def join(self, frame: FrameType) -> None:
        """Counts the places of calls that began before the trace: this one and its callers."""
        for one in ends_of(frame):
            if file_of(one).startswith(PACKAGE) and not in_finalizer(one):
                self._traced(one)

    def _traced(self, frame: FrameType) -> Callable[..., Any]:
        codes, last = frame.f_code.co_code, -1

        def code(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
            nonlocal last
            if event == "exception":
                last = -1  # a handler follows a raise, not signals
            elif event == "opcode":
                before, last = last, frame.f_lasti
                # CPython serves a signal at the end of ``before``, and its handler gets it; a trace raises at ``last``.
                is_served = before >= 0 and codes[before] in SERVING_CODES
                if is_served and handler_of(frame.f_code, before) == handler_of(frame.f_code, last):
                    if self._left == 1:
                        self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}, code {last}"
                        self.functions = [one.f_code.co_name for one in ends_of(frame)]
                    self._count_line()
            return code

        # In this order: 3.13 traces no byte code of a call whose frame has no trace yet.
        frame.f_trace = code
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return code


class InterruptAtStart(InterruptAt):
    """Like ``InterruptAt``, only as a function begins in a file of the package whose path contains ``part``: for calls
    that wait in a loop, whose byte codes do not end."""

    def __init__(self, number: int, part: str) -> None:
        super().__init__(number)
        self._part = part

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if file.startswith(PACKAGE) and self._part in file and not in_finalizer(frame):
            if self._left == 1:
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}, at its start"
            self._count_line()
        return None


class InterruptWithin(InterruptAfterCode):
    """``InterruptAfterCode``, only in files whose paths contain one of ``parts``: others have their own tests."""

    def __init__(self, number: int, *parts: str) -> None:
        super().__init__(number)
        self._parts = parts

    def _call(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        file = file_of(frame)
        return super()._call(frame, event, argument) if any(part in file for part in self._parts) else None


def file_of(frame: FrameType) -> str:
    """The file of a frame, or of its first caller that is not in ``OTHER_FILES``."""
    files = (one.f_code.co_filename for one in ends_of(frame))
    return next(file for file in files if file not in OTHER_FILES)


@cache
def handler_of(code: CodeType, offset: int) -> int | None:
    """Where a code object continues after an exception at ``offset``."""
    table: Any = dis._parse_exception_table(code)  # type: ignore[attr-defined]  # CPython's own
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)


INTERRUPTS = {"lines": InterruptAt, "codes": InterruptAfterCode}


def ends_of(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether an exception would be lost."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def is_between(frame: FrameType, *, comes_back: bool) -> bool:
    """Whether CPython never serves a signal at a frame's line, although a trace function sees the line.

    Nothing runs at a ``try:`` or a ``pass``, and the block around it does not catch what is raised there; back at a
    ``with`` the block is being left.
    """
    text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return text in ("try:", "pass") or (comes_back and text.startswith("with "))


def interrupt(path: Path, durability: Durability, step: Step, number: int, between: str) -> bool:
    """A life whose ``step`` is interrupted at line ``number``, and which then continues; returns whether that line
    exists."""
    life = Life(path, SYSTEM_FS, durability)
    life.open()
    for before in BEGINNING:
        before.begin(life)
        before.act(life)
        before.done(life)
    step.begin(life)
    with INTERRUPTS[between](number) as interrupted:
        try:
            step.act(life)
        except (KeyboardInterrupt, KstoreError) as error:
            ended: BaseException | None = error
        except TypeError as error:
            # CPython 3.11 raises this if a trace function raises below a compiled module.
            if "'traceback' object is not callable" not in str(error):
                raise
            ended = error
        else:
            ended = None
    if ended is None:
        step.done(life)
    found = life.look()
    end = life.opened.end_offset
    try:
        life.opened.append_many([])
        life.opened.roll()
    except PoisonedError:
        life.close()
        life.open()
        found, end = life.look(), life.opened.end_offset
    life.model.settle(found, end)
    life.append(2)
    life.opened.check()
    life.close()
    life.assert_survived()
    return interrupted.struck


def interrupt_all(directory: Path, durability: Durability, name: str, first: int, step: int, between: str) -> int:
    """Interrupts every ``step``-th line from ``first``; returns their number."""
    for number in range(first, LINES_MAX, step):
        path = directory / str(number)
        try:
            if not interrupt(path, durability, STEPS[name], number, between):
                assert number > 20
                return (number - first) // step
        except AssertionError as error:
            error.add_note(f"interrupted at line {number}")
            raise
        except Exception as error:
            raise Untyped(f"interrupted at line {number}: {error!r}") from error
        shutil.rmtree(path)
        print(number, flush=True)
    raise Hung(f"{name} has more than {LINES_MAX} lines")


def main() -> None:
    directory, durability, name, first, step, between = Path(sys.argv[1]), *sys.argv[2:]
    logging.disable()
    warnings.simplefilter("ignore")
    print(interrupt_all(directory, cast(Durability, durability), name, int(first), int(step), between))


if __name__ == "__main__":
    main()
