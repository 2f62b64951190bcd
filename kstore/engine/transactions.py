"""What a log knows of its producers, and how their transactions are ended: what ``Log`` inherits for this."""

from __future__ import annotations

from kstore.engine.source import LogSource
from kstore.engine.writer import LogWriter
from kstore.errors import InvalidTransactionStateError
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.rules.arguments import whole_number
from kstore.types import NO_TIMESTAMP, OpenTransaction, ProducerInfo

__all__ = ["LogTransactions"]


class LogTransactions:
    """The part of ``Log`` that is about producers."""

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
        whole_number("producer_id", producer_id, 64)
        whole_number("producer_epoch", producer_epoch, 16)
        whole_number("coordinator_epoch", coordinator_epoch, 32)
        if timestamp is not None:
            whole_number("timestamp", timestamp, 64)
        kind = ControlRecordType.COMMIT if commit else ControlRecordType.ABORT
        end = EndTransactionMarker(kind, coordinator_epoch)
        writer = self._writing
        try:
            return writer.end_transaction(producer_id, producer_epoch, end, timestamp)
        except Exception as error:
            writer.context.counters.append_failed(error)
            raise

    def producers(self) -> list[ProducerInfo]:
        """What the log knows of each producer that has written to it and is not forgotten, in the order of their ids.

        Raises: StorageError.
        """
        source = self._source
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

    def transactions(self, *, hanging_ms: int = 0) -> list[OpenTransaction]:
        """The open transactions, the oldest first; with ``hanging_ms`` those whose producers are silent for so long.

        Who reads committed records waits for the oldest of them. ``end_transaction`` ends one that nobody else will.

        Raises: StorageError.
        """
        source = self._source
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

    def abort_transaction(self, producer_id: int, *, hanging_ms: int = 0) -> int:
        """Ends an open transaction that nobody else will end; returns the offset of its end marker.

        Raises: InvalidTransactionStateError where the producer has none open, or is silent for less than
        ``hanging_ms``; and as ``end_transaction``.
        """
        for transaction in self.transactions(hanging_ms=hanging_ms):
            if transaction.producer_id == producer_id:
                # As its coordinator would: of a later epoch than the last one, none is known.
                coordinator_epoch = max(transaction.coordinator_epoch, 0)
                return self.end_transaction(
                    producer_id, transaction.producer_epoch, commit=False, coordinator_epoch=coordinator_epoch
                )
        silent = f" that is silent for {hanging_ms} ms" if hanging_ms else ""
        raise InvalidTransactionStateError(f"producer {producer_id} has no open transaction{silent}")

    def expire_producers(self) -> int:
        """Forgets producers that have written nothing for ``producer_id_expiration_ms``; returns how many.

        Appends of producers do so too, every ten minutes. Who has a transaction open is not forgotten.

        Raises: as ``append_many``.
        """
        return self._writing.expire_producers()

    # --- what ``Log`` has ---------------------------------------------------------------------------------------------

    @property
    def _source(self) -> LogSource:
        raise NotImplementedError

    @property
    def _writing(self) -> LogWriter:
        raise NotImplementedError
