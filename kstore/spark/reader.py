"""Reading: ``KStoreReader`` is the batch source, and ``read_split`` is the work of a task in a batch or stream.

The driver finds the logs, decides on offsets and divides them (``ranges``, ``plan``). A task opens its logs itself and
yields record batches, which were columns from the start. The iterator closes everything it opened.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from kstore.errors import (
    CorruptBatchError,
    DataLossError,
    FileMissingError,
    LogNotFoundError,
    NotALogError,
    OffsetOutOfRangeError,
    StorageError,
)
from kstore.files.moment import Moment
from kstore.files.paths import PARTITION_METADATA
from kstore.files.remote import Location, RemoteFiles, RemoteReading, open_remote
from kstore.log import Log, reads_of
from kstore.record.columns import HeaderKeys
from kstore.spark.conditions import filters_of
from kstore.spark.filters import EVERYTHING, SoftPushdown, wanted_by
from kstore.spark.holdings import Holdings
from kstore.spark.notes import note_ignored, note_isolation
from kstore.spark.options import Earliest, Latest, ReadOptions
from kstore.spark.places import LogPlace, open_at, topic_id_at
from kstore.spark.plan import Split, SplitPiece, plan_splits
from kstore.spark.ranges import DATA_LOSS, FAILING, Held, OffsetRange, batch_ranges, recreated
from kstore.spark.schema import HEADERS, arrow_schema
from kstore.spark.sentences import without_causes
from kstore.spark.stores import RETRY_SECONDS
from kstore.spark.timestamps import Timestamps, first_out_of_range
from kstore.types import CorruptRange, IsolationLevel

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

# Columns with one value per log; and the column to decode if no other is requested, for the number of records.
CONSTANT_COLUMNS = ("topic", "partition")
LEAST_COLUMNS = ("offset",)


# --- on the driver ----------------------------------------------------------------------------------------------------


class KStoreReader(DataSourceReader):
    """A batch query over logs. It is pickled for the tasks, and so holds only plain values."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """``schema`` names the columns; ``check_columns`` has accepted them."""
        self._options = options
        self.spark_schema = schema
        self._pruning = filters_of(options.prune_where)
        self._wanted = wanted_by(self._pruning)
        # Spark keeps the filters with the table, for every scan of it: those of one branch of a query would be
        # applied to the others, and to later queries without filters. Only the user can know that there are no others.
        if options.filter_pushdown:
            # An object in place of the method: see its class.
            self.pushFilters = SoftPushdown(self._take)

    def _take(self, filters: list[Filter]) -> None:
        self._wanted = wanted_by([*self._pruning, *filters])

    @without_causes()
    def partitions(self) -> list[InputPartition]:
        """The splits. Raises: ConfigError, LogNotFoundError, TopicNotFoundError, DataLossError, StorageError."""
        options = self._options
        # Bounds by partition, and times, are checked against all logs, whichever of them match.
        is_checked = not isinstance(options.starting, Earliest) or not isinstance(options.ending, Latest)
        with Holdings(options, EVERYTHING.wants if is_checked else self._wanted.wants) as logs:
            held = logs.look(must_exist=True)
            ranges = batch_ranges(options, held, logs.offset_for_time)
            splits = splits_of(options, logs, held, self._narrowed(ranges, logs))
        note_ignored(options.ignored)
        note_isolation(options, splits, _ending_at_the_end(ranges, held))
        return list(splits)

    def _narrowed(self, ranges: Sequence[OffsetRange], logs: Holdings) -> Iterator[OffsetRange]:
        """The parts of ``ranges`` in which records may pass the filters."""
        wanted = self._wanted
        for place, start, stop in ranges:
            start, stop = max(start, wanted.start), min(stop, wanted.stop)
            if start >= stop or not wanted.wants(place):
                continue
            if wanted.timestamp_ms_min is not None and wanted.timestamp_ms_min > 0:
                first = logs.offset_for_time(place, wanted.timestamp_ms_min)
                start = stop if first is None else max(start, first)
            if start < stop:
                yield OffsetRange(place, start, stop)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._options, arrow_schema(self.spark_schema))


def splits_of(
    options: ReadOptions, logs: Holdings, held: Iterable[Held], ranges: Iterable[tuple[LogPlace, int, int]]
) -> list[Split]:
    """The splits of a read with these options: see ``plan_splits``."""
    return plan_splits(
        ranges,
        logs.log,
        max_partition_bytes=options.max_partition_bytes,
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
        task_per_partition=options.task_per_partition,
        committed=options.isolation_level == "read_committed",
        sizes_of=logs.sizes,
        held=held,
        each=logs.each,
    )


def _ending_at_the_end(ranges: Iterable[OffsetRange], held: Iterable[Held]) -> list[Held]:
    """The logs that are read to their end."""
    stops = {found.place: found.stop for found in ranges}
    return [log for log in held if stops.get(log.place, log.end_offset) == log.end_offset]


# --- in a task --------------------------------------------------------------------------------------------------------


def read_split(split: InputPartition, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of a split in record batches of exactly ``schema``, any of the existing columns.

    Raises: CorruptBatchError, OffsetOutOfRangeError for missing data, unless the options say to continue; StorageError.
    """
    # Without any split Spark still asks once, for the split None.
    if isinstance(split, Split):
        with without_causes():
            for piece in split.pieces:
                yield from _read_piece(piece, options, schema)


