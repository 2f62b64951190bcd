"""Arrow record batches to batches of records, a batch for each partition of a topic. No I/O here.

``rows_of`` takes the buffers out of a record batch; ``PartitionedEncoder`` encodes its rows (compiled: ``_rows.pyx``)
and passes on each full batch; ``TableRows`` are those of one log. A row goes to the partition that it names, otherwise
to the one that Kafka's own clients choose for its key; rows without a key fill the partitions in turn, batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.errors import InvalidRecordError, KstoreError
from kstore.record._codec import BatchBuffer, EncodedBatch, OpenBatch, patch_crc
from kstore.record._rows import BytesRows, HeaderRows, NumberRows, RowEncoder, Rows
from kstore.record.batch import CRC_START, batch_crc
from kstore.record.builder import compress_batch
from kstore.record.columns import import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

PER_MS = {"ms": 1, "us": 1000, "ns": 1_000_000}


def rows_of(batch: pa.RecordBatch, now_ms: int) -> Rows:
    """The rows of a record batch with a column ``value`` and, if present, ``key``, ``headers``, ``timestamp`` and
    ``partition``; other columns are ignored.

    Raises: MissingExtraError without pyarrow; InvalidRecordError for a column of another type.
    """
    pa = import_pyarrow()
    names = batch.schema.names
    columns = {
        name: batch.column(name) for name in ("value", "key", "headers", "timestamp", "partition") if name in names
    }
    if "value" not in columns:
        raise InvalidRecordError(f"columns {', '.join(names)}, expected value among them")
    timestamps, per_ms = None, 1
    if "timestamp" in columns:
        timestamps, per_ms = _timestamps(pa, columns["timestamp"])
    return Rows(
        _bytes(pa, columns["value"], "value"),
        _bytes(pa, columns["key"], "key") if "key" in columns else None,
        _headers(pa, columns["headers"]) if "headers" in columns else None,
        timestamps,
        _partitions(pa, columns["partition"]) if "partition" in columns else None,
        per_ms,
        now_ms,
    )


def _bytes(pa: Any, column: Any, name: str) -> BytesRows:
    kind = column.type
    types = pa.types
    if types.is_null(kind) or types.is_large_binary(kind) or types.is_large_string(kind):
        # More than 2 GiB in one record batch do not fit: Arrow raises.
        column = column.cast(pa.binary())
    elif not (types.is_binary(kind) or types.is_string(kind)):
        raise InvalidRecordError(f"column {name!r} is {kind}, expected binary or string")
    validity, offsets, data = column.buffers()
    return BytesRows(len(column), column.offset, validity, offsets, data)


def _headers(pa: Any, column: Any) -> HeaderRows | None:
    types = pa.types
    if types.is_null(column.type):
        return None
    if types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    kind = column.type
    entry = kind.value_type if types.is_list(kind) else None
    if entry is None or not types.is_struct(entry) or {field.name for field in entry} != {"key", "value"}:
        raise InvalidRecordError(f"column 'headers' is {kind}, expected a list of structs of key and value")
    entries = column.values
    # A null header then has no key, which is refused.
    fields = dict(zip([field.name for field in entry], entries.flatten(), strict=True))
    validity, offsets = column.buffers()[:2]
    return HeaderRows(
        len(column),
        column.offset,
        validity,
        offsets,
        _bytes(pa, fields["key"], "headers.key"),
        _bytes(pa, fields["value"], "headers.value"),
    )


def _timestamps(pa: Any, column: Any) -> tuple[NumberRows | None, int]:
    types = pa.types
    if types.is_null(column.type):
        return None, 1
    if types.is_timestamp(column.type) and column.type.unit == "s":
        column = column.cast(pa.timestamp("ms", column.type.tz))
    if types.is_timestamp(column.type):
        per_ms = PER_MS[column.type.unit]
    elif types.is_int64(column.type):
        per_ms = 1
    else:
        raise InvalidRecordError(f"column 'timestamp' is {column.type}, expected a timestamp, or ms as int64")
    validity, data = column.buffers()
    return NumberRows(len(column), column.offset, validity, data, 8), per_ms


def _partitions(pa: Any, column: Any) -> NumberRows | None:
    types = pa.types
    if types.is_null(column.type):
        return None
    if not (types.is_int32(column.type) or types.is_int64(column.type)):
        raise InvalidRecordError(f"column 'partition' is {column.type}, expected int32")
    validity, data = column.buffers()
    return NumberRows(len(column), column.offset, validity, data, 4 if types.is_int32(column.type) else 8)


class TableRows(NamedTuple):
    """The rows of a table: ``chunks`` of them; the least and greatest timestamp in ms, if it has any; whether each row
    has a key."""

    chunks: Sequence[Rows]
    times: tuple[int, int] | None
    has_every_key: bool

    def build(
        self, buffer: BatchBuffer, *, codec: str, level: int | None, timestamp_type: int, now_ms: int, size_max: int
    ) -> list[EncodedBatch] | None:
        """As ``builder.build_batches`` of the same records, or None if that would raise an error."""
        encoder = RowEncoder(1, size_max)
        size_before = buffer.size
        batches: list[EncodedBatch] = []

        def close() -> None:
            batch = encoder.batches[0]
            if batch is not None:
                encoded = batch.close(timestamp_type, now_ms)
                if codec != "none":
                    encoded = compress_batch(buffer, encoded, codec, level, size_max)
                patch_crc(buffer, encoded.position, batch_crc(buffer.view(encoded.position + CRC_START)))
                batches.append(encoded)

        try:
            for rows in self.chunks:
                row, partition = encoder.append(rows, 0)
                while partition >= 0:
                    close()
                    encoder.batches[0] = OpenBatch(buffer, size_max)
                    row, partition = encoder.append(rows, row)
            close()
        except BaseException as error:
            if encoder.batches[0] is not None:
                encoder.batches[0].abort()
            buffer.truncate(size_before)
            if isinstance(error, KstoreError):
                return None
            raise
        return batches


def table_rows(table: pa.Table, now_ms: int) -> TableRows | None:
    """The rows of a table's ``value``, ``key``, ``headers`` and ``timestamp``; None for columns of types, or with
    headers, that need conversion or a closer look."""
    pa = import_pyarrow()
    names = [name for name in ("value", "key", "headers", "timestamp") if name in table.column_names]
    try:
        if "headers" in names and not _has_sound_keys(pa, table.column("headers")):
            return None
        chunks = [rows_of(batch, now_ms) for batch in table.select(names).to_batches()]
        times = times_of(table.column("timestamp"), now_ms) if "timestamp" in names else None
    except (InvalidRecordError, pa.ArrowException):
        return None
    return TableRows(chunks, times, "key" in names and table.column("key").null_count == 0)


def _has_sound_keys(pa: Any, column: Any) -> bool:
    """Whether the keys of all headers are binary, or text. Raises: ArrowInvalid if a text is not UTF-8."""
    kind = column.type
    if pa.types.is_null(kind):
        return True
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    key = {field.name: field.type for field in kind.value_type}.get("key")
    if key is not None and pa.types.is_binary(key):
        return True
    if key is None or not pa.types.is_string(key):
        return False
    column.validate(full=True)
    return True


def times_of(column: Any, now_ms: int) -> tuple[int, int] | None:
    """The least and the greatest timestamp in ms, rounded down; a missing one is ``now_ms``. None without rows."""
    pa = import_pyarrow()
    import pyarrow.compute as pc

    if len(column) == 0 or pa.types.is_null(column.type):
        return None
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
    per_second_of = per_second[column.type.unit] if pa.types.is_timestamp(column.type) else 1_000
    ends = pc.min_max(column.cast(pa.int64())).as_py().values()
    found = [each * 1_000 // per_second_of for each in ends if each is not None]
    found += [now_ms] if column.null_count else []
    return min(found), max(found)


class PartitionedEncoder:
    """Encodes rows into batches of a topic's partitions. Not thread-safe.

    ``done(partition, data, batch)`` is called with each complete batch and its bytes, CRC included, base offset 0.
    """

    def __init__(
        self,
        partition_count: int,
        done: Callable[[int, bytes, EncodedBatch], object],
        *,
        batch_bytes: int,
        size_max: int,
        codec: str = "none",
        level: int | None = None,
        first_partition: int = 0,
    ) -> None:
        """
        Args:
            batch_bytes: the size of a full batch, before compression; a larger record gets its own batch.
            size_max: the largest size of a batch.
            first_partition: where rows without a key start.
        """
        self._encoder = RowEncoder(partition_count, min(batch_bytes, size_max), first_partition)
        self._done = done
        self._size_max = size_max
        self._codec = codec
        self._level = level
        self._spare: list[BatchBuffer] = []

    def append(self, rows: Rows) -> None:
        """Raises: InvalidRecordError, InvalidTimestampError, RecordTooLargeError; the earlier rows stay."""
        encoder = self._encoder
        row, partition = encoder.append(rows, 0)
        while partition >= 0:
            if encoder.batches[partition] is None:
                buffer = self._spare.pop() if self._spare else BatchBuffer()
                encoder.batches[partition] = OpenBatch(buffer, self._size_max)
            else:
                self._close(partition)
            row, partition = encoder.append(rows, row)

    def close(self) -> None:
        """Passes on the remaining batches."""
        for partition in range(len(self._encoder.batches)):
            self._close(partition)

    def _close(self, partition: int) -> None:
        batch = self._encoder.batches[partition]
        if batch is None:
            return
        self._encoder.batches[partition] = None
        buffer = batch.buffer
        encoded: EncodedBatch = batch.close()
        if self._codec != "none":
            encoded = compress_batch(buffer, encoded, self._codec, self._level, self._size_max)
        patch_crc(buffer, encoded.position, batch_crc(buffer.view(encoded.position + CRC_START)))
        data = bytes(buffer)
        buffer.clear()
        self._spare.append(buffer)
        self._done(partition, data, encoded)
