"""A delivery as a ``concurrent.futures.Future``, for the functions of that module and of asyncio."""

from __future__ import annotations

from concurrent.futures import Future

from kstore.producer._accumulate import Delivery
from kstore.producer.records import RecordMetadata

__all__ = ["RecordFuture"]


class RecordFuture(Future[RecordMetadata]):
    """See ``Delivery.future``. Thread-safe."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self._delivery = delivery
        self.set_running_or_notify_cancel()
        delivery.add_callback(_Completion(self))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        error = super().exception(timeout)
        if error is not None:
            self._delivery._seen_error()
        return error

    def result(self, timeout: float | None = None) -> RecordMetadata:
        error = self.exception(timeout)
        if error is not None:
            # All records of a batch share the error, whose traceback would grow with each call.
            raise error.with_traceback(None)
        return super().result(timeout)


class _Completion:
    """The callback of a delivery that completes a future."""

    # The error counts as examined when the program asks the future for it.
    is_bystander = True

    def __init__(self, future: RecordFuture) -> None:
        self._future = future

    def __call__(self, metadata: RecordMetadata, error: Exception | None) -> None:
        if error is None:
            self._future.set_result(metadata)
        else:
            self._future.set_exception(error)
