"""Calls of many tasks, combined into one: they share its cost, above all a sync of the disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from kstore.aio.threads import Threads, ended
from kstore.errors import ClosedError, StorageError

__all__ = ["Gathering", "all_or_one_by_one", "one_by_one"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# The largest number of items and bytes in one call; always at least one item.
GATHERED_MAX: Final = 1_000
GATHERED_BYTES_MAX: Final = 4 << 20


class Gathering(Generic[Item, Result]):
    """Calls ``do(items)`` in a thread, one call at a time, with all items added since the last call.

    ``do`` returns for each item its result, or the exception for its task.
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
        # In order of arrival.
        self._waiting: dict[asyncio.Future[Result], Item] = {}
        self._is_busy = False

    async def add(self, item: Item, *, is_decided: bool = False) -> Result:
        """Does one item and returns its result. Raises: ForkedError.

        If cancelled before its call starts, the item is left out unless it ``is_decided``. Later, the cancellation is
        raised after the call, with a note that the item was done.
        """
        self._threads.check_fork()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting[future] = item
        if not self._is_busy:
            # Items that other tasks add in this turn of the loop join it.
            loop.call_soon(self._begin)
            self._is_busy = True
        cancelled = None
        if not is_decided:
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                if future in self._waiting:
                    del self._waiting[future]
                    error.add_note("nothing was done")
                    raise
                cancelled = error
        cancelled = await ended(future) or cancelled
        if cancelled is None:
            return future.result()
        failure = future.exception()
        cancelled.add_note("it was done" if failure is None else f"it failed: {failure!r}")
        raise cancelled

    def _begin(self) -> None:
        futures: list[asyncio.Future[Result]] = []
        try:
            if self._waiting:
                futures = self._next()
                items = [self._waiting.pop(future) for future in futures]
                doing = self._threads.submit(partial(self._do, items))
                doing.add_done_callback(partial(self._end, futures))
            else:
                self._is_busy = False
        except BaseException as error:
            self._give_up(futures, error)
            if not isinstance(error, Exception):
                raise

    def _give_up(self, futures: Sequence[asyncio.Future[Result]], error: BaseException) -> None:
        """No task waits for a call that could not be started, or that an interrupt came beside."""
        self._is_busy = False
        rest, self._waiting = [*futures, *self._waiting], {}
        if not isinstance(error, Exception):
            error = StorageError(errno.EINTR, f"interrupted, perhaps after it was done: {error!r}")
        _settle(rest, [error] * len(rest))

    def _next(self) -> list[asyncio.Future[Result]]:
        """The waiting items that go next."""
        size = 0
        futures: list[asyncio.Future[Result]] = []
        for future, item in islice(self._waiting.items(), GATHERED_MAX):
            size += self._size_of(item)
            if futures and size > GATHERED_BYTES_MAX:
                break
            futures.append(future)
        return futures

    def _end(self, futures: Sequence[asyncio.Future[Result]], done: asyncio.Future[Any]) -> None:
        try:
            _settle_as(futures, done)
        except BaseException:
            _settle_as(futures, done)  # what an interrupt has left to do
            raise
        finally:
            try:
                self._begin()
            except BaseException as error:  # before its own handler: the waiting tasks learn of it too
                self._give_up((), error)
                raise


def _settle_as(futures: Sequence[asyncio.Future[Any]], done: asyncio.Future[Any]) -> None:
    error = asyncio.CancelledError() if done.cancelled() else done.exception()
    _settle(futures, done.result() if error is None else [error] * len(futures))


def _settle(futures: Sequence[asyncio.Future[Any]], results: Sequence[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():
            continue
        if isinstance(result, BaseException):
            future.set_exception(result)
            future.exception()  # the waiting task may be gone
        else:
            future.set_result(result)


def all_or_one_by_one(
    do_all: Callable[[Sequence[Item]], Sequence[Result]], do: Callable[[Item], Result], items: Sequence[Item]
) -> list[Result | Exception]:
    """The outcome of each item, if ``do_all`` does all of them or, with an error about one of them, none."""
    try:
        return list(do_all(items))
    except (StorageError, ClosedError, MemoryError):
        raise  # perhaps it has done them: a lack of memory may come after a write
    except Exception:
        if len(items) == 1:
            raise
    # One item's error does not affect the others.
    return one_by_one(do, items)


def one_by_one(do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result | Exception]:
    """The outcome of each item, if all of them together failed."""
    results: list[Result | Exception] = []
    for item in items:
        try:
            results.append(do(item))
        except Exception as error:
            results.append(error)
    return results
