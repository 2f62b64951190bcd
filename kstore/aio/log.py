"""``Log`` for tasks: appends, which are combined, and reads, by ``async for``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, cast

from kstore.aio._line import are_bytes
from kstore.aio.gathering import Gathering, all_but_refused, all_or_one_by_one
from kstore.aio.opening import made_by
from kstore.aio.reading import Reader, Wanted, decode_records, decode_values
from kstore.aio.threads import Threads, in_thread
from kstore.aio.waking import LoopWaiter
from kstore.clock import SYSTEM_CLOCK
from kstore.engine.append.appends import Appends, Headers
from kstore.log import Log as SyncLog
from kstore.log import writer_of
from kstore.record._codec import Record
from kstore.types import IsolationLevel, OnCorrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Append(NamedTuple):
    """A record that is more than a small value. ``is_certain``: the log accepts it."""

    value: Buffer | None
    key: Buffer | None
    headers: Headers
    timestamp: int | datetime | None
    is_certain: bool


def _kept(headers: Headers | None) -> Headers:
    """``headers`` that can be read twice: a record is checked before it is appended."""
    return headers if isinstance(headers, Mapping) else tuple(headers or ())


def _size_of(field: object) -> int:
    # The log reports an invalid one.
    return len(field) if isinstance(field, bytes) else 0


class _ReadOnly:
    """The limits of a log that accepts nothing."""

    certain_bytes = -1


_READ_ONLY = _ReadOnly()


class Log:
    """A partition of an ``aio.Store``: what ``kstore.Log`` reads and appends, for tasks.

    For the methods it lacks, use ``log.sync``: ``await store.run(log.sync.delete_records, 42)``.
    """

    @made_by("await store.log(topic)")
    def __init__(self, log: SyncLog, threads: Threads, watch: Callable[[LoopWaiter], None]) -> None:
        """See ``Store.log``."""
        self.sync = log
        self._threads = threads
        self._in_thread = threads.run
        self._watch = watch
        self._limits: Appends | _ReadOnly = _READ_ONLY if log.read_only else writer_of(log).appends
        self._appends: Gathering[bytes | _Append, int] = Gathering(threads, self._append_all)

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    # --- append -----------------------------------------------------------------------------------------------------

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """Appends a record; returns its offset. Appends of other tasks join it and share its sync.

        On return it is as durable as the log's setting says. If cancelled, a note of the CancelledError says whether it
        was appended. See ``kstore.Log.append``. Raises: as that.
        """
        item: bytes | _Append
        if key is None and not headers and timestamp is None and type(value) is bytes:
            size = len(value)
            item = value if size <= self._limits.certain_bytes else _Append(value, None, (), None, False)
        else:
            size = _size_of(value) + _size_of(key)
            is_plain = type(value) is bytes and not headers and timestamp is None and type(key) is bytes
            is_certain = is_plain and size <= self._limits.certain_bytes
            item = _Append(value, key, _kept(headers), timestamp, is_certain)
        # As ``Gathering.add``, without another coroutine for each record.
        appends = self._appends
        entry = appends.join(item, size) or await appends.join_later(item, size)
        try:
            offset: int = await entry.future
            return offset
        except asyncio.CancelledError as error:
            await appends.cancelled(entry, error)

    append_many = in_thread(SyncLog.append_many)

    def _append_all(self, items: list[bytes | _Append]) -> Sequence[int | Exception]:
        if are_bytes(items):
            values = cast(list[bytes], items)
            if len(values) == 1:
                return [self.sync.append(values[0])]
            return all_or_one_by_one(self._append_values, self.sync.append, values)
        appends = [item if isinstance(item, _Append) else _Append(item, None, (), None, True) for item in items]
        return all_but_refused(
            self._refusal, lambda rest: all_or_one_by_one(self._append_at_once, self._append_one, rest), appends
        )

    def _refusal(self, append: _Append) -> Exception | None:
        """Why the log does not accept a record, which must not affect the others."""
        if append.is_certain:
            return None
        try:
            writer_of(self.sync).appends.check(append.value, append.key, append.timestamp, append.headers)
        except Exception as error:
            return error
        return None

    def _append_values(self, values: Sequence[bytes]) -> Sequence[int]:
        info = self.sync.append_many(values)
        return range(info.first_offset, info.last_offset + 1)

    def _append_at_once(self, appends: Sequence[_Append]) -> Sequence[int]:
        timestamps: list[int | datetime] | None = None
        if any(append.timestamp is not None for append in appends):
            now_ms = SYSTEM_CLOCK.now_ms()
            timestamps = [now_ms if append.timestamp is None else append.timestamp for append in appends]
        info = self.sync.append_many(
            [append.value for append in appends],
            keys=[append.key for append in appends] if any(append.key is not None for append in appends) else None,
            timestamps=timestamps,
            headers=[append.headers for append in appends] if any(append.headers for append in appends) else None,
        )
        return range(info.first_offset, info.last_offset + 1)

    def _append_one(self, append: _Append) -> int:
        return self.sync.append(append.value, key=append.key, headers=append.headers, timestamp=append.timestamp)

    flush = in_thread(SyncLog.flush)
    # --- read -------------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self.sync.start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.sync.end_offset

    async def high_watermark(self) -> int:
        """Where reads stop: below it nothing can vanish. Raises: StorageError."""
        return await self._in_thread(lambda: self.sync.high_watermark)

    async def last_stable_offset(self) -> int:
        """Where "read_committed" stops. Raises: StorageError."""
        return await self._in_thread(lambda: self.sync.last_stable_offset)

    offset_for_time = in_thread(SyncLog.offset_for_time)
    get = in_thread(SyncLog.get)
    tail = in_thread(SyncLog.tail)

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reader[Record]:
        """``Log.read``, for ``async for``: the same arguments, records and errors; iterating raises the errors."""
        wanted = Wanted(start, stop, isolation_level, on_corrupt, follow)
        return Reader(self.sync, self._threads, self._watch, decode_records, wanted, timeout)

    def read_values(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        follow: bool = False,
        timeout: float | None = None,
    ) -> Reader[bytes | None]:
        """Like ``read``, for the values only."""
        wanted = Wanted(start, stop, isolation_level, on_corrupt, follow)
        return Reader(self.sync, self._threads, self._watch, decode_values, wanted, timeout)
