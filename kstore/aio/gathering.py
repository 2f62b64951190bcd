"""Calls of many tasks, made into one: what they share is paid once, a sync of the disk above all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from kstore.aio.threads import Threads, to_the_end

__all__ = ["Gathering", "one_by_one"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# So many go together at most, and so many bytes of them, but one always.
GATHERED_MAX: Final = 1_000
GATHERED_BYTES_MAX: Final = 4 << 20


class Gathering(Generic[Item, Result]):
    """Does ``do(items)`` in a thread, one call at a time, with all that came meanwhile.

    ``do`` returns for each item its result, or the exception that its task gets.
    """

    def __init__(
        self,
        threads: Threads,
        do: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        size_of: Callable[[Item], int] = lambda _: 0,
    ) -> None:
        self._threads = threads
        self._do = do
        self._size_of = size_of
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._is_busy = False

    async def add(self, item: Item, *, is_decided: bool = False) -> Result:
        """The result of one item. Cancelled before its call has begun it is left out, unless it ``is_decided``; later,
        the cancellation is raised when the call has ended, with a note that it was done."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        entry = item, future
        self._waiting.append(entry)
        if not self._is_busy:
            self._is_busy = True
            # What other tasks add in this turn of the loop goes with it.
            asyncio.get_running_loop().call_soon(self._begin)
        try:
            if is_decided:
                return await to_the_end(future)
            await asyncio.wait([future])
            return future.result()
        except asyncio.CancelledError as error:
            if entry in self._waiting:
                self._waiting.remove(entry)
                future.cancel()
                error.add_note("nothing was done")
            else:
                await _ended(future)
                failure = future.exception()
                error.add_note("it was done" if failure is None else f"it failed: {failure!r}")
            raise

    def _begin(self) -> None:
        count = self._count()
        entries, self._waiting = self._waiting[:count], self._waiting[count:]
        if not entries:
            self._is_busy = False
            return
        futures = [future for _, future in entries]
        try:
            doing = self._threads.submit(partial(self._do, [item for item, _ in entries]))
        except Exception as error:
            _settle(futures, [error] * len(futures))
            self._begin()
            return
        doing.add_done_callback(partial(self._end, futures))

    def _count(self) -> int:
        """How many of those that wait go next."""
        size = 0
        for count, (item, _) in enumerate(self._waiting[:GATHERED_MAX]):
            size += self._size_of(item)
            if count and size > GATHERED_BYTES_MAX:
                return count
        return GATHERED_MAX

    def _end(self, futures: Sequence[asyncio.Future[Result]], done: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        _settle(futures, done.result() if error is None else [error] * len(futures))
        self._begin()


async def _ended(future: asyncio.Future[Any]) -> None:
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            pass  # one is raised when it has ended


def _settle(futures: Sequence[asyncio.Future[Any]], results: Sequence[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
            future.exception()  # whoever waits may be gone
        else:
            future.set_result(result)


def one_by_one(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Exception]:
    """What becomes of each item, where all of them together could not be done."""
    results: list[Result | Exception] = []
    for item in items:
        try:
            results.append(do(item))
        except Exception as error:
            results.append(error)
    return results
