"""Every error that kstore raises, sorted by whose fault it is.

    KstoreError
      CorruptDataError    the disk, or a foreign buffer, lied: where, what was found and what was expected
      StorageError        the operating system refused
      RequestError        the caller made an impossible request

Each is also the builtin exception that a Python user would catch (``OffsetOutOfRangeError`` is a ``LookupError``).
Messages never contain payload bytes.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Sequence

PathLike = str | os.PathLike[str]


class KstoreError(Exception):
    """The root of every error that kstore raises on purpose."""


# --- the disk, or a foreign buffer, lied ------------------------------------------------------------------------------


class CorruptDataError(KstoreError, ValueError):
    """Bytes that cannot be what they claim to be.

    ``path`` is the file (None for a buffer), ``position`` a byte in it, ``reason`` what was found and expected.
    """

    def __init__(self, reason: str, *, path: PathLike | None = None, position: int | None = None) -> None:
        self.reason = reason
        self.path = path
        self.position = position
        where = f"{os.fspath(path)}: " if path is not None else ""
        at = f" at position {position}" if position is not None else ""
        super().__init__(f"{where}{reason}{at}")


class CorruptRecordError(CorruptDataError):
    """A record with a broken structure; raised by the codec, which knows no file."""


class CorruptBatchError(CorruptDataError):
    """A batch that must not be served: its offsets ``first_offset`` to ``last_offset`` (both inclusive) are lost.

    The rest of the log stays readable. ``last_offset`` is the last one that can be missing: one below the next whole
    batch, or below the log's end. ``is_unconfirmed``: the offsets are above every durable end that recovery knew when
    it found the damage, so they may never have been acknowledged. ``Log.accept_loss`` lets reads continue.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: PathLike | None = None,
        position: int | None = None,
        first_offset: int = -1,
        last_offset: int = -1,
        is_unconfirmed: bool = False,
        advice: str = "",
    ) -> None:
        self.is_unconfirmed = is_unconfirmed
        self.first_offset = first_offset
        self.last_offset = last_offset
        lost = f" (offsets {first_offset} to {last_offset})" if first_offset >= 0 else ""
        super().__init__(reason + lost, path=path, position=position)
        self.reason = reason
        if advice:
            self.args: tuple[object, ...] = (f"{self}; {advice}",)


class CorruptIndexError(CorruptDataError):
    """An index that contradicts itself; it is rebuilt from the log."""


class CorruptFileError(CorruptDataError):
    """A checkpoint, snapshot or state file that fails its checks; it is rebuilt from the log."""


class UnsupportedFormatError(CorruptDataError):
    """A version, magic or attribute that this library does not know."""


class UnsupportedCodecError(CorruptDataError):
    """A compression codec that does not exist, or that the record format does not allow."""


# --- the operating system refused -------------------------------------------------------------------------------------


class StorageError(KstoreError, OSError):
    """An operation that the operating system refused; ``errno`` and ``filename`` are those of the cause."""


class DiskFullError(StorageError):
    """No space, quota or file size left (ENOSPC, EDQUOT, EFBIG). Nothing was appended; with space the log continues."""


class SyncFailedError(StorageError):
    """A failed sync: which of the written bytes are on disk is unknown, and a second sync would not tell.

    The log that sees it becomes poisoned.
    """


class FileMissingError(StorageError, FileNotFoundError):
    """A file, or a directory on the way to it, that does not exist."""


class FileInTheWayError(StorageError, FileExistsError):
    """A name to be created that exists already."""


class TruncatedFileError(StorageError):
    """A file became shorter than its known contents."""


class PoisonedError(StorageError):
    """A sync failed earlier: the log serves reads up to its durable end and takes no writes. Reopen it to recover."""


class LockedError(StorageError, BlockingIOError):
    """Another writer, kstore's or a broker's, holds the log."""


class ThreadStartError(StorageError, RuntimeError):
    """A thread that could not be started: the process may not have more, or the interpreter is ending."""


class ReadOnlyError(StorageError, PermissionError):
    """A write to a log that is open for reading, or on a read-only file system."""


# --- the caller made an impossible request ----------------------------------------------------------------------------


class RequestError(KstoreError):
    """The caller's request cannot be met; nothing was changed."""


class ConfigError(RequestError, ValueError):
    """A setting that does not exist, or an invalid value."""


class MissingExtraError(RequestError, ImportError):
    """A package that only a part of kstore needs is not installed; the message names the extra that includes it."""


