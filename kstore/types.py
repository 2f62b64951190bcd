"""The small values that pass between kstore's parts."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, NamedTuple, get_args

# Positions in an index and sizes in a batch are 32-bit, so no segment and no batch can be larger.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

NO_TIMESTAMP = -1
NO_OFFSET = -1
TIMESTAMP_MAX = INT64_MAX
# The greatest end of a log. The end after a log's last record is an offset too, so no record has this one.
OFFSET_MAX = INT64_MAX
RECORD_OFFSET_MAX = OFFSET_MAX - 1
# The largest value of the four bytes of an index entry, and of a batch's last offset delta.
RELATIVE_OFFSET_MAX = INT32_MAX

TimestampType = Literal["CreateTime", "LogAppendTime", "NoTimestampType"]
CREATE_TIME: TimestampType = "CreateTime"
LOG_APPEND_TIME: TimestampType = "LogAppendTime"
NO_TIMESTAMP_TYPE: TimestampType = "NoTimestampType"
# The codec passes the type of a timestamp as an index into this table.
TIMESTAMP_TYPES: tuple[TimestampType, ...] = (CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE)

Durability = Literal["sync", "interval", "os"]
# ``kstore.state`` stores a durability as an index into this table.
DURABILITIES: tuple[Durability, ...] = get_args(Durability)
IsolationLevel = Literal["read_uncommitted", "read_committed"]
ISOLATION_LEVELS: tuple[IsolationLevel, ...] = get_args(IsolationLevel)
OnCorrupt = Literal["raise", "skip", "yield"]


class OffsetPosition(NamedTuple):
    """A batch that starts at ``position`` (bytes) in a file and ends with, or starts at, ``offset``: its user
    decides."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A timestamp (ms) and the offset of its record, or batch."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """One entry of a ``.txnindex`` (Kafka: AbortedTxn)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class ProducerInfo(NamedTuple):
    """What a log knows about one producer. Times are ms since the epoch, -1 means none.

    ``transaction_start`` is the first offset of its open transaction, None if none is open.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int | None


class OpenTransaction(NamedTuple):
    """A transaction that has not ended, with records from ``first_offset``.

    ``age_ms`` is the time since its producer's last sign of life, ``last_timestamp`` (ms since the epoch); -1 if there
    is none.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int
    last_timestamp: int
    age_ms: int


class CorruptRange(NamedTuple):
    """Offsets ``first`` to ``last`` (both inclusive) lost to damage at byte ``position`` of ``path``.

    ``is_unconfirmed``: they are above every durable end that recovery knew, as after a power cut within a write. They
    may never have been acknowledged.
    """

    first: int
    last: int
    position: int
    reason: str
    path: str = ""
    is_unconfirmed: bool = False


class CutRange(NamedTuple):
    """What recovery cut from the end of a file.

    ``size`` bytes from ``position`` of ``path``; ``saved_as`` is the file that keeps them, "" if they held no whole
    batch.
    """

    path: str
    position: int
    size: int
    reason: str
    saved_as: str = ""


class AppendInfo(NamedTuple):
    """The result of an append (Kafka: LogAppendInfo). Offsets are inclusive, sizes bytes, times ms since the epoch.

    ``is_duplicate``: a producer's batches were already in the log, at these offsets, and nothing was appended.
    """

    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    log_append_time: int
    source_codec: str
    target_codec: str
    batch_count: int
    record_count: int
    size: int
    offsets_monotonic: bool
    is_duplicate: bool = False


class RetentionResult(NamedTuple):
    """What retention deleted: segments, their bytes; ``start_offset`` is the log's start since then."""

    segment_count: int
    size: int
    start_offset: int


@dataclass(slots=True, repr=False)
class RecoveryReport:
    """What opening a log found and did.

    ``clean``: the last writer closed the log cleanly and nothing had to be checked; then the rest is empty.
    ``skipped`` are offsets that were used, of which no batch is left and nothing shows that they were ever synced: they
    are not used again, and reads pass over them.
    """

    clean: bool = True
    segments_scanned: int = 0
    bytes_scanned: int = 0
    batches_scanned: int = 0
    records_scanned: int = 0
    corrupt: list[CorruptRange] = field(default_factory=list)
    cut: list[CutRange] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    skipped: list[CorruptRange] = field(default_factory=list)

    def __repr__(self) -> str:
        """Only what differs from a clean open of a log that needed no work."""
        found = {row.name: getattr(self, row.name) for row in fields(self)}
        shown = [f"{name}={value!r}" for name, value in found.items() if name == "clean" or value]
        return f"RecoveryReport({', '.join(shown)})"

    @property
    def bytes_cut(self) -> int:
        """Bytes that recovery removed from the log's files, set aside or not."""
        return sum(cut.size for cut in self.cut)

    def summary(self) -> str:
        """What was lost, in one line; "" if nothing was."""
        parts = []
        if self.corrupt:
            lost = sum(gone.last - gone.first + 1 for gone in self.corrupt)
            parts.append(f"{lost} offsets in {len(self.corrupt)} damaged ranges are fenced")
            if unconfirmed := sum(gone.last - gone.first + 1 for gone in self.corrupt if gone.is_unconfirmed):
                parts.append(f"{unconfirmed} of these offsets may never have been acknowledged")
            parts.append("Log.accept_loss, or kstore recover --accept-loss, lets reads skip them")
        if self.skipped:
            count = sum(gone.last - gone.first + 1 for gone in self.skipped)
            parts.append(f"{count} offsets are skipped: their records were never known to be durable, and are gone")
        if self.cut:
            saved = [cut.saved_as for cut in self.cut if cut.saved_as]
            parts.append(f"{self.bytes_cut} bytes were cut" + (f", kept in {', '.join(saved)}" if saved else ""))
        return "; ".join(parts)
