"""``in_thread``: a method for tasks, made of one that blocks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_thread(
    method: Callable[Concatenate[Any, Arguments], Result],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]:
    """``flush = in_thread(SyncLog.flush)`` awaits what ``flush`` of ``self.sync`` returns or raises, in a thread.

    The arguments and the documentation are those of ``method``. Its class has ``sync``, and ``_in_thread``, which runs
    a call in one of its threads. If cancelled, the call runs to its end.
    """
    name = method.__name__

    @wraps(method)
    async def run(self: Any, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        found: Result = await self._in_thread(partial(getattr(self.sync, name), *arguments, **options))
        return found

    run.__doc__ = f"{method.__doc__}\n\n        If cancelled, it runs to its end."
    return run