class JavaNotFoundError(MissingExtraError):
    """No Java that Spark runs on; ``problems`` lists the result for each place that was checked."""

    def __init__(self, version_min: int, problems: Sequence[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        found = "; ".join(self.problems)
        super().__init__(
            f"Spark needs Java {version_min} or later: set JAVA_HOME, or pip install 'kstore[jre]'. Found: {found}"
        )


class OffsetOutOfRangeError(RequestError, LookupError):
    """An offset below the log's start or above its end."""

    def __init__(self, offset: int, *, start_offset: int, end_offset: int) -> None:
        self.offset = offset
        self.start_offset = start_offset
        self.end_offset = end_offset
        super().__init__(f"offset {offset} is outside the log, which holds {start_offset} to {end_offset} (exclusive)")


class RecordTooLargeError(RequestError, ValueError):
    """A record, or the batch it would make, over ``max_message_bytes``, or another ``setting``."""

    def __init__(
        self, size: int, limit: int, what: str = "record batch", *, setting: str = "max_message_bytes"
    ) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"{what} of {size} bytes is over the limit of {limit} bytes ({setting})")


class BatchTooLargeError(RequestError, ValueError):
    """One append over ``segment_bytes``, which fits no segment."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"an append of {size} bytes is over the segment size of {limit} bytes (segment_bytes)")


class DataLossError(RequestError, LookupError):
    """Records that a query should read and that no longer exist."""


class NotLostError(RequestError, ValueError):
    """Offsets whose loss should be accepted, but that are neither damaged nor lost; nothing was accepted."""

    def __init__(self, first_offset: int, last_offset: int) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        super().__init__(
            f"offsets {first_offset} to {last_offset} are neither damaged nor lost, expected only such offsets"
        )


class LossLimitError(RequestError, ValueError):
    """More separate ranges of accepted losses than a log keeps: ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"the log keeps at most {limit} ranges of accepted losses: delete_records, a truncation or a compaction of"
            " one frees an entry"
        )


class InvalidOffsetError(RequestError, ValueError):
    """An offset that does not follow, or cannot be stored relative to its segment."""


class IndexFullError(RequestError):
    """An entry for an index that has no slot left."""


class RecordError:
    """One record of a refused batch: its ``index`` in the batch and its problem."""

    __slots__ = ("index", "message")

    def __init__(self, index: int, message: str) -> None:
        self.index: int = index
        self.message: str = message

    def __repr__(self) -> str:
        return f"RecordError(index={self.index}, message={self.message!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordError) and (self.index, self.message) == (other.index, other.message)

    def __hash__(self) -> int:
        return hash((self.index, self.message))


class InvalidRecordError(RequestError, ValueError):
    """A batch refused because of its records; ``record_errors`` lists each of them (Kafka: LogValidator)."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        self.record_errors: tuple[RecordError, ...] = tuple(record_errors)
        super().__init__(message)


class InvalidTimestampError(InvalidRecordError):
    """A batch refused because a record's timestamp is outside the accepted range."""


class ProducerFencedError(RequestError, ValueError):
    """A producer of an older epoch than one that has written since: another instance has replaced it."""

    def __init__(self, producer_id: int, producer_epoch: int, latest_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.latest_epoch = latest_epoch
        super().__init__(f"producer {producer_id} has epoch {producer_epoch}, expected at least {latest_epoch}")


class InvalidProducerIdMappingError(ProducerFencedError):
    """A producer whose transactional id is unknown, or now belongs to another producer (Kafka: InvalidPidMapping)."""

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, found: str) -> None:
        super().__init__(producer_id, producer_epoch, producer_epoch)
        self.transactional_id = transactional_id
        of = f"producer {producer_id}, epoch {producer_epoch}, of transactional id {transactional_id!r}"
        self.args: tuple[object, ...] = (f"{of}: {found}",)


class InvalidProducerEpochError(ProducerFencedError):
    """The same, for a batch of records (Kafka: InvalidProducerEpochException)."""


class OutOfOrderSequenceError(RequestError, ValueError):
    """A producer's batch that does not follow its last one: a batch between them is missing."""

    def __init__(self, producer_id: int, producer_epoch: int, sequence: int, expected: int | None) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.sequence = sequence
        self.expected = expected
        rest = (
            "which is in the log, expected in an append without new ones"
            if expected is None
            else f"expected {expected}"
        )
        super().__init__(f"a batch of producer {producer_id}, epoch {producer_epoch}, has sequence {sequence}, {rest}")


class DuplicateSequenceError(OutOfOrderSequenceError):
    """A producer's batch that precedes its last one, and is not one of those still remembered.

    Also an append whose batches are only partly in the log; then ``expected`` is None.
    """


class InvalidTransactionStateError(RequestError, ValueError):
    """A batch outside of its producer's open transaction, or a transaction in another state than assumed."""


class TransactionCoordinatorFencedError(RequestError, ValueError):
    """The end of a transaction from a coordinator of an older epoch than that of the last end."""


