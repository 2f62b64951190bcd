"""Calls of many tasks, combined into one: they share its cost, above all a sync of the disk."""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Final, Generic, NoReturn, TypeVar

from kstore.aio._line import Entry, Line, items_of, loops_of, settle
from kstore.aio.threads import Threads, ended
from kstore.errors import ClosedError, StorageError

Item = TypeVar("Item")
Result = TypeVar("Result")
# Entries, and a result or an exception for each, or one exception for all.
Done = tuple[list[Entry], Sequence[object] | BaseException]

# The largest number of items and bytes in one call; always at least one item.
GATHERED_MAX: Final = 1_000
GATHERED_BYTES_MAX: Final = 4 << 20
# How many bytes of items wait for the next calls. Further tasks keep theirs until there is room.
WAITING_BYTES_MAX: Final = 16 << 20
# The pause, in seconds, after a lack of memory.
PAUSE_SECONDS: Final = 0.01
NOTHING_DONE: Final = "nothing was done"


class Gathering(Generic[Item, Result]):
    """Calls ``do(items)`` in a thread that serves lines, one call at a time, with all items added since the last call.

    ``do`` returns for each item its result, or the exception for its task. The next call begins as soon as one ends: it
    does not wait for the loop, which is woken once with all results. For the tasks of one loop.
    """

    def __init__(
        self, threads: Threads, do: Callable[[list[Item]], Sequence[Result | Exception]], *, is_decided: bool = False
    ) -> None:
        """``is_decided``: an item that was added is done although its task is cancelled."""
        self._do = do
        self._is_decided = is_decided
        self._line = Line(threads.lines, self._serve, WAITING_BYTES_MAX)
        # ``join(item, size)``: its entry, None if it must ``join_later``. The first step of ``add``.
        self.join: Callable[[Item, int], Entry | None] = self._line.join
        # Tasks that wait for room in the line do so in turn. A later one does not overtake.
        self._turn = asyncio.Lock()
        # What ``settle`` has to tell each loop: one, unless a loop has ended and the store goes on in another.
        self._done: dict[asyncio.AbstractEventLoop, deque[Done]] = {}

    async def add(self, item: Item, size: int = 0) -> Result:
        """Does one item, of ``size`` bytes, and returns its result. Raises: ClosedError, ForkedError, ThreadStartError.

        If cancelled before its call starts, the item is left out unless it is decided. Later, the cancellation is
        raised after the call, with a note that the item was done.
        """
        entry = self.join(item, size) or await self.join_later(item, size)
        try:
            result: Result = await entry.future
            return result
        except asyncio.CancelledError as error:
            await self.cancelled(entry, error)

    # --- the other steps of ``add`` ---------------------------------------------------------------------------------

    async def join_later(self, item: Item, size: int) -> Entry:
        """``join``, as soon as there is room."""
        line = self._line
        line.waiting_count += 1
        try:
            async with self._turn:
                while (entry := line.join_first(item, size)) is None:
                    line.freed = freed = asyncio.get_running_loop().create_future()
                    await freed
                return entry
        except asyncio.CancelledError as error:
            error.add_note(NOTHING_DONE)
            raise
        finally:
            line.waiting_count -= 1

    async def cancelled(self, entry: Entry, error: asyncio.CancelledError) -> NoReturn:
        """Raises the cancellation of a task: at once if its item is left out, else when it is done."""
        if not self._is_decided and self._line.withdraw(entry):
            error.add_note(NOTHING_DONE)
            raise error
        if not entry.is_settled:
            # The task awaited the other one, which the cancellation has ended.
            entry.future = asyncio.get_running_loop().create_future()
            error = await ended(entry.future) or error
        failure = entry.outcome if isinstance(entry.outcome, BaseException) else None
        error.add_note("it was done" if failure is None else f"it failed: {failure!r}")
        raise error

    # --- in a thread ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        entries = self._line.take(GATHERED_MAX, GATHERED_BYTES_MAX)
        if not entries:
            return
        outcomes: Sequence[object] | BaseException
        try:
            outcomes = self._do(items_of(entries))
        except Exception as error:
            outcomes = error
        except BaseException as error:
            outcomes = StorageError(errno.EINTR, f"interrupted, perhaps after it was done: {error!r}")
        done = (entries, outcomes)
        while not self._tell(done):
            time.sleep(PAUSE_SECONDS)

    def _tell(self, done: Done) -> bool:
        """Wakes the loop with the outcomes. False after a lack of memory: call it again."""
        try:
            for loop in loops_of(done[0]):
                own = self._done.setdefault(loop, deque())
                own.append(done)
                try:
                    loop.call_soon_threadsafe(settle, loop, own, self._line)
                except RuntimeError:
                    del self._done[loop]  # it is closed, and with it all its tasks
        except MemoryError:
            return False
        return True


def all_but_refused(
    refusal: Callable[[Item], Exception | None],
    do_all: Callable[[Sequence[Item]], Sequence[Result | Exception]],
    items: Sequence[Item],
) -> Sequence[Result | Exception]:
    """The outcome of each item: its refusal or, if it has none, what ``do_all`` of the others returns."""
    outcomes: list[Result | Exception | None] = [refusal(item) for item in items]
    accepted = [item for item, refused in zip(items, outcomes, strict=True) if refused is None]
    if len(accepted) == len(items):
        return do_all(items)
    try:
        done: Iterator[Result | Exception] = iter(do_all(accepted) if accepted else ())
    except Exception as error:
        done = repeat(error)
    return [next(done) if refused is None else refused for refused in outcomes]


def all_or_one_by_one(
    do_all: Callable[[Sequence[Item]], Sequence[Result]], do: Callable[[Item], Result], items: Sequence[Item]
) -> Sequence[Result | Exception]:
    """The outcome of each item, if ``do_all`` does all of them or, with an error about one of them, none."""
    try:
        return do_all(items)
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
