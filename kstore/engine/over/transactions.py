"""A log's producers, and how their transactions are ended, for ``Log``."""

from __future__ import annotations

from kstore.engine.source import LogSource
from kstore.engine.writer import LogWriter
from kstore.errors import InvalidTransactionStateError
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.rules.arguments import whole_number
from kstore.types import NO_TIMESTAMP, OpenTransaction, ProducerInfo


def end_transaction(
    writer: LogWriter,
    producer_id: int,
    producer_epoch: int,
    *,
    commit: bool,
    coordinator_epoch: int,
    timestamp: int | None,
) -> int:
    """See ``Log.end_transaction``."""
    whole_number("producer_id", producer_id, 64)
    whole_number("producer_epoch", producer_epoch, 16)
    whole_number("coordinator_epoch", coordinator_epoch, 32)
    if timestamp is not None:
        whole_number("timestamp", timestamp, 64)
    kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
    end = EndTransactionMarker(kind, coordinator_epoch)
    try:
        return writer.end_transaction(producer_id, producer_epoch, end, timestamp)
    except Exception as error:
        writer.context.counters.append_failed(error)
        raise


def producers(source: LogSource) -> list[ProducerInfo]:
    """See ``Log.producers``."""
    source.refresh()
    return [
        ProducerInfo(
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.last_offset,
            producer.timestamp,
            producer.coordinator_epoch,
            producer.current_txn_first_offset if producer.is_in_transaction else None,
        )
        for producer in source.known_producers()
    ]


def open_transactions(source: LogSource, hanging_ms: int) -> list[OpenTransaction]:
    """See ``Log.transactions``."""
    source.refresh()
    now_ms = source.context.clock.now_ms()
    found = [
        OpenTransaction(
            producer.producer_id,
            producer.producer_epoch,
            producer.coordinator_epoch,
            producer.current_txn_first_offset,
            producer.timestamp,
            NO_TIMESTAMP if producer.timestamp < 0 else max(now_ms - producer.timestamp, 0),
        )
        for producer in source.known_producers()
        if producer.is_in_transaction
    ]
    hanging = [transaction for transaction in found if not 0 <= transaction.age_ms < hanging_ms]
    return sorted(hanging, key=lambda transaction: transaction.first_offset)


def abort_transaction(writer: LogWriter, producer_id: int, hanging_ms: int) -> int:
    """See ``Log.abort_transaction``."""
    found = _transaction_of(writer, producer_id, hanging_ms)
    return end_transaction(
        writer,
        producer_id,
        # A batch may have one below 0, which no writer uses: a marker of any later one ends its transaction.
        max(found.producer_epoch, 0),
        commit=False,
        # As its coordinator would: no later epoch than the last one is known.
        coordinator_epoch=max(found.coordinator_epoch, 0),
        timestamp=None,
    )


def _transaction_of(source: LogSource, producer_id: int, hanging_ms: int) -> OpenTransaction:
    for transaction in open_transactions(source, hanging_ms):
        if transaction.producer_id == producer_id:
            return transaction
    silent = f" that is silent for {hanging_ms} ms" if hanging_ms else ""
    raise InvalidTransactionStateError(f"producer {producer_id} has no open transaction{silent}")
