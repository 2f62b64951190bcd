"""Refuses one allocation of this process, whatever asks for it."""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType

# CPython's own; not every build has it, and no type checker knows it.
_testcapi = importlib.import_module("_testcapi")

# CPython keeps freed tuples for reuse; this many are more than a call holds at once.
SPARE_TUPLES = 200
# CPython 3.12 and 3.13 forget one reference too many to a function's code if they cannot make the function, and crash
# when it has been freed (python/cpython gh-122752). What has this count is never freed (PEP 683).
LOSES_CODE = sys.version_info[:2] in ((3, 12), (3, 13))
IMMORTAL = 2**32 - 1
_modules_seen = 0


def refused(act: Callable[[], object], number: int) -> BaseException | None:
    """Calls ``act`` and refuses its allocation ``number``, from 0; returns the error that this caused.

    ``with lock:`` in CPython 3.11 allocates a tuple of three to call the lock's ``__exit__``. If that allocation is
    refused, the lock stays taken, and no program can help it: so such tuples are kept for reuse.
    """
    _prepare()
    _testcapi.set_nomemory(number, number + 1)
    try:
        act()
    except BaseException as error:
        return error
    finally:
        _testcapi.remove_mem_hooks()
    return None


def refused_later(act: Callable[[Callable[[], None]], object], number: int) -> BaseException | None:
    """Calls ``act`` with a function; refuses allocation ``number`` after the call of that function."""
    frames: list[FrameType] = []

    def begin() -> None:
        # CPython before 3.14 loses an exception if it cannot make the object of a frame that the exception leaves
        # (python/cpython gh-131173): so they exist.
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        _testcapi.set_nomemory(number, number + 1)

    _prepare()
    try:
        act(begin)
    except BaseException as error:
        return error
    finally:
        _testcapi.remove_mem_hooks()
        frames.clear()
    return None


def stop() -> None:
    """From here on no allocation is refused."""
    _testcapi.remove_mem_hooks()


def _prepare() -> None:
    if LOSES_CODE:
        _keep_code()
    spare = [(at, at, at) for at in range(SPARE_TUPLES)]
    del spare


def _keep_code() -> None:
    """Keeps the code of nested functions alive. Each call of the outer function makes the inner one from it."""
    global _modules_seen
    if _modules_seen == len(sys.modules):
        return
    _modules_seen = len(sys.modules)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        _keep_within(frame.f_code)
        frame = frame.f_back
    for one in gc.get_objects():
        if isinstance(one, FunctionType):
            _keep_within(one.__code__)


def _keep_within(code: CodeType) -> None:
    for inner in _codes_in(code):
        ctypes.c_uint32.from_address(id(inner)).value = IMMORTAL


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)
