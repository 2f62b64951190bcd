"""The work of ``kstore export``: the records of one log, or of several, one after the other, as one file."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from kstore.cli.extent import Extent
from kstore.cli.places import LogPlace, open_place
from kstore.cli.record_json import line_start, record_line
from kstore.errors import ConfigError
from kstore.files.paths import topic_partition
from kstore.record.columns import ColumnOptions, import_pyarrow
from kstore.types import CorruptRange, IsolationLevel, OnCorrupt
from kstore.upkeep.tables import Compression, TableForm, write_table

if TYPE_CHECKING:
    import pyarrow as pa

OWNER_COLUMNS = ("topic", "partition")
LINES_AT_ONCE = 1000


class TableOptions(NamedTuple):
    """How a table is written; see ``write_table``."""

    form: TableForm
    columns: tuple[str, ...]
    base64: bool
    safe_formulas: bool
    compression: Compression


class _Part(NamedTuple):
    """Records of a log: from ``start``, None for the first, to before ``stop``, None for the end; about
    ``record_count``."""

    place: LogPlace
    start: int | None
    stop: int | None
    record_count: int


class Export:
    """The records of ``places`` within ``extent``. ``corrupt`` is the damage that was skipped. Not thread-safe."""

    def __init__(
        self,
        places: Sequence[LogPlace],
        extent: Extent,
        *,
        with_owners: bool,
        isolation_level: IsolationLevel,
        on_corrupt: OnCorrupt,
    ) -> None:
        """``with_owners``: a line names its topic and partition, and a log may end before ``extent`` starts.

        Raises: as ``Log``, for a log that cannot be opened; StorageError.
        """
        self._with_owners = with_owners
        self._isolation_level: IsolationLevel = isolation_level
        self._on_corrupt: OnCorrupt = on_corrupt
        self._parts = [_part(place, extent, clips=with_owners) for place in places]
        self.record_count = sum(part.record_count for part in self._parts)
        self.corrupt: list[CorruptRange] = []

    def write_lines(self, out: BinaryIO, advance: Callable[[int], None]) -> int:
        """Writes JSON lines; returns their number. Raises: as a read."""
        count = 0
        for part in self._parts:
            first = _owner(part.place) if self._with_owners else {}
            with open_place(part.place) as log:
                reader = log.read(
                    part.start, part.stop, isolation_level=self._isolation_level, on_corrupt=self._on_corrupt
                )
                count += _write_lines(reader, first, out, advance)
                self.corrupt += reader.corrupt
        return count

    def write_table(self, out: BinaryIO, options: TableOptions, advance: Callable[[int], None]) -> int:
        """Writes a table; returns the number of rows. Raises: as ``Log.to_arrow_batches`` and ``write_table``."""
        # Without a column of the log nothing would tell how many rows there are.
        own = tuple(name for name in options.columns if name not in OWNER_COLUMNS) or ("offset",)
        schema = _schema(options.columns, own)
        with closing(self._batches(schema, own)) as batches:
            return write_table(
                batches,
                schema,
                out,
                options.form,
                base64=options.base64,
                safe_formulas=options.safe_formulas,
                compression=options.compression,
                advance=advance,
            )

    def _batches(self, schema: pa.Schema, own: tuple[str, ...]) -> Generator[pa.RecordBatch, None, None]:
        is_plain = tuple(schema.names) == own
        for part in self._parts:
            with open_place(part.place) as log:
                batches = log.to_arrow_batches(
                    part.start,
                    part.stop,
                    columns=own,
                    isolation_level=self._isolation_level,
                    on_corrupt=self._on_corrupt,
                )
                for batch in batches:
                    yield batch if is_plain else _with_owner(batch, schema, part.place)
                self.corrupt += batches.corrupt


def _part(place: LogPlace, extent: Extent, *, clips: bool) -> _Part:
    with open_place(place) as log:
        high_watermark = log.high_watermark
        first, end = extent.of(log, high_watermark)
        if clips:
            first, end = min(max(first, log.start_offset), high_watermark), min(end, high_watermark)
    return _Part(place, first if extent.has_start else None, end if extent.has_end else None, max(end - first, 0))


def _owner(place: LogPlace) -> dict[str, str | int | None]:
    owner = topic_partition(place.path.name)
    return {"topic": place.path.name, "partition": None} if owner is None else owner._asdict()


def _schema(columns: tuple[str, ...], own: tuple[str, ...]) -> pa.Schema:
    if len(set(columns)) < len(columns):
        raise ConfigError(f"columns are {list(columns)}, expected each once")
    schema = ColumnOptions(columns=own).schema()
    pa = import_pyarrow()
    owners = {"topic": pa.field("topic", pa.string()), "partition": pa.field("partition", pa.int32())}
    return pa.schema([owners[name] if name in owners else schema.field(name) for name in columns])


def _with_owner(batch: pa.RecordBatch, schema: pa.Schema, place: LogPlace) -> pa.RecordBatch:
    pa, owner = import_pyarrow(), _owner(place)
    columns = [
        pa.repeat(pa.scalar(owner[field.name], field.type), batch.num_rows)
        if field.name in owner
        else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _write_lines(
    records: Iterator[object], first: dict[str, str | int | None], out: BinaryIO, advance: Callable[[int], None]
) -> int:
    lines: list[bytes] = []
    count, start = 0, line_start(first)
    for record in records:
        lines.append(record_line(record, first, start))  # type: ignore[arg-type]  # nothing else without "yield"
        if len(lines) == LINES_AT_ONCE:
            count += _drain(lines, out, advance)
    return count + _drain(lines, out, advance)


def _drain(lines: list[bytes], out: BinaryIO, advance: Callable[[int], None]) -> int:
    count = len(lines)
    out.write(b"".join(lines))
    advance(count)
    lines.clear()
    return count
