"""``async for`` over the records of a log, read in chunks in the store's threads."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, NamedTuple, Self, TypeVar

from kstore.aio.opening import made_by
from kstore.aio.threads import Threads
from kstore.aio.waking import LoopWaiter
from kstore.clock import SYSTEM_CLOCK
from kstore.engine.read.reader import LogReader, RunDecoder, open_reader
from kstore.errors import ClosedError
from kstore.log import Log, reads_of
from kstore.record._runs import Run
from kstore.record.batch import Batch
from kstore.types import CorruptRange, IsolationLevel, OnCorrupt

Item = TypeVar("Item")
Decode = Callable[[Batch, int, int, int], list[Any]]

# How much one trip to a thread brings, in whole batches or runs: bytes as stored in the log, and items.
PIECE_BYTES: Final = 1 << 20
PIECE_ITEMS: Final = 10_000


class Wanted(NamedTuple):
    """What to read: arguments of ``kstore.Log.read``."""

    start: int | None
    stop: int | None
    isolation_level: IsolationLevel
    on_corrupt: OnCorrupt
    follow: bool


class Reader(Generic[Item]):
    """The records of a log; each goes to one of the tasks that iterate.

    A cancel while it waits loses nothing: the next iteration continues with the next record.
    """

    @made_by("log.read()")
    def __init__(
        self,
        log: Log,
        threads: Threads,
        watch: Callable[[LoopWaiter], None],
        decode: Decode,
        wanted: Wanted,
        timeout: float | None,
    ) -> None:
        """``watch`` registers waiters with the store, which wakes them when it closes."""
        waiter = LoopWaiter(SYSTEM_CLOCK, asyncio.get_running_loop())
        watch(waiter)
        self._position = _ReadPosition(log, decode, wanted, waiter)
        self._threads = threads
        self._timeout = timeout
        self._items: Iterator[Item] = iter(())
        # The read in progress in a thread; it survives a cancel of the waiting task.
        self._piece: asyncio.Future[_Piece] | None = None
        self._turn = asyncio.Lock()

    @property
    def corrupt(self) -> list[CorruptRange]:
        """What was skipped as damaged, with ``on_corrupt="skip"``."""
        return self._position.corrupt

    def close(self) -> None:
        """Ends the iteration and its registration for growth. Garbage collection does the same."""
        self._items = iter(())
        self._position.end()

    def __aiter__(self) -> Self:
        return self

    def __del__(self) -> None:
        # Not here: the collector runs in any thread, even in one that holds a lock this needs.
        if hasattr(self, "_position"):  # not if it was made by hand
            self._position.waiter.close_soon()

    async def __anext__(self) -> Item:
        for item in self._items:
            return item
        self._threads.check_fork()
        async with self._turn:
            # Another task may have fetched items since.
            for item in self._items:
                return item
            self._items = iter(await self._next_items())
            return next(self._items)

    async def _next_items(self) -> list[Item]:
        """The next items, at least one. Raises: StopAsyncIteration."""
        position = self._position
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout is None else loop.time() + self._timeout
        while not position.is_ended:
            if self._piece is None:
                position.waiter.begin()
                try:
                    self._piece = self._threads.submit(position.piece)
                except ClosedError:
                    if not position.follows:
                        raise
                    position.end()
                    break
            await asyncio.wait([self._piece])
            piece, self._piece = self._piece, None
            items, seconds = piece.result()
            if items:
                return items
            if seconds <= 0 or position.is_ended:
                continue  # there may be more at once, or never
            if deadline is not None:
                seconds = min(seconds, deadline - loop.time())
                if seconds <= 0:
                    self.close()
                    break
            await position.waiter.told(seconds)
        raise StopAsyncIteration


# Some items; or none, and how many seconds to wait unless the waiter is woken.
_Piece = tuple[list[Any], float]


class _ReadPosition:
    """How far a reader has come. Every call but the constructor runs in a thread, one at a time."""

    def __init__(self, log: Log, decode: Decode, wanted: Wanted, waiter: LoopWaiter) -> None:
        self.follows = wanted.follow
        self.waiter = waiter
        self.corrupt: list[CorruptRange] = []
        self.is_ended = False
        self._log = log
        self._decode = decode
        self._position = wanted.start
        self._stop = wanted.stop
        self._isolation_level: IsolationLevel = wanted.isolation_level
        self._on_corrupt: OnCorrupt = wanted.on_corrupt
        self._runs: LogReader[Any] | None = None
        self._is_begun = False
        self._end = 0
        # Raised after the items that were read before it.
        self._error: Exception | None = None

    def end(self) -> None:
        self.is_ended = True
        self.waiter.close()

    def piece(self) -> _Piece:
        """The next items. Raises: as ``Log.read``."""
        if self._error is not None:
            self.end()
            raise self._error
        items: list[Any] = []
        try:
            seconds = self._fill(items)
        except Exception as error:
            is_end = isinstance(error, ClosedError) and self.follows
            if not items:
                self.end()
                if not is_end:
                    raise
                return items, 0.0
            # A follower of a log that closes has reached its end: the end is looked up again.
            self._error, self._runs = None if is_end else error, None
            return items, 0.0
        if self.is_ended:
            self.waiter.close()
        return items, seconds

    def _fill(self, items: list[Any]) -> float:
        if self.is_ended:
            return 0.0
        if self._runs is None and not self._begin():
            self.waiter.listen([self._log])
            return self.waiter.arm(self._has_more)
        runs, size = self._runs, 0
        assert runs is not None
        for run in runs:
            if isinstance(run, CorruptRange):
                items.append(run)
                continue
            found, run_size = run
            items += found
            size += run_size
            if size >= PIECE_BYTES or len(items) >= PIECE_ITEMS:
                return 0.0
        self.corrupt += runs.corrupt
        self._runs, self._position = None, self._end
        self.is_ended = self._position == self._stop or not self.follows
        return 0.0

    def _begin(self) -> bool:
        """Starts a read up to the present end; returns whether there is anything to read."""
        is_first, self._is_begun = not self._is_begun, True
        end = self._bound()
        if self._position is None:
            self._position = self._log.start_offset
        if not is_first and self._position >= end:
            return False
        self._end = end = max(end, self._position)
        self._runs = open_reader(
            reads_of(self._log),
            self._decode,
            self._position,
            end,
            self._isolation_level,
            self._on_corrupt,
            decode_run=DECODE_RUN[self._decode],
        )
        return True

    def _has_more(self) -> bool:
        return self._position is not None and self._bound() > self._position

    def _bound(self) -> int:
        log = self._log
        end = log.last_stable_offset if self._isolation_level == "read_committed" else log.high_watermark
        return end if self._stop is None else min(end, self._stop)


def decode_records(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> list[Any]:
    return [(list(batch.records(first_offset, stop_offset, limit)), batch.size)]


def decode_values(batch: Batch, first_offset: int, stop_offset: int, limit: int) -> list[Any]:
    return [(list(batch.values(first_offset, stop_offset, limit)), batch.size)]


def _records_of_run(
    run: Run, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None
) -> list[Any]:
    return [(list(run.records(first_offset, stop_offset, tally, aborted)), run.stop - run.start)]


def _values_of_run(
    run: Run, first_offset: int, stop_offset: int, tally: array[int], aborted: array[int] | None
) -> list[Any]:
    return [(list(run.values(first_offset, stop_offset, tally, aborted)), run.stop - run.start)]


DECODE_RUN: dict[Decode, RunDecoder[Any]] = {decode_records: _records_of_run, decode_values: _values_of_run}