def _read_piece(piece: SplitPiece, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    losses = _Losses(piece.place, options)
    columns = _Columns(schema, piece.place)
    # What a listing says now holds for the whole piece, as the segments that a reader on a disk has open.
    # Records differ in size: the piece may be larger than its share of the segment.
    reading = RemoteReading(Moment(), expected_bytes=piece.size + piece.size // 4 + 1, retry_seconds=RETRY_SECONDS)
    location = open_remote(piece.place.url, storage_options=options.storage_options, reading=reading)
    with suppress(StorageError):
        location.fs.list(location.path)
    now = _topic_of(piece, location)
    if piece.topic_id and now is not None and now != piece.topic_id:
        losses.gone(piece.start, piece.stop, recreated(piece.topic_id, now))
        return
    try:
        log = open_at(location, known_end=piece.stop if location.local is None else None)
    except (LogNotFoundError, NotALogError) as error:
        losses.gone(piece.start, piece.stop, f"the log is gone ({error})", error)
        return
    try:
        reads_of(log).plan(piece.aborted)
        yield from _read_log(log, piece, options, columns, losses)
        if isinstance(location.fs, RemoteFiles):
            location.fs.ask_again(location.path)
        now = _topic_of(piece, location)
        if piece.topic_id and now and now != piece.topic_id:
            # In the meantime: some of these rows may have been the new topic's.
            losses.gone(piece.start, piece.stop, recreated(piece.topic_id, now))
    finally:
        log.close()
        losses.report()


def _topic_of(piece: SplitPiece, location: Location) -> str | None:
    """As ``topic_id_at``; the file is not read if it is the one that was read for the plan."""
    if piece.topic_file is not None:
        with suppress(StorageError):
            if location.fs.stat(location.path / PARTITION_METADATA) == piece.topic_file:
                return piece.topic_id
    return topic_id_at(location)


def _read_log(
    log: Log, piece: SplitPiece, options: ReadOptions, columns: _Columns, losses: _Losses
) -> Iterator[pa.RecordBatch]:
    start = piece.start
    isolation_level: IsolationLevel = "read_committed" if piece.aborted else "read_uncommitted"
    timestamps = Timestamps(piece.place, options.timestamp_out_of_range)

    while start < piece.stop:
        start = losses.below(start, piece.stop, log.start_offset)
        stop = piece.stop
        if stop > reads_of(log).read_bound(committed=False).high_watermark:
            stop = losses.above(start, piece.stop, log.high_watermark)
        if start >= stop:
            return
        batches = None
        first_bad = partial(first_out_of_range, log, start, stop, isolation_level)
        try:
            batches = log.to_arrow_batches(
                start,
                stop,
                columns=columns.decoded,
                isolation_level=isolation_level,
                on_corrupt="raise" if losses.raises_on_damage else "skip",
                header_keys=columns.header_keys,
                timestamp_unit="us",
                max_records=options.batch_rows,
                max_bytes=options.batch_bytes,
            )
            for batch in batches:
                yield columns.complete(timestamps.checked(batch, first_bad))
            if log.high_watermark >= stop:
                return
            start = log.high_watermark  # it was cut in the meantime
        except OffsetOutOfRangeError as error:
            # Retention was faster: the rest starts further on.
            start = losses.below(error.offset, piece.stop, max(log.start_offset, error.offset + 1), error)
        except (LogNotFoundError, FileMissingError) as error:
            losses.gone(start, piece.stop, f"the log disappeared while it was read ({error})", error)
            return
        except CorruptBatchError as error:
            error.add_note(losses.advice)
            raise
        finally:
            if batches is not None:
                losses.damaged += batches.corrupt


class _Columns:
    """Turns the record batches of one log into those of a schema."""

    def __init__(self, schema: pa.Schema, place: LogPlace) -> None:
        self._schema = schema
        names = schema.names
        is_binary = HEADERS in names and pa.types.is_binary(schema.field(HEADERS).type.value_type.field("key").type)
        self.header_keys: HeaderKeys = "binary" if is_binary else "string"
        self.decoded = tuple(name for name in names if name not in CONSTANT_COLUMNS) or LEAST_COLUMNS
        constants = {"topic": pa.scalar(place.topic, pa.string()), "partition": pa.scalar(place.partition, pa.int32())}
        self._values = [(at, constants[name]) for at, name in enumerate(names) if name in constants]
        # As long as the longest batch so far; each batch takes a slice, which costs nothing.
        self._length = 0
        self._constants: list[tuple[int, pa.Array]] = []
        self._has_others = len(self._values) < len(names)

    def complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        if count > self._length:
            self._length = count
            self._constants = [(at, pa.repeat(value, count)) for at, value in self._values]
        arrays = batch.columns if self._has_others else []
        for at, values in self._constants:
            arrays.insert(at, values.slice(0, count))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Losses:
    """The missing data of one piece: an error or, if the options say to continue, a count and a warning."""

    advice = (
        "The option failOnDataLoss=false skips damaged batches and counts them, and so does checkCrcs=false; "
        "no record is ever read from one."
    )

    def __init__(self, place: LogPlace, options: ReadOptions) -> None:
        self._place = place
        self._fails = options.fail_on_data_loss
        self.raises_on_damage = options.fail_on_data_loss and options.check_crcs
        self.damaged: list[CorruptRange] = []

    def below(self, start: int, stop: int, log_start: int, cause: Exception | None = None) -> int:
        """Where reading continues in a log that starts at ``log_start``. Raises: DataLossError."""
        if log_start <= start:
            return start
        self.gone(start, min(stop, log_start), f"the log starts at offset {log_start}", cause)
        return log_start

    def above(self, start: int, stop: int, log_end: int) -> int:
        """Where reading ends in a log that ends at ``log_end``. Raises: DataLossError."""
        if stop <= log_end:
            return stop
        self.gone(max(start, log_end), stop, f"the log ends at offset {log_end}")
        return log_end

    def gone(self, start: int, stop: int, why: str, cause: Exception | None = None) -> None:
        """Offsets ``start`` to ``stop`` (exclusive) are missing. Raises: DataLossError."""
        if start >= stop:
            return
        place = self._place
        lost = (
            f"Could not read records in offset [{start}, {stop}) for topic partition"
            f" {place.topic}-{place.partition} at {place.shown}: {why}."
        )
        if self._fails:
            raise DataLossError(f"{DATA_LOSS}{FAILING}Reason: {lost}") from cause
        logger.warning("%s", lost)

    def report(self) -> None:
        """Logs the skipped damage: each place in the files and the number of offsets."""
        for damage in self.damaged:
            logger.warning(
                "%s: offsets %d to %d are skipped: %s at position %d",
                damage.path,
                damage.first,
                damage.last,
                damage.reason,
                damage.position,
            )
        if self.damaged:
            count = sum(damage.last - damage.first + 1 for damage in self.damaged)
            logger.warning(
                "%s: %d offsets in %d damaged places are skipped", self._place.shown, count, len(self.damaged)
            )
