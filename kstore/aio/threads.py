"""The few threads that do a store's blocking work, so that none of it runs on the loop's thread.

Two kinds: a pool for calls, and servers, which write what many tasks leave in lines (``_line``). One busy log needs one
server. A further one starts when a line is ready while the others wait for their disks.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from kstore.aio._line import Lines, Server
from kstore.errors import ClosedError, ThreadStartError
from kstore.files.lifetime import ForkGuard
from kstore.files.threads import start_thread

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# How many blocking calls run in parallel; further ones wait for their turn.
THREADS: Final = 4
# The pause of a server after a failure, in seconds.
FAILED_SECONDS: Final = 0.01


class Threads:
    """A bounded pool. Work that starts in it is never left half done: a cancelled task waits for its end."""

    def __init__(self, count: int = THREADS) -> None:
        self._guard = ForkGuard()
        self._pool = ThreadPoolExecutor(count, "kstore-aio")
        self.lines: Lines = Lines(self._guard, start_server, count)
        self._is_closed = False

    @property
    def closed(self) -> bool:
        return self._is_closed

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that made them: they, and their waiters, belong to the parent."""
        return self._guard.forked

    def check(self) -> None:
        """Raises: ClosedError, ForkedError."""
        if self._is_closed:
            raise ClosedError("the store is closed")
        self.check_fork()

    def check_fork(self) -> None:
        """Called before waiting for work that a task of the parent has started. Raises: ForkedError."""
        if self._guard.forked:
            self._guard.check("the store")

    def submit(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        """Starts a call; its exception goes to the future, and is lost if that is never examined.

        Raises: ClosedError, ForkedError; ThreadStartError, and then the call is not made later either.
        """
        self.check()
        # Not the pool's future: the pool keeps a call queued even if it cannot start a thread for it.
        outcome: Future[Result] = Future()
        try:
            self._pool.submit(_do, outcome, call)
        except RuntimeError as error:
            if outcome.cancel():
                self.check()
                raise ThreadStartError(errno.EAGAIN, f"a thread cannot be started: {error}") from error
        future = asyncio.wrap_future(outcome)
        future.add_done_callback(_look)
        return future

    async def run(self, call: Callable[[], Result]) -> Result:
        """What ``call`` returns, or raises. A cancellation is raised after the call has ended."""
        return await to_the_end(self.submit(call))

    async def made(self, make: Callable[[], Result], close: Callable[[Result], object]) -> Result:
        """Like ``run``, for a result that must be closed: after a cancellation nothing else would close it."""
        future = self.submit(make)
        try:
            return await to_the_end(future)
        except asyncio.CancelledError:
            if future.exception() is None and not self._is_closed:
                await self.run(lambda: close(future.result()))
            raise

    def close(self) -> None:
        """Takes no more calls; the threads end after the started ones."""
        self._is_closed = True
        if not self._guard.forked:
            self.lines.close()
            self._pool.shutdown(wait=False)

    def __del__(self) -> None:
        lines = getattr(self, "lines", None)
        if lines is not None and not self._guard.forked:
            lines.close()  # as the pool's, its threads end with it


def start_server(lines: Lines) -> None:
    """Starts one more thread that serves lines. Raises: ThreadStartError."""
    server = Server()
    try:
        lines.begin_start(server)
        start_thread(_serve, lines, server, name="kstore-aio-writer")
    except BaseException:
        lines.give_up(server)
        raise


def _serve(lines: Lines, server: Server) -> None:
    """The work of a server. It refers to nothing that would keep a dropped store alive."""
    if not lines.begin(server):
        return
    while lines.next(server):
        try:
            server.serve()
        except BaseException:
            # The thread must not die: a lack of memory ends, and what waits is still in the line.
            time.sleep(FAILED_SECONDS)


async def ended(future: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Waits until ``future`` is done; returns the cancellation that arrived during the wait."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def to_the_end(future: asyncio.Future[Result]) -> Result:
    """Waits for ``future`` and returns its result, or raises a cancellation that arrived during the wait.

    A note of the CancelledError gives the failure, if any.
    """
    cancelled = await ended(future)
    if cancelled is None:
        return future.result()
    if not future.cancelled() and (failure := future.exception()) is not None:
        cancelled.add_note(f"it failed: {failure!r}")
    raise cancelled


async def whole(work: Coroutine[Any, Any, Result]) -> Result:
    """Like ``to_the_end``, for several steps. They all run, even if the loop ends and cancels each of its tasks."""
    return await to_the_end(_Whole(work, loop=asyncio.get_running_loop()))


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


class _Whole(asyncio.Task[Result]):
    """A task that cannot be cancelled."""

    def cancel(self, msg: Any | None = None) -> bool:
        return False


def _do(outcome: Future[Result], call: Callable[[], Result]) -> None:
    if outcome.set_running_or_notify_cancel():
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)


def _look(future: asyncio.Future[Result]) -> None:
    if not future.cancelled():
        future.exception()
