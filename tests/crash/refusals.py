"""Refuses one allocation of this process, whatever asks for it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

# CPython's own; not every build has it, and no type checker knows it.
_testcapi = importlib.import_module("_testcapi")

# CPython keeps freed tuples for reuse; this many are more than a call holds at once.
SPARE_TUPLES = 200


def refused(act: Callable[[], object], number: int) -> BaseException | None:
    """Calls ``act`` and refuses its allocation ``number``, from 0; returns the error that this caused.

    ``with lock:`` in CPython 3.11 allocates a tuple of three to call the lock's ``__exit__``. If that allocation is
    refused, the lock stays taken, and no program can help it: so such tuples are kept for reuse.
    """
    spare = [(number, number, at) for at in range(SPARE_TUPLES)]
    del spare
    _testcapi.set_nomemory(number, number + 1)
    try:
        act()
    except BaseException as error:
        return error
    finally:
        _testcapi.remove_mem_hooks()
    return None