class SerializationError(RequestError, TypeError, ValueError):
    """A key or a value that its serializer cannot convert to bytes."""


class BufferExhaustedError(RequestError, TimeoutError):
    """A record found no memory in time: the producer sends faster than its batches are written.

    Sizes are bytes: ``wanted`` of ``total_bytes``, of which ``available`` are free; ``waited_ms`` is how long it was
    allowed to wait, and ``poolable_bytes`` the size of the reused buffers.
    """

    def __init__(self, *, wanted: int, waited_ms: int, total_bytes: int, available: int, poolable_bytes: int) -> None:
        self.wanted = wanted
        self.waited_ms = waited_ms
        self.total_bytes = total_bytes
        self.available = available
        self.poolable_bytes = poolable_bytes
        super().__init__(
            f"no {wanted} bytes free within {waited_ms} ms: of {total_bytes} (buffer_memory) {available} are free, "
            f"batches have {poolable_bytes} (batch_size)"
        )


class DeliveryTimeoutError(RequestError, TimeoutError):
    """Records that were not in their log within ``delivery_timeout_ms``, and will not be sent any more."""


class TopicWaitTimeoutError(RequestError, TimeoutError):
    """A record for a topic, or a partition of one, that was not created within ``max_block_ms``."""


class TransactionAbortedError(RequestError, RuntimeError):
    """A record that was not sent because its transaction was aborted."""


class ReentrantCallError(RequestError, RuntimeError):
    """A call that would wait for itself: a finalizer, a signal handler or a handler of log messages runs inside a call
    of the same thread, which goes on unharmed. Make it later, or in another thread."""


class DeliveryError(KstoreError, RuntimeError):
    """Records that failed and whose deliveries were never checked: ``count`` of them, the ``first`` with that error."""

    def __init__(self, count: int, first: Exception) -> None:
        self.count = count
        self.first = first
        what = "1 record was" if count == 1 else f"{count} records were"
        super().__init__(f"{what} not delivered; the first: {type(first).__name__}: {first}")
        self.__cause__: BaseException | None = first


class ConsumerStateError(RequestError, RuntimeError):
    """A call that the consumer's state does not allow: on foreign partitions, without a group, or from two threads."""


class CommitFailedError(RequestError, RuntimeError):
    """A commit by a member whose partitions now belong to others: what it has read since will be read again."""


class GroupInUseError(RequestError, RuntimeError):
    """A member or a commit of this process for a group whose members are clients of the store's door: a group has
    members of one kind, since each kind shares its partitions by its own rules."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(
            f"group {group!r} has members that are clients of this store's door; expected a group without them: wait "
            "until they have left, or use another group"
        )


class NoOffsetError(RequestError, LookupError):
    """A partition without a committed offset, where ``auto_offset_reset`` is "none"."""


class RecordDeserializationError(RequestError, ValueError):
    """A record that a deserializer could not convert; a ``seek`` to ``offset + 1`` skips it."""

    def __init__(self, what: str, topic: str, partition: int, offset: int, reason: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        super().__init__(f"the {what} of {topic}-{partition} at offset {offset} cannot be deserialized: {reason}")


class WakeupError(RequestError, RuntimeError):
    """``wakeup`` was called on a consumer that waits, or is about to wait."""


class NotALogError(RequestError, NotADirectoryError):
    """A path that holds something other than a log."""


class LogNotFoundError(RequestError, FileNotFoundError):
    """A log opened for reading that does not exist."""


class TopicExistsError(RequestError, ValueError):
    """A topic to be created that exists, or whose name Kafka does not allow next to an existing one."""


class TopicNotFoundError(RequestError, LookupError):
    """A topic, or a partition of one, that does not exist."""


class DivergedError(RequestError, ValueError):
    """A copy that holds data its source lacks, a mirror or the backups of another store: an update would lose or hide
    that data."""


class ClosedError(RequestError, ValueError):
    """An operation on a closed log."""


class SharedLogError(RequestError, NotImplementedError):
    """An operation that is impossible on a log that several processes write to."""


class Empty(RequestError, queue.Empty):
    """A queue has no item that may be delivered now, or had none in time."""


class Full(RequestError, queue.Full):
    """A queue holds as many items as it may, or did for too long."""


class LeaseLostError(RequestError, LookupError):
    """An ack, a nack or an extension by a worker that no longer has the item."""


class ForkedError(RequestError, RuntimeError):
    """A handle that was open when the process forked: it works only in the parent."""


def not_picklable(kind: str, advice: str) -> TypeError:
    """The error for a pickle, or a copy, of something that belongs to its process."""
    return TypeError(f"a {kind} cannot be pickled or copied: {advice}")
