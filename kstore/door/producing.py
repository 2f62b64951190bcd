"""Produce and InitProducerId: batches of clients go into logs as they came, each partition with its own error.

Everything about a batch is checked before a byte of it is written. An answer says that the batch is as durable as its
topic's ``durability``: acks 1 and -1 are the same here, and acks 0 is no answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kstore.door import errors
from kstore.door.call import Call, ConnectionEnded, Message
from kstore.door.cluster import is_reserved
from kstore.door.errors import code_of
from kstore.door.served import log_of
from kstore.engine.over.foreign import append_batches
from kstore.engine.writer import LogWriter
from kstore.errors import CorruptBatchError, InvalidRecordError, KstoreError
from kstore.files.threads import side_by_side
from kstore.log import writer_of
from kstore.record.batch import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_HEADER,
    BATCH_HEADER_BYTES,
    CRC_START,
    LOG_OVERHEAD_BYTES,
    MAGIC_V2,
    BatchHeader,
    batch_crc,
)
from kstore.record.compression import CODECS_BY_NAME
from kstore.store import coordinator_of

NO_ACKS: Final = 0
ACKS: Final = (-1, 0, 1)
ZSTD: Final = CODECS_BY_NAME["zstd"]
ZSTD_SINCE: Final = 7
# Syncs of several files at a time share the work of the file system; more threads add nothing to that.
SYNC_THREADS_MAX: Final = 16
NO_ID: Final = -1
# Errors whose answers have no start of the log.
WITHOUT_START: Final = (
    errors.CORRUPT_MESSAGE,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.MESSAGE_TOO_LARGE,
    errors.RECORD_LIST_TOO_LARGE,
    errors.KAFKA_STORAGE_ERROR,
)


def produce(call: Call) -> Message | None:
    """Answers Produce; with acks 0 not at all. Raises: ConnectionEnded, with acks 0 for any error, as a broker."""
    body = call.body
    acks = body["acks"]
    answers = [
        (topic["name"], [_Appended(call, topic["name"], asked) for asked in topic["partitionData"]])
        for topic in body["topicData"]
    ]
    appends = [append for _, some in answers for append in some]
    for append in appends:
        append.check()
    if any(append.is_transactional for append in appends) and body["transactionalId"] is None:
        for append in appends:
            append.fail(errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without transactional id")
    elif acks not in ACKS:
        for append in appends:
            if not append.error:
                append.fail(errors.INVALID_REQUIRED_ACKS, f"acks is {acks}, expected -1, 0 or 1")
    else:
        _append_all(appends)
    if acks == NO_ACKS:
        failed = next((append for append in appends if append.error), None)
        if failed is not None:
            raise ConnectionEnded(f"a Produce without acks failed with error {failed.error}: {failed.reason}")
        return None
    return {
        "responses": [
            {"name": name, "partitionResponses": [append.answer() for append in some]} for name, some in answers
        ]
    }


def _append_all(appends: Sequence[_Appended]) -> None:
    """Appends to all partitions; to those that sync each append at the same time, so that they share the syncs."""
    syncing = [append for append in appends if append.writer is not None and append.writer.syncs_appends]
    # Two batches for one partition keep their order.
    if len(syncing) > 1 and len({id(append.writer) for append in syncing}) == len(syncing):
        side_by_side(_Appended.run, syncing, count=SYNC_THREADS_MAX, name="kstore-door-sync")
    for append in appends:
        append.run()


class _Appended:
    """The batch of one partition, and what became of it."""

    __slots__ = (
        "_answer",
        "_asked",
        "_call",
        "_is_done",
        "_topic",
        "error",
        "is_transactional",
        "reason",
        "writer",
    )

    def __init__(self, call: Call, topic: str, asked: Message) -> None:
        self._call = call
        self._topic = topic
        self._asked = asked
        self._answer: Message = {"baseOffset": -1}
        self._is_done = False
        self.is_transactional = False
        self.error: int = errors.NONE
        self.reason = ""
        self.writer: LogWriter | None = None

    def fail(self, error: int, reason: str) -> None:
        self.error, self.reason, self._is_done = error, reason, True

    def check(self) -> None:
        """Finds the log, and checks the form of the batch: what a broker does before it looks at ``acks``."""
        try:
            log = log_of(self._call.door, self._topic, self._asked["index"])
            if is_reserved(self._topic):
                self.fail(errors.INVALID_TOPIC_EXCEPTION, f"{self._topic} is written to by the store alone")
                return
            self.writer = writer_of(log)
            header = self._header()
        except KstoreError as error:
            self._fail(error)
            return
        self.is_transactional = bool(header.attributes & ATTRIBUTE_TRANSACTIONAL)
        if header.attributes & ATTRIBUTE_CODEC == ZSTD.id and self._call.version < ZSTD_SINCE:
            self.fail(errors.UNSUPPORTED_COMPRESSION_TYPE, f"zstd, expected in version {ZSTD_SINCE} or later")

    def _header(self) -> BatchHeader:
        """The header of the records, which are one whole batch of magic 2. Raises: InvalidRecordError,
        CorruptBatchError."""
        records = self._asked["records"]
        if not records:
            raise InvalidRecordError("no batch, expected one")
        if len(records) < BATCH_HEADER_BYTES:
            raise InvalidRecordError(f"{len(records)} bytes, expected the {BATCH_HEADER_BYTES} of a batch's header")
        header = BatchHeader._make(BATCH_HEADER.unpack_from(records))
        size = header.batch_length + LOG_OVERHEAD_BYTES
        if size < BATCH_HEADER_BYTES:
            raise CorruptBatchError(f"a batch of {size} bytes, expected at least {BATCH_HEADER_BYTES}")
        if header.magic > MAGIC_V2:
            raise CorruptBatchError(f"a batch of magic {header.magic}, expected {MAGIC_V2}")
        if header.magic < MAGIC_V2:
            raise InvalidRecordError(f"a batch of magic {header.magic}, expected {MAGIC_V2}")
        if size != len(records):
            raise InvalidRecordError(f"{len(records)} bytes, expected the {size} of exactly one batch")
        return header

    def run(self) -> None:
        """Appends once, unless it has failed."""
        if self._is_done:
            return
        self._is_done = True
        assert self.writer is not None, "checked"
        if self.is_transactional:
            self.fail(errors.INVALID_TXN_STATE, "the partition was not added to a transaction")
            return
        try:
            # The bytes are in memory of this request alone.
            info = append_batches(self.writer, self._asked["records"], copy=False)
        except KstoreError as error:
            self._fail_at_log(error)
        else:
            start_offset = self.writer.ends.start_offset
            self._answer = {
                "baseOffset": info.first_offset,
                "logAppendTimeMs": info.log_append_time,
                "logStartOffset": start_offset,
            }

    def _fail_at_log(self, error: KstoreError) -> None:
        """Fails a batch of the right form. As at a broker, most of these errors come with the start of the log."""
        self._fail(error)
        if self.error == errors.CORRUPT_MESSAGE and _has_right_crc(self._asked["records"]):
            self.error = errors.INVALID_RECORD  # it came as its client made it: to send it again is in vain
        if self.error not in WITHOUT_START and self.writer is not None:
            self._answer["logStartOffset"] = self.writer.ends.start_offset

    def _fail(self, error: KstoreError) -> None:
        if isinstance(error, InvalidRecordError):
            self._answer["recordErrors"] = [
                {"batchIndex": one.index, "batchIndexErrorMessage": one.message} for one in error.record_errors
            ]
        self.fail(code_of(error), str(error))

    def answer(self) -> Message:
        """The response for the partition."""
        return {
            "index": self._asked["index"],
            "errorCode": self.error,
            "errorMessage": self.reason or None,
            **self._answer,
        }


def _has_right_crc(batch: memoryview | bytes) -> bool:
    return batch_crc(memoryview(batch)[CRC_START:]) == BatchHeader._make(BATCH_HEADER.unpack_from(batch)).crc


def init_producer_id(call: Call) -> Message:
    """Answers InitProducerId of an idempotent producer: an id that was never used, of which a restart loses none."""
    body = call.body
    if body["transactionalId"] is not None:
        # No API of transactions is served.
        is_empty = not body["transactionalId"]
        return {"errorCode": errors.INVALID_REQUEST if is_empty else errors.UNSUPPORTED_VERSION, "producerEpoch": NO_ID}
    if (body["producerId"] == NO_ID) != (body["producerEpoch"] == NO_ID):
        return {"errorCode": errors.INVALID_REQUEST, "producerEpoch": NO_ID}
    try:
        producer_id, epoch = coordinator_of(call.door.store).init_producer_id(None)
    except KstoreError as error:
        return {"errorCode": code_of(error), "producerEpoch": NO_ID}
    return {"producerId": producer_id, "producerEpoch": epoch}
