"""``Log``: one partition, an append-only sequence of records in a directory of segments.

Its parts are in ``engine/``:

writes        writer    the lock, offsets, roll, flush, truncate; group_commit shares syncs
opening       opening   believe or recover; view opens for reading
reads         reads     over what was published, without a lock, by reader; columns gives Arrow
transactions  transactions

Parts that only some programs use (columns, compaction, logs that several processes share) are loaded on first use.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.config import MAP_BYTES, LogConfig
from kstore.engine.append import Headers
from kstore.engine.check import accept_loss, check_batches
from kstore.engine.index_repairs import IndexRepairs
from kstore.engine.opening import ensure_directory
from kstore.engine.pending import PendingAppend
from kstore.engine.reads import LogReads, TimePoint, looked_up
from kstore.engine.transactions import end_transaction, open_transactions, producers, transaction_of
from kstore.engine.view import LogView
from kstore.engine.writer import LogWriter, StoreTies, open_writer
from kstore.errors import ClosedError, ConfigError, LogNotFoundError, ReadOnlyError
from kstore.files.fork import ForkGuard
from kstore.files.fs import FileSystem
from kstore.files.handles import HandleCache
from kstore.files.local import SYSTEM_FS
from kstore.log_metrics import log_metrics
from kstore.metrics import LogCounters, MetricValue
from kstore.rules.arguments import check_keys, check_timestamps, one_of
from kstore.rules.validate import split_batches, validate
from kstore.segment import SegmentContext
from kstore.types import (
    DURABILITIES,
    NO_OFFSET,
    NO_TIMESTAMP,
    AppendInfo,
    Durability,
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

    from kstore.compaction.blocks import CompactionReport
    from kstore.engine.columns import ArrowBatches, ArrowOptions, ReadOptions

# A table's chunks may be larger than the pieces handed on, but above 32 MiB memory comes from the system each time.
TABLE_RECORDS = 1 << 20
TABLE_BYTES = 16 << 20


class Log(LogReads):
    """An open log. Thread-safe: any thread may append and read; an iterator is for one thread.

    ``with Log(path) as log:`` closes it. A log that is dropped without a close loses nothing that was acknowledged, but
    the next open must recover it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        shared: bool = False,
        durability: Durability = "sync",
        fs: FileSystem = SYSTEM_FS,
        clock: Clock = SYSTEM_CLOCK,
        _ties: StoreTies | None = None,
        _counters: LogCounters | None = None,
        **settings: Any,
    ) -> None:
        """Opens the log in directory ``path``; creates it if the path is missing or an empty directory.

        Args:
            path: the directory of one partition, kstore's or a Kafka broker's.
            read_only: take no lock and never write; the log must exist.
            shared: write beside other processes that share it too. Linux only, on a local file system (else
                StorageError); all with the same durability. Such a log is not compacted, and accepts no transactions
                (SharedLogError).
            durability: when an append returns. "sync": its bytes are on disk. "interval": they are written, and a
                thread syncs every ``flush_ms``. "os": they are written, as with Kafka. With the last two, a thread
                syncs each segment when it is sealed.
            fs, clock: for tests.
            settings: Kafka's topic settings in snake_case (see ``LogConfig``).

        Raises: LogNotFoundError, NotALogError, LockedError, ConfigError, ReadOnlyError, DiskFullError, StorageError.
        Damage does not raise here: ``recovery`` reports it.
        """
        self._closed = True  # until it is open
        self._guard = ForkGuard()
        self._writer: LogWriter | None = None
        self._view: LogView | None = None
        self.path = Path(path)
        one_of("durability", durability, DURABILITIES)
        if shared and read_only:
            raise ConfigError("shared is for writers: a log that is read_only needs no lock")
        config = LogConfig.from_settings(**settings)
        directory = self.path.absolute()
        counters = LogCounters() if _counters is None else _counters
        repairs = IndexRepairs()
        context = SegmentContext(fs, directory, config, clock, HandleCache(config.open_files_max), counters, repairs)
        if read_only:
            if not fs.exists(directory):
                raise LogNotFoundError(errno.ENOENT, "there is no log", str(directory))
            ensure_directory(fs, directory)
            self._view = LogView(context)
        elif shared:
            from kstore.shared.opening import open_shared_writer

            self._writer = open_shared_writer(context, durability, _ties)
        else:
            self._writer = open_writer(context, durability, _ties)
        source = self._view or self._writer
        assert source is not None
        repairs.serve(source)
        self._closed = False

    @property
    def _source(self) -> LogWriter | LogView:
        source = self._writer or self._view
        if self._closed or source is None:
            raise ClosedError(f"the log {self.path} is closed")
        if self._guard.forked:
            self._guard.check(f"the log {self.path}")
        return source

    @property
    def _writing(self) -> LogWriter:
        writer = self._writer
        if writer is None or self._closed or self._guard.forked:
            self._source  # noqa: B018  # raises if the log is closed, or another process's
            raise ReadOnlyError(errno.EROFS, "the log is open for reading", str(self.path))
        return writer

    @property
    def writer(self) -> LogWriter:
        """The writing part. For the store. Raises: ReadOnlyError, ClosedError."""
        return self._writing

    # --- state -------------------------------------------------------------------------------------------------

    @property
    def recovery(self) -> RecoveryReport:
        """What opening found and did."""
        return self._writer.report if self._writer is not None else self._viewed.report

    @property
    def _viewed(self) -> LogView:
        assert self._view is not None
        return self._view

    @property
    def read_only(self) -> bool:
        return self._writer is None

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        return f"Log({str(self.path)!r}, closed={self._closed})"

    # --- append -----------------------------------------------------------------------------------------------------

    def append(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
    ) -> int:
        """Appends one record; returns its offset.

        On return it is as durable as the log's setting says. ``timestamp`` is in ms since the epoch, now by default.

        Raises: as ``append_many``.
        """
        if timestamp is None and not headers:
            single = self.append_single(value, key)
            if single is not None:
                return single[0]
        info = self.append_many(
            (value,),
            keys=None if key is None else (key,),
            timestamps=None if timestamp is None else (timestamp,),
            headers=(tuple(headers),) if headers else None,
        )
        return info.first_offset

    def append_single(self, value: bytes | None, key: bytes | None = None) -> tuple[int, int] | None:
        """``append`` in the simple case: its offset and timestamp; else None, and nothing is done.

        Raises: as ``append``.
        """
        writer = self._writing
        appends = writer.appends
        if type(value) is not bytes or (appends.is_compacted if key is None else type(key) is not bytes):
            return None
        try:
            return appends.append_single(value, key)
        except Exception as error:
            writer.context.counters.append_failed(error)
            raise

    def append_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> AppendInfo:
        """Appends records from parallel sequences, in batches of at most ``max_message_bytes``.

        A failed call leaves none of them; a crash leaves a prefix of whole batches. A power cut within the write of
        several batches may also leave later ones after a damaged one, which is fenced: see ``CorruptBatchError``. On
        return they are as durable as the log's setting says.

        Raises: TypeError, ValueError (sequences of different length), RecordTooLargeError, InvalidTimestampError,
        InvalidRecordError (a compacted log needs keys), DiskFullError, PoisonedError, ClosedError, ReadOnlyError,
        ForkedError, StorageError.
        """
        writer = self._writing
        try:
            if timestamps is not None:
                check_timestamps(timestamps, writer.context.config, writer.context.clock.now_ms())
            if writer.appends.is_compacted:
                check_keys(keys, len(values))
            if not values:
                return _nothing_appended(writer.ends.end_offset)
            return writer.appends.append_many(values, keys, timestamps, headers)
        except Exception as error:
            writer.context.counters.append_failed(error)
            raise

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
        writer = self._writing
        try:
            return self._append_batches(writer, buffer, assign_offsets=assign_offsets)
        except Exception as error:
            writer.context.counters.append_failed(error)
            raise

    def _append_batches(
        self, writer: LogWriter, buffer: bytes | bytearray | memoryview, *, assign_offsets: bool
    ) -> AppendInfo:
        config = writer.context.config
        validated = validate(
            split_batches(buffer), config, now_ms=writer.context.clock.now_ms(), assign_offsets=assign_offsets
        )
        if not validated.batches:
            return _nothing_appended(writer.ends.end_offset)
        append = PendingAppend(
            validated.buffer,
            validated.batches,
            validated.target_codec,
            append_time_ms=validated.log_append_time,
            source_codec=validated.source_codec,
            spans=None if assign_offsets else validated.spans,
            offsets_monotonic=validated.offsets_monotonic,
            with_producers=validated.has_producers,
        )
        writer.commit(append)
        assert append.result is not None
        return append.result

    def append_arrow(self, data: Any) -> AppendInfo:
        """Appends the rows of ``data``: a ``pyarrow.RecordBatch`` or ``Table``, or an object with Arrow's C interface.

        Columns: ``value`` (binary or string), and optionally ``key``, ``timestamp`` (a timestamp, or ms as whole
        numbers; null is now) and ``headers`` (a list of structs of key and value, or a map). Columns that an append
        assigns (offset, timestampType, topic, partition) are ignored. All or nothing, as ``append_many``.

        Raises: MissingExtraError without pyarrow; InvalidRecordError for other columns; and as ``append_many``.
        """
        from kstore.engine.columns import rows_of

        rows = rows_of(data, self._source.context.clock.now_ms)
        return self.append_many(rows.values, keys=rows.keys, timestamps=rows.timestamps, headers=rows.headers)

    # --- read as columns: pyarrow is loaded by the first call -------------------------------------------------------

    def to_arrow(self, start: int | None = None, stop: int | None = None, **options: Unpack[ReadOptions]) -> pa.Table:
        """The records from offset ``start`` (default: the first) to ``stop`` (exclusive) as a ``pyarrow.Table``.

        It ends at the high watermark. Control records are left out.

        Args:
            columns: which of key, value, offset, timestamp, timestampType, headers; default: all. Only these are built.
            isolation_level: "read_committed" leaves out aborted transactions and stops at the last stable offset.
            on_corrupt: at a damaged batch "raise" a CorruptBatchError (default), or "skip" it.
            headers_type: "list", of structs (default), or "map".
            binary_type: "binary" (default), in chunks of less than 2 GiB, or "large_binary".
            timestamp_unit: "ms" (default) or "us".

        Raises: MissingExtraError without pyarrow; ConfigError, OffsetOutOfRangeError, CorruptBatchError, StorageError.
        """
        return self.to_arrow_batches(
            start, stop, max_records=TABLE_RECORDS, max_bytes=TABLE_BYTES, **options
        ).read_all()

    def to_arrow_batches(
        self, start: int | None = None, stop: int | None = None, **options: Unpack[ArrowOptions]
    ) -> ArrowBatches:
        """Like ``to_arrow``, one ``pyarrow.RecordBatch`` after another: for more than fits into memory.

        A record batch has at most ``max_records`` (default 65,536) records and ``max_bytes`` (4 MiB) bytes; a larger
        record has a batch of its own. Besides it, only the current batch of the log is kept in memory.

        Raises: as ``to_arrow``; errors of damage or of the disk come during iteration, after the records before them.
        """
        from kstore.engine.columns import arrow_batches

        source = self._source
        bytes_max = source.context.config.max_batch_bytes_uncompressed
        return arrow_batches(partial(self._reader, source), start, stop, options, bytes_max)

    def to_pandas(
        self, start: int | None = None, stop: int | None = None, **options: Unpack[ReadOptions]
    ) -> pd.DataFrame:
        """Like ``to_arrow``, as a ``pandas.DataFrame``. Raises: MissingExtraError without pandas, and as
        ``to_arrow``."""
        from kstore.engine.columns import to_pandas

        return to_pandas(lambda: self.to_arrow(start, stop, **options))

    def to_polars(
        self, start: int | None = None, stop: int | None = None, **options: Unpack[ReadOptions]
    ) -> pl.DataFrame:
        """Like ``to_arrow``, as a ``polars.DataFrame``. Raises: MissingExtraError without polars, and as
        ``to_arrow``."""
        from kstore.engine.columns import to_polars

        return to_polars(lambda: self.to_arrow(start, stop, **options))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The whole log as a stream of columns, for libraries that read these: ``polars.DataFrame(log)``, DuckDB,
        pyarrow."""
        return self.to_arrow_batches().__arrow_c_stream__(requested_schema)

    # --- change -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Puts everything appended so far on disk. Raises: SyncFailedError, after which the log is poisoned."""
        self._writing.flush()

    def roll(self) -> int:
        """Begins a new segment, if the active one holds anything; returns the active segment's base offset."""
        return self._writing.roll()

    def truncate_to(self, offset: int) -> None:
        """Removes everything from ``offset`` on, durably; a batch that holds ``offset`` goes as a whole.

        ``[10-19][20-29]`` at 25 -> ``[10-19]``, and the next record gets 25. Nothing happens at or above the end. What
        stays is as durable as it was.

        Raises: InvalidOffsetError (negative), and as ``append_many``.
        """
        self._writing.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Removes everything, durably; the next record gets ``offset``. Raises: as ``truncate_to``."""
        self._writing.truncate_fully_and_start_at(offset)

    def delete_records(self, before: int) -> int:
        """Raises the log's start to ``before``, durably, and removes the segments that are entirely below it.

        Returns the new start. Raises: OffsetOutOfRangeError (above the high watermark), and as ``append_many``.
        """
        return self._writing.delete_records(before)

    def accept_loss(self, first: int, last: int) -> None:
        """Lets reads skip offsets ``first`` to ``last`` (both inclusive), which are damaged or lost.

        The decision is durable on return, and takes effect only then. It holds for every reader of this directory and
        for mirrors of it; another copy of the log still reports the damage. Nothing is removed from the files;
        compactions no longer spare the damaged bytes. The decision ends when the offsets are truncated, deleted or
        compacted. Accepting a range again has no effect.

        Raises: NotLostError, if a record, or an offset that was never assigned, is among them; InvalidOffsetError;
        LossLimitError; and as ``append_many``. Thread-safe.
        """
        accept_loss(self._writing, first, last)

    def compact(
        self,
        *,
        whole: bool = False,
        keep_keyless: bool | None = None,
        map_bytes: int = MAP_BYTES,
        bytes_per_second: float | None = None,
    ) -> CompactionReport:
        """Removes, from the sealed segments, the records whose key has a later one. Appends and reads continue
        meanwhile.

        It ignores ``cleanup_policy``. Tombstones, and markers of transactions, stay for ``delete_retention_ms`` after
        the first compaction that meets them. The active segment is never compacted (``roll()`` seals it), nor are
        records younger than ``min_compaction_lag_ms``, nor anything after the start of an open transaction. A
        truncation or a close ends it early, and the report says so.

        Args:
            whole: compact again what earlier compactions have processed.
            keep_keyless: whether records without a key stay; by default they do unless the policy is "compact", which
                accepts none.
            map_bytes: the memory for the keys, 24 bytes each; keys that do not fit wait for the next call.
            bytes_per_second: a limit for reading and writing.

        Raises: as ``append_many``.
        """
        from kstore.compaction.cleaner import compact

        return compact(
            self._writing,
            whole=whole,
            keep_keyless=keep_keyless,
            map_bytes=map_bytes,
            bytes_per_second=bytes_per_second,
        )

    def segment_count_and_size(self) -> tuple[int, int]:
        """How many segments the log has, and the bytes of their ``.log`` files. Raises: StorageError."""
        source = self._source
        source.refresh()

        def measured() -> tuple[int, int]:
            segments = source.segments.snapshot.segments
            return len(segments), sum(segment.size for segment in segments)

        return looked_up(source, measured)

    def apply_retention(self) -> RetentionResult:
        """Deletes the oldest segments that ``retention_ms`` and ``retention_bytes`` no longer cover, durably.

        A log with such settings does this by itself when it rolls. Nothing above the high watermark is deleted, and a
        clock that jumps ahead while the log is open deletes nothing early. Raises: as ``append_many``.
        """
        return self._writing.apply_retention()

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

        A transaction begins by itself with the producer's first transactional batch (``append_batches``); where none is
        open the marker ends nothing. A newer ``producer_epoch`` than that of the batches fences their producer. On
        return the marker is as durable as the log's setting says. ``timestamp`` is in ms since the epoch, now by
        default.

        Raises: TypeError, ValueError, ProducerFencedError (an older epoch), TransactionCoordinatorFencedError, and as
        ``append_many``.
        """
        return end_transaction(
            self._writing,
            producer_id,
            producer_epoch,
            commit=commit,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
        )

    def producers(self) -> list[ProducerInfo]:
        """What the log knows of each producer that has written to it and is not forgotten, in the order of their ids.

        Raises: StorageError.
        """
        return producers(self._source)

    def transactions(self, *, hanging_ms: int = 0) -> list[OpenTransaction]:
        """The open transactions, the oldest first; with ``hanging_ms`` those whose producers are silent for so long.

        Who reads committed records waits for the oldest of them. ``end_transaction`` ends one that nobody else will.

        Raises: StorageError.
        """
        return open_transactions(self._source, hanging_ms)

    def abort_transaction(self, producer_id: int, *, hanging_ms: int = 0) -> int:
        """Ends an open transaction that nobody else will end; returns the offset of its end marker.

        Raises: InvalidTransactionStateError where the producer has none open, or is silent for less than
        ``hanging_ms``; and as ``end_transaction``.
        """
        found = transaction_of(self._source, producer_id, hanging_ms)
        # As its coordinator would: of a later epoch than the last one, none is known.
        coordinator_epoch = max(found.coordinator_epoch, 0)
        return self.end_transaction(
            producer_id, found.producer_epoch, commit=False, coordinator_epoch=coordinator_epoch
        )

    def expire_producers(self) -> int:
        """Forgets producers that have written nothing for ``producer_id_expiration_ms``; returns how many.

        Appends of producers do so too, every ten minutes. Who has a transaction open is not forgotten.

        Raises: as ``append_many``.
        """
        return self._writing.expire_producers()

    # --- maintenance ----------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, MetricValue]:
        """The log's counters since it was opened, and its current state, by name: see ``kstore.metrics.METRICS``.

        A log that is open for reading does not know its writer's. Raises: StorageError.
        """
        segment_count, size = self.segment_count_and_size()
        return log_metrics(self._source, self.recovery, segment_count, size, self._writer)

    def verify(self) -> RecoveryReport:
        """Reads every batch and record that can be read, and reports what is damaged; changes nothing.

        Raises: StorageError.
        """
        source = self._source
        source.refresh()
        return check_batches(source)

    def check(self) -> None:
        """Asserts the invariants of the log, its segments and indexes; raises AssertionError. For tests and
        diagnosis."""
        source = self._source
        source.segments.check()
        ends = source.ends
        ends.check()
        assert source.segments.bases[-1] == ends.base_offset, f"{source.segments.bases[-1]}, {ends}"
        assert source.segments.last.size == ends.position, f"{source.segments.last.size}, {ends}"
        for segment in source.segments:
            segment.check()

    def close(self) -> None:
        """Flushes and closes cleanly, so that the next open scans nothing. A second close does nothing.

        Raises: SyncFailedError, StorageError: the log is closed nevertheless, and recovers when it is next opened.
        """
        self._closed = True
        if self._guard.forked:
            return  # the files belong to the parent
        # Even if it was closed: an interrupt may have come before they were.
        if self._writer is not None:
            self._writer.close()
        if self._view is not None:
            self._view.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._writer is not None and not self._guard.forked:
            warnings.warn(f"unclosed {self!r}: the next open has to recover it", ResourceWarning, stacklevel=2)


def _nothing_appended(end_offset: int) -> AppendInfo:
    return AppendInfo(end_offset, end_offset - 1, NO_TIMESTAMP, NO_OFFSET, NO_TIMESTAMP, "none", "none", 0, 0, 0, True)
