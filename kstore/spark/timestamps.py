"""What becomes of timestamps that Spark cannot hold: the source's option ``timestampOutOfRange``, and the jobs' error.

Kafka's are milliseconds in 64 bits, and so are Spark's microseconds: those beyond 292,277 years from 1970 do not fit.
The decoder puts the nearest possible value in their place. No timestamp in milliseconds gives that value itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from kstore.errors import InvalidRecordError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.spark.options import OutOfRange
from kstore.spark.places import LogPlace
from kstore.types import INT64_MAX, IsolationLevel

logger = logging.getLogger(__name__)

US_PER_MS = 1000
INT64_MIN = -INT64_MAX - 1
FIRST_MS, LAST_MS = -(-INT64_MIN // US_PER_MS), INT64_MAX // US_PER_MS
assert INT64_MAX % US_PER_MS, "no timestamp in milliseconds gives the value of one that was clamped"
assert INT64_MIN % US_PER_MS, "no timestamp in milliseconds gives the value of one that was clamped"


def first_out_of_range(log: Log, start: int, stop: int, isolation_level: IsolationLevel) -> Record | None:
    """The first record of a piece of ``log`` whose timestamp Spark cannot hold."""
    records = log.read(start, stop, isolation_level=isolation_level, on_corrupt="skip")
    return next((record for record in records if not FIRST_MS <= record.timestamp <= LAST_MS), None)


class Timestamps:
    """Applies the option to the record batches of one piece, in order. Not thread-safe."""

    def __init__(self, place: LogPlace, choice: OutOfRange | None) -> None:
        """``choice`` None: the user did not choose. The values are clamped, and the first one is logged."""
        self._place = place
        self._choice = choice
        # Nothing more is to be looked for.
        self._is_settled = choice == "clamp"

    def checked(self, batch: pa.RecordBatch, first_bad: Callable[[], Record | None]) -> pa.RecordBatch:
        """``batch``, with null in place of a value that does not fit if so chosen.

        ``first_bad`` finds the first record of the piece whose timestamp does not fit; it is called only if one exists.
        Raises: InvalidRecordError if that is to be an error.
        """
        at = -1 if self._is_settled else batch.schema.get_field_index("timestamp")
        if at < 0 or not batch.num_rows:
            return batch
        values = batch.column(at)
        ends = pc.min_max(values)
        if ends["min"].value != INT64_MIN and ends["max"].value != INT64_MAX:
            return batch
        if self._choice != "null":
            self._tell(first_bad())
            return batch
        numbers = values.view(pa.int64())
        is_bad = pc.or_(pc.equal(numbers, INT64_MIN), pc.equal(numbers, INT64_MAX))
        cleared = pc.if_else(is_bad, pa.scalar(None, values.type), values)
        arrays = batch.columns
        arrays[at] = cleared
        return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)

    def _tell(self, record: Record | None) -> None:
        place = self._place
        which = "a record" if record is None else f"the record at offset {record.offset}"
        value = "" if record is None else f" of {record.timestamp} ms"
        what = (
            f"topic {place.topic}, partition {place.partition}: {which} has a timestamp{value},"
            " which Spark cannot hold: expected at most 9223372036854775 ms before or after 1970"
        )
        if self._choice == "error":
            raise InvalidRecordError(
                f"{what}; the data source reads it with the option timestampOutOfRange=null or clamp"
            )
        self._is_settled = True
        logger.warning(
            "%s. It is clamped to the nearest possible time; from the next release on it is an error, unless the"
            " option timestampOutOfRange is clamp or null",
            what,
        )
