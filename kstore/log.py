"""``Log``: one partition, an append-only sequence of records in a directory of segments.

A ``Log`` has a writer, or a read-only view, and an object that reads from either. Its methods delegate to them and to
the other parts in ``engine/``, whose ``__init__`` maps them; columns, compaction and shared logs load on first use.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from kstore.archive.places import log_to_read
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.config import MAP_BYTES, LogConfig
from kstore.engine.append._path import AppendPath, single_first
from kstore.engine.append.appends import Headers
from kstore.engine.index_repairs import IndexRepairs
from kstore.engine.over.check import accept_loss, check_batches, check_invariants
from kstore.engine.over.foreign import append_batches
from kstore.engine.over.transactions import abort_transaction, end_transaction, open_transactions, producers
from kstore.engine.read.describe import described, log_html, log_metrics
from kstore.engine.read.fetch import FETCH_BYTES, FetchSlice, fetch
from kstore.engine.read.lookup import CHECKED_BYTES_MAX, record_of
from kstore.engine.read.reader import LogReader, last_records, open_reader, records_of, values_of
from kstore.engine.read.reads import LogReads
from kstore.engine.read.times import TimePoint, offset_for_time
from kstore.engine.source import LogSource
from kstore.engine.view import LogView
from kstore.engine.writer import LogWriter, StoreTies, open_writer
from kstore.errors import ConfigError, ReadOnlyError, not_picklable
from kstore.files.fs import FileSystem
from kstore.files.handles import HandleCache
from kstore.files.lifetime import ForkGuard
from kstore.files.local import SYSTEM_FS
from kstore.files.remote import local_path
from kstore.metrics import LogCounters, MetricValue
from kstore.record._codec import Record
from kstore.record._runs import CheckedBatches, CheckedMemory, Run
from kstore.rules.arguments import offset_number, one_of
from kstore.rules.deprecated import Deprecated
from kstore.segment import SegmentContext
from kstore.types import (
    DURABILITIES,
    AppendInfo,
    Durability,
    IsolationLevel,
    OnCorrupt,
    OpenTransaction,
    ProducerInfo,
    RecoveryReport,
    RetentionResult,
)

__all__ = ["Log", "TimePoint"]

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from typing_extensions import Buffer

    from kstore.compaction.blocks import CompactionReport
    from kstore.engine.read.columns import ArrowBatches, ArrowOptions, ReadOptions
    from kstore.settings import LogSettings

    class LogArguments(LogSettings, total=False):
        """The settings, and what only a store and tests pass: no part of the signature, so that no user meets it."""

        fs: FileSystem
        clock: Clock
        _ties: StoreTies | None
        _counters: LogCounters | None
        _config: LogConfig | None
        _checked: CheckedMemory | None
        # An end that a read-only log had, which is as far as it will be read.
        _known_end: int | None


class Log:
    """An open log. Thread-safe: any thread may append and read; an iterator is for one thread.

    ``with Log(path) as log:`` closes it, but not a store's. Without a close nothing acknowledged is lost.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        shared: bool = False,
        durability: Durability = "sync",
        **settings: Unpack[LogArguments],
    ) -> None:
        """Opens the log in directory ``path``; creates it if the path is missing or an empty directory.

        Args:
            path: the directory of one partition, kstore's or a Kafka broker's.
            read_only: take no lock and never write; the log must exist. Then ``path`` may be a URL or in a backup.
            shared: write alongside other processes that share it too. Linux only, on a local file system (else
                StorageError); all with the same durability. Such a log is not compacted, and accepts no transactions
                (SharedLogError).
            durability: when an append returns. "sync": its bytes are on disk. "interval": they are written, and a
                thread syncs every ``flush_ms``. "os": they are written, as with Kafka. With the last two, a thread
                syncs each segment when it is sealed.
            settings: Kafka's topic settings in snake_case (see ``LogConfig``).

        Raises: LogNotFoundError, NotALogError, LockedError, ConfigError, ReadOnlyError, DiskFullError, StorageError.
        Damage does not raise here: ``recovery`` reports it.
        """
        ties, counters, config = (
            settings.pop("_ties", None),
            settings.pop("_counters", None),
            settings.pop("_config", None),
        )
        memory = settings.pop("_checked", None) or CheckedMemory(CHECKED_BYTES_MAX)
        known_end = settings.pop("_known_end", None)
        fs, clock = settings.pop("fs", SYSTEM_FS), settings.pop("clock", SYSTEM_CLOCK)
        self._closed, self._is_of_store = True, config is not None  # closed until it is open
        self._guard = ForkGuard()
        self._single: AppendPath | None = None
        self._writer: LogWriter | None = None
        self.path: Path = Path(path)  # until it is known where that leads
        fs, self.path = log_to_read(path, fs) if read_only else (fs, local_path(path, "a log"))
        one_of("durability", durability, DURABILITIES)
        if shared and read_only:
            raise ConfigError("shared is for writers: a log that is read_only needs no lock")
        config = config or LogConfig.from_settings(**settings)
        handles, counters, repairs = HandleCache(config.open_files_max), counters or LogCounters(), IndexRepairs()
        checked = CheckedBatches(memory)
        context = SegmentContext(fs, self.path.absolute(), config, clock, handles, counters, repairs, checked)
        if read_only:
            self._source: LogSource = LogView(context, known_end=known_end)
        elif shared:
            from kstore.shared.opening import open_shared_writer

            self._source = self._writer = open_shared_writer(context, durability, ties)
        else:
            self._source = self._writer = open_writer(context, durability, ties)
        try:
            self._reads = LogReads(self._source, self._guard, self.path)
            repairs.serve(self._source)
        except BaseException:
            self._source.close()  # or its lock would last as long as the exception
            raise
        self._closed = False
        if self._writer is not None:
            self._single = self._writer.appends.path

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found and did."""
        return self._source.report

    @property
    def read_only(self) -> bool:
        return self._writer is None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def start_offset(self) -> int:
        """The first offset that can be read."""
        return self._reads.source.ends.start_offset

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._reads.refreshed().ends.end_offset

    @property
    def high_watermark(self) -> int:
        """Where reads stop: records that may still vanish are not read."""
        return self._reads.refreshed().ends.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Where "read_committed" stops: the first offset of the oldest open transaction, or the high watermark."""
        return self._reads.refreshed().last_stable_offset()

    def __repr__(self) -> str:
        return described(getattr(self, "_source", None), str(self.path), closed=self._closed)

    def _repr_html_(self) -> str:
        return log_html(getattr(self, "_source", None), str(self.path), closed=self._closed)

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Log", "open it in the other process, with read_only=True or shared=True")

    # --- append -----------------------------------------------------------------------------------------------------

    @single_first
    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> int:
        """Appends one record; returns its offset. On return it is as durable as the log's setting says.

        ``headers`` are a mapping or pairs of str to bytes or None; ``timestamp`` is ms since the epoch or an aware
        datetime, now by default. Raises: as ``append_many``.
        """
        keys, times = None if key is None else (key,), None if timestamp is None else (timestamp,)
        return writer_of(self).appends.append_many((value,), keys, times, (headers,) if headers else None).first_offset

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        timestamps: Iterable[int | datetime] | None = None,
        headers: Iterable[Headers | None] | None = None,
    ) -> AppendInfo:
        """Appends records from parallel iterables, in batches of at most ``max_message_bytes``.

        A failed call leaves none of them; a crash leaves a prefix of whole batches. A power cut within the write of
        several batches may also leave later ones after a damaged one, which is fenced: see ``CorruptBatchError``. On
        return they are as durable as the log's setting says.

        Raises: TypeError, ValueError (sequences of different length), RecordTooLargeError, InvalidTimestampError,
        InvalidRecordError (a compacted log needs keys), DiskFullError, PoisonedError, ClosedError, ReadOnlyError,
        ForkedError, StorageError.
        """
        return writer_of(self).appends.append_many(values, keys, timestamps, headers)

    def append_batches(self, buffer: bytes | bytearray | memoryview, *, assign_offsets: bool = True) -> AppendInfo:
        """Appends foreign batches: validated as Kafka's LogValidator does, v0 and v1 rebuilt as v2.

        Trailing bytes that are not a whole batch are dropped. With ``assign_offsets`` False the batches keep their
        offsets, which must rise and be at or above the log's end (replication, restore); nothing is rebuilt then. All
        or nothing, and as durable as ``append_many``.

        A producer's batches are checked by epoch and sequence, unless they keep their offsets. A repetition of one of
        the producer's last five batches is not appended again: the result then ``is_duplicate``, with the old offsets.
        A log forgets a producer that has been idle for ``producer_id_expiration_ms``, and with it the epoch that fenced
        it: a later transactional batch then begins a transaction that stays open. A caller that appends such batches
        must first ask the store's coordinator, as ``Store.producer`` does.

        Raises: CorruptBatchError, InvalidRecordError (``record_errors`` lists each), InvalidTimestampError,
        InvalidOffsetError, RecordTooLargeError, UnsupportedCodecError; OutOfOrderSequenceError,
        DuplicateSequenceError, InvalidProducerEpochError, InvalidTransactionStateError; and as ``append_many``.
        """
        return append_batches(writer_of(self), buffer, assign_offsets=assign_offsets)

    def append_arrow(self, data: Any) -> AppendInfo:
        """Appends the rows of ``data``: a ``pyarrow.RecordBatch`` or ``Table``, or an object with Arrow's C interface.

        Columns: ``value`` (binary or string), and optionally ``key``, ``timestamp`` (a timestamp, or ms as whole
        numbers; null is now) and ``headers`` (a list of structs of key and value, or a map). Columns that an append
        assigns (offset, timestampType, topic, partition) are ignored. All or nothing, as ``append_many``.

        Raises: MissingExtraError without pyarrow; InvalidRecordError for other columns; and as ``append_many``.
        """
        from kstore.engine.read.columns import ArrowRows

        return ArrowRows(data, self._reads.source.context.clock.now_ms).append_to(writer_of(self).appends)

    # --- read -------------------------------------------------------------------------------------------------------

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        follow: bool = False,
        timeout: float | None = None,
    ) -> LogReader[Record]:
        """An iterator over the records from offset ``start`` (default: the first) to ``stop`` (exclusive).

        It ends at the high watermark of the moment it gets there, or with ``follow`` waits there for more:
        indefinitely, or until ``timeout`` seconds bring nothing. Control records are left out.

        Args:
            isolation_level: "read_committed" leaves out aborted transactions and stops at the last stable offset.
            on_corrupt: at a damaged batch, and at durable records that the disk has lost, "raise" a CorruptBatchError;
                "skip" them, and list them in the iterator's ``corrupt``; or "yield" a ``CorruptRange`` in their place.
                Offsets that ``Log.accept_loss`` has accepted are skipped.

        Raises: OffsetOutOfRangeError at once; CorruptBatchError, StorageError while it runs.
        """
        return open_reader(
            self._reads, records_of, start, stop, isolation_level, on_corrupt, follow, timeout, decode_run=Run.records
        )

    def read_values(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        on_corrupt: OnCorrupt = "raise",
        follow: bool = False,
        timeout: float | None = None,
    ) -> LogReader[bytes | None]:
        """Like ``read``, for the values only: the fast path for payloads."""
        return open_reader(
            self._reads, values_of, start, stop, isolation_level, on_corrupt, follow, timeout, decode_run=Run.values
        )

    def get(self, offset: int) -> Record | None:
        """The record with ``offset``, in much less time than a ``read`` takes to find it.

        None if there is no such record though the offset is in the log: compaction has removed it, it is the marker of
        a transaction, or its loss was accepted (``Log.accept_loss``). Records of aborted transactions are returned, as
        by "read_uncommitted". The CRC of its batch is checked, and the structure of this record: unlike ``read`` it
        does not look at the other records of the batch. What was checked is remembered: another lookup in that batch
        reads and checks the part that holds its record.

        Raises: OffsetOutOfRangeError outside [``start_offset``, ``high_watermark``); CorruptBatchError if its batch is
        damaged, or the disk has lost it; ClosedError, ForkedError, StorageError.
        """
        offset = offset_number("offset", offset)
        record = record_of(self._reads, offset)
        return record if record is not None else next(self.read(offset, offset + 1), None)

    def __getitem__(self, offset: int) -> Record | None:
        """``get(offset)``."""
        return self.get(offset)

    def __iter__(self) -> Iterator[Record]:
        """All records, as ``read()`` gives them."""
        return iter(self.read())

    __contains__ = None  # else ``in`` would read the whole log

    def tail(self, count: int = 10, *, isolation_level: IsolationLevel = "read_uncommitted") -> list[Record]:
        """The last ``count`` records, or all if there are fewer; it reads little more. See ``read``."""
        return last_records(self._reads, count, isolation_level)

    def fetch(
        self,
        offset: int,
        max_bytes: int = FETCH_BYTES,
        *,
        isolation_level: IsolationLevel = "read_uncommitted",
        checked: bool = False,
    ) -> FetchSlice:
        """A slice of one segment that begins with the batch of ``offset``, named but not read.

        At most ``max_bytes`` bytes, but always the whole first batch; empty at the high watermark. ``checked``: it ends
        before the first damaged batch. Its batches are read and checked, once by this process, so that it can be sent
        to a receiver that checks nothing.

        Raises: OffsetOutOfRangeError, CorruptBatchError if the batch of ``offset`` is damaged, or lost, and that is not
        accepted; StorageError.
        """
        offset, max_bytes = offset_number("offset", offset), offset_number("max_bytes", max_bytes)
        return fetch(self._reads, offset, max_bytes, isolation_level, checked=checked)

    def offset_for_time(self, when: TimePoint) -> int | None:
        """The first offset whose record is at or after ``when``; None if there is none.

        ``when`` is ms since the epoch, an aware ``datetime``, or "earliest" (the log's start), "latest" (the high
        watermark), "max_timestamp" (the record with the greatest timestamp). Transactions' markers count, as in Kafka.
        """
        return offset_for_time(self._reads.source, self._reads.times, when)

    def refresh(self) -> None:
        """Looks for what another process has done to the log; a read that comes to its end does so by itself."""
        self._reads.refreshed()

    # --- read as columns: pyarrow is loaded by the first call -------------------------------------------------------

    def to_arrow(self, start: int | None = None, stop: int | None = None, **options: Unpack[ReadOptions]) -> pa.Table:
        """The records from offset ``start`` (default: the first) to ``stop`` (exclusive) as a ``pyarrow.Table``.

        It ends at the high watermark. Control records are left out.

        Args:
            columns: which of key, value, offset, timestamp, timestampType, headers; default: all. Only these are built.
            isolation_level: "read_committed" leaves out aborted transactions and stops at the last stable offset.
            on_corrupt: at a damaged batch "raise" a CorruptBatchError (default), or "skip" it.
            headers_type: "list", of structs (default), or "map".
            header_keys: "string" (default), with U+FFFD for what is not UTF-8, or "binary".
            binary_type: "binary" (default), in chunks of less than 2 GiB, or "large_binary".
            timestamp_unit: "ms" (default) or "us", the nearest possible beyond 292,277 years from 1970.

        Raises: MissingExtraError without pyarrow; ConfigError, OffsetOutOfRangeError, CorruptBatchError, StorageError.
        """
        from kstore.engine.read.columns import arrow_table

        return arrow_table(self._reads, start, stop, options)

    def to_arrow_batches(
        self, start: int | None = None, stop: int | None = None, **options: Unpack[ArrowOptions]
    ) -> ArrowBatches:
        """Like ``to_arrow``, one ``pyarrow.RecordBatch`` after another: for more than fits into memory.

        A record batch has at most ``max_records`` (default 65,536) records and ``max_bytes`` (2 MiB) bytes; a larger
        record has a batch of its own. Besides it, only the current batch of the log is kept in memory.

        Raises: as ``to_arrow``; errors of damage or of the disk come during iteration, after the records before them.
        """
        from kstore.engine.read.columns import arrow_batches

        return arrow_batches(self._reads, start, stop, options)

    def to_pandas(
        self, start: int | None = None, stop: int | None = None, **options: Unpack[ReadOptions]
    ) -> pd.DataFrame:
        """``to_arrow`` as a ``pandas.DataFrame``. Raises: MissingExtraError without pandas, and as ``to_arrow``."""
        from kstore.engine.read.columns import to_pandas

        return to_pandas(self._reads, start, stop, options)

    def to_polars(
        self, start: int | None = None, stop: int | None = None, **options: Unpack[ReadOptions]
    ) -> pl.DataFrame:
        """``to_arrow`` as a ``polars.DataFrame``. Raises: MissingExtraError without polars, and as ``to_arrow``."""
        from kstore.engine.read.columns import to_polars

        return to_polars(self._reads, start, stop, options)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The whole log as a stream of Arrow columns, for ``polars.DataFrame(log)``, DuckDB, pyarrow and others."""
        return self.to_arrow_batches().__arrow_c_stream__(requested_schema)

    def __array__(self, *_: object, **options: object) -> NoReturn:
        """Refuses: numpy, and ``pandas.DataFrame(log)``, would make one column of objects."""
        raise TypeError("a log is not an array: use log.to_pandas(), log.to_polars() or log.to_arrow()")

    # --- change -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Puts everything appended so far on disk. Raises: SyncFailedError, after which the log is poisoned."""
        writer_of(self).flush()

    def roll(self) -> int:
        """Begins a new segment, if the active one holds anything; returns the active segment's base offset."""
        return writer_of(self).roll()

    def truncate_to(self, offset: int) -> None:
        """Removes everything from ``offset`` on, durably; a batch that holds ``offset`` goes as a whole.

        ``[10-19][20-29]`` at 25 -> ``[10-19]``, and the next record gets 25. Nothing happens at or above the end. What
        stays is as durable as it was. If ``offset`` is in the first batch, no record stays, and the log starts there.

        Raises: InvalidOffsetError (negative), and as ``append_many``.
        """
        writer_of(self).truncate_to(offset_number("offset", offset))

    def delete_records(self, before: int) -> int:
        """Raises the log's start to ``before``, durably, and removes the segments that are entirely below it.

        Returns the new start. Raises: OffsetOutOfRangeError (above the high watermark), and as ``append_many``.
        """
        return writer_of(self).delete_records(offset_number("before", before))

    def accept_loss(self, first: int, last: int) -> None:
        """Lets reads skip offsets ``first`` to ``last`` (both inclusive), which are damaged or lost.

        The decision is durable on return, and takes effect only then. It holds for every reader of this directory and
        for mirrors of it; another copy of the log still reports the damage. Nothing is removed from the files;
        compactions no longer spare the damaged bytes. The decision ends when the offsets are truncated, deleted or
        compacted. Accepting a range again has no effect.

        Raises: NotLostError, if a record, or an offset that was never assigned, is among them; InvalidOffsetError;
        LossLimitError; and as ``append_many``. Thread-safe.
        """
        accept_loss(writer_of(self), offset_number("first", first), offset_number("last", last))

    def compact(
        self,
        *,
        whole: bool = False,
        keep_keyless: bool | None = None,
        map_bytes: int = MAP_BYTES,
        bytes_per_second: float | None = None,
    ) -> CompactionReport:
        """Removes from the sealed segments the records whose key has a later one, while appends and reads continue.

        It ignores ``cleanup_policy``. Tombstones, and markers of transactions, stay for ``delete_retention_ms`` after
        the first compaction that meets them. The active segment is never compacted (``roll()`` seals it), nor are
        records younger than ``min_compaction_lag_ms``, nor anything after the start of an open transaction. A
        truncation or a close ends it early, and the report says so.

        Args:
            whole: compact again what earlier compactions have processed.
            keep_keyless: whether records without a key stay; by default unless the policy is "compact" alone.
            map_bytes: the memory for the keys, 24 bytes each; keys that do not fit wait for the next call.
            bytes_per_second: a limit for reading and writing.

        Raises: as ``append_many``.
        """
        from kstore.compaction.cleaner import compact

        writer = writer_of(self)
        return compact(
            writer, whole=whole, keep_keyless=keep_keyless, map_bytes=map_bytes, bytes_per_second=bytes_per_second
        )

    def apply_retention(self) -> RetentionResult:
        """Deletes the oldest segments that ``retention_ms`` and ``retention_bytes`` no longer cover, durably.

        A log with such settings does this by itself when it rolls. Nothing above the high watermark is deleted, and a
        clock that jumps ahead while the log is open deletes nothing early. Raises: as ``append_many``.
        """
        return writer_of(self).apply_retention()

    # --- producers and transactions ---------------------------------------------------------------------------------

    def end_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int = 0,
        timestamp: int | None = None,
    ) -> int:
        """Appends the end of a producer's transaction, its commit or its abort; returns the end marker's offset.

        A producer's first transactional batch begins a transaction (``append_batches``); if none is open, the marker
        ends nothing. A newer ``producer_epoch`` than that of the batches fences their producer. On return the marker is
        as durable as the log's setting says. ``timestamp`` is in ms since the epoch, now by default.

        Raises: TypeError, ValueError, ProducerFencedError (an older epoch), TransactionCoordinatorFencedError, and as
        ``append_many``.
        """
        return end_transaction(
            writer_of(self),
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
        )

    def producers(self) -> list[ProducerInfo]:
        """What the log knows of each producer that it has not forgotten, ordered by id. Raises: StorageError."""
        return producers(self._reads.source)

    def transactions(self, *, hanging_ms: int = 0) -> list[OpenTransaction]:
        """The open transactions, oldest first; with ``hanging_ms`` those whose producer has been silent for that long.

        Readers of committed records wait for the oldest one; ``abort_transaction`` ends it. Raises: StorageError.
        """
        return open_transactions(self._reads.source, hanging_ms)

    def abort_transaction(self, producer_id: int, *, hanging_ms: int = 0) -> int:
        """Ends a transaction that its producer has left open; returns the offset of its end marker.

        Raises: InvalidTransactionStateError if the producer has none open, or has been silent for less than
        ``hanging_ms``; and as ``end_transaction``.
        """
        return abort_transaction(writer_of(self), producer_id, hanging_ms)

    # --- maintenance ----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, MetricValue]:
        """The log's counters since it was opened, and its current state, by name: see ``kstore.metrics.METRICS``.

        A log that is open for reading does not know its writer's. Raises: StorageError.
        """
        source, writer = self._reads.source, self._writer
        gauges = {} if writer is None else writer.gauges()
        if writer is not None and writer.is_compacted:
            from kstore.compaction.cleaner import dirt_gauges

            gauges |= dirt_gauges(writer)
        return log_metrics(source, gauges)

    def verify(self) -> RecoveryReport:
        """Reads every batch and record, and reports what is damaged; changes nothing. Raises: StorageError."""
        return check_batches(self._reads.refreshed())

    def check(self) -> None:
        """Asserts the invariants of the log, its segments and indexes. For tests and diagnosis."""
        check_invariants(self._reads.source)

    def close(self) -> None:
        """Flushes and closes cleanly, so that the next open scans nothing. A second close does nothing.

        Raises: SyncFailedError, StorageError: the log is closed nevertheless, and recovers when it is next opened.
        """
        self._single = None
        self._closed = True
        self._reads.close()
        if self._guard.forked:
            return  # the files belong to the parent
        # Even if it was closed: an interrupt may have come before its files were.
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if not self._is_of_store:
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._writer is not None and not self._guard.forked:
            warnings.warn(f"unclosed {self!r}: the next open has to recover it", ResourceWarning, stacklevel=2)

    if not TYPE_CHECKING:
        truncate_fully_and_start_at = Deprecated(
            lambda it: writer_of(it).truncate_fully_and_start_at, "use truncate_to"
        )
        expire_producers = Deprecated(lambda it: writer_of(it).expire_producers, "a store does it by itself")


def writer_of(log: Log) -> LogWriter:
    """What changes the log, for kstore's own use. Raises: ReadOnlyError, ClosedError, ForkedError."""
    writer = log._writer
    if writer is None or log._closed or log._guard.forked:
        log._reads.source  # noqa: B018  # raises if the log is closed, or another process's
        raise ReadOnlyError(errno.EROFS, "the log is open for reading", str(log.path))
    return writer


def reads_of(log: Log) -> LogReads:
    """What reads the log, for kstore's own use."""
    return log._reads
