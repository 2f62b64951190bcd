"""Interceptors: plug-ins that see, and may change, each record, and see its outcome.

An exception in an interceptor is logged, and stops neither the record nor the other interceptors.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kstore.producer.records import Callback, Headers, ProducerRecord, RecordMetadata, unknown_metadata

logger = logging.getLogger(__name__)


class ProducerInterceptor:
    """The methods of an interceptor; extend this class, or just match it. It is used by many threads at once."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record to send instead of ``record``; runs in the thread that sends, before the serializers."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Called when the record has arrived, or failed with ``error``: then ``metadata`` has what is known.

        Runs on the sender's thread, or in the thread that sends if the record failed there; it should be quick.
        """

    def on_acknowledgement_with_headers(
        self, metadata: RecordMetadata, error: Exception | None, headers: Headers | None
    ) -> None:
        """Called instead of ``on_acknowledgement``; ``headers`` are None if they are not known."""
        self.on_acknowledgement(metadata, error)

    def close(self) -> None:
        """Called when the producer was closed."""


class Interceptors:
    """A chain: each interceptor gets the record that the one before it returned (Kafka: ProducerInterceptors)."""

    def __init__(self, interceptors: Sequence[ProducerInterceptor] = ()) -> None:
        self._interceptors = tuple(interceptors)

    def __len__(self) -> int:
        return len(self._interceptors)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        for interceptor in self._interceptors:
            try:
                changed = interceptor.on_send(record)
                if not isinstance(changed, ProducerRecord):
                    raise TypeError(f"on_send returned a {type(changed).__name__}, expected a ProducerRecord")
                record = changed
            except Exception:
                # The next interceptor gets the result of the last one that succeeded.
                logger.exception("%s: %s failed in on_send", record.topic, type(interceptor).__name__)
        return record

    def on_acknowledgement(
        self, metadata: RecordMetadata, error: Exception | None, headers: Headers | None = None
    ) -> None:
        for interceptor in self._interceptors:
            try:
                with_headers = getattr(interceptor, "on_acknowledgement_with_headers", None)
                if with_headers is not None:
                    with_headers(metadata, error, headers)
                else:
                    interceptor.on_acknowledgement(metadata, error)
            except Exception:
                logger.exception("%s: %s failed in on_acknowledgement", metadata.topic, type(interceptor).__name__)

    def on_send_error(self, record: ProducerRecord, error: Exception, partition: int | None = None) -> None:
        """Reports a record that failed before it was in a batch; ``partition`` is the chosen one, or None.

        The error is passed on as an acknowledgement.
        """
        chosen = record.partition if partition is None else partition
        self.on_acknowledgement(unknown_metadata(record.topic, chosen), error, record.headers)

    def told_with(self, on_delivery: Callback | None, headers: Headers | None) -> Callback:
        """A callback that reports the outcome of a record to the interceptors, and then to the sender of the record
        (Kafka: AppendCallbacks)."""

        def tell(metadata: RecordMetadata, error: Exception | None) -> None:
            self.on_acknowledgement(metadata, error, headers)
            if on_delivery is not None:
                on_delivery(metadata, error)

        # An interceptor that learned of a failure is not the sender of the record.
        tell.is_bystander = on_delivery is None  # type: ignore[attr-defined]
        return tell

    def close(self) -> None:
        for interceptor in self._interceptors:
            try:
                close = getattr(interceptor, "close", None)
                if close is not None:
                    close()
            except Exception:
                logger.exception("%s failed in close", type(interceptor).__name__)
