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
from kstore.door.parts import part_of
from kstore.engine.over.foreign import append_batches
from kstore.engine.writer import LogWriter
from kstore.errors import InvalidRecordError, KstoreError
from kstore.files.threads import side_by_side
from kstore.log import writer_of
from kstore.record.batch import MAGIC_V2
from kstore.record.parse import parse_batch
from kstore.store import coordinator_of

NO_ACKS: Final = 0
ACKS: Final = (-1, 0, 1)
ZSTD_SINCE: Final = 7
# Syncs of several files at a time share the work of the file system; more threads add nothing to that.
SYNC_THREADS_MAX: Final = 16
NO_ID: Final = -1


def produce(call: Call) -> Message | None:
    """Answers Produce; with acks 0 not at all. Raises: ConnectionEnded, with acks 0 for any error, as a broker."""
    body = call.body
    acks = body["acks"]
    answers = [
        (topic["name"], [_Appended(call, topic["name"], asked) for asked in topic["partitionData"]])
        for topic in body["topicData"]
    ]
    appends = [append for _, some in answers for append in some]
    if acks not in ACKS:
        for append in appends:
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
    for append in appends:
        append.check()
    syncing = [append for append in appends if append.writer is not None and append.writer.syncs_appends]
    # Two batches for one partition keep their order.
    if len(syncing) > 1 and len({id(append.writer) for append in syncing}) == len(syncing):
        side_by_side(_Appended.run, syncing, count=SYNC_THREADS_MAX, name="kstore-door-sync")
    for append in appends:
        append.run()


class _Appended:
    """The batch of one partition, and what became of it."""

    __slots__ = ("_answer", "_asked", "_call", "_is_done", "_topic", "error", "reason", "writer")

    def __init__(self, call: Call, topic: str, asked: Message) -> None:
        self._call = call
        self._topic = topic
        self._asked = asked
        self._answer: Message = {"baseOffset": -1}
        self._is_done = False
        self.error: int = errors.NONE
        self.reason = ""
        self.writer: LogWriter | None = None

    def fail(self, error: int, reason: str) -> None:
        self.error, self.reason, self._is_done = error, reason, True

    def check(self) -> None:
        """Finds the log, and checks what a log does not check itself."""
        try:
            part = part_of(self._call.door, self._topic, self._asked["index"])
            if is_reserved(self._topic):
                self.fail(errors.INVALID_TOPIC_EXCEPTION, f"{self._topic} is written to by the store alone")
                return
            self.writer = writer_of(part.log)
            self._check_records()
        except KstoreError as error:
            self._fail(error)

    def _check_records(self) -> None:
        """Checks the form: one whole batch of magic 2, as a client builds it. Its log checks everything else."""
        records = self._asked["records"]
        if not records:
            raise InvalidRecordError("no batch, expected one")
        batch = parse_batch(records, 0, header_only=True)
        if batch.magic != MAGIC_V2:
            raise InvalidRecordError(f"a batch of magic {batch.magic}, expected {MAGIC_V2}")
        if batch.size != len(records):
            raise InvalidRecordError(f"{len(records)} bytes, expected the {batch.size} of exactly one batch")
        if batch.base_offset != 0:
            raise InvalidRecordError(f"a batch of base offset {batch.base_offset}, expected 0")
        if batch.codec == "zstd" and self._call.version < ZSTD_SINCE:
            self.fail(errors.UNSUPPORTED_COMPRESSION_TYPE, f"zstd, expected in version {ZSTD_SINCE} or later")
        elif batch.is_transactional or self._call.body["transactionalId"] is not None:
            self.fail(errors.INVALID_TXN_STATE, "the partition was not added to a transaction")

    def run(self) -> None:
        """Appends once, unless it has failed."""
        if self._is_done:
            return
        self._is_done = True
        assert self.writer is not None, "checked"
        try:
            info = append_batches(self.writer, self._asked["records"])
        except KstoreError as error:
            self._fail(error)
        else:
            start_offset = self.writer.ends.start_offset
            self._answer = {
                "baseOffset": info.first_offset,
                "logAppendTimeMs": info.log_append_time,
                "logStartOffset": start_offset,
            }

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


def init_producer_id(call: Call) -> Message:
    """Answers InitProducerId of an idempotent producer: an id that was never used, of which a restart loses none."""
    body = call.body
    if body["transactionalId"] is not None:
        if not body["transactionalId"]:
            return {"errorCode": errors.INVALID_REQUEST}
        # No API of transactions is served.
        return {"errorCode": errors.UNSUPPORTED_VERSION}
    if (body["producerId"] == NO_ID) != (body["producerEpoch"] == NO_ID):
        return {"errorCode": errors.INVALID_REQUEST}
    try:
        producer_id, epoch = coordinator_of(call.door.store).init_producer_id(None)
    except KstoreError as error:
        return {"errorCode": code_of(error)}
    return {"producerId": producer_id, "producerEpoch": epoch}
