"""A delivery as a ``concurrent.futures.Future``, for the functions of that module and of asyncio."""

from __future__ import annotations

import os
import weakref
from concurrent.futures import Future

from kstore.errors import ForkedError
from kstore.producer._accumulate import Delivery
from kstore.producer.records import RecordMetadata
from kstore.producer.waiting import Hurry

# The state of a future that has its result, as concurrent.futures names it.
FINISHED = "FINISHED"


class RecordFuture(Future[RecordMetadata]):
    """See ``Delivery.future``. Thread-safe."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__()
        self._delivery = delivery
        self.set_running_or_notify_cancel()
        batch = delivery._batch()
        if not batch.is_done and isinstance(batch.hurry, Hurry):
            try:
                batch.hurry.check_fork()
            except ForkedError as error:
                self.set_exception(error)
                return
        _known.add(self)
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


# --- forks ------------------------------------------------------------------------------------------------------------

_known: weakref.WeakSet[RecordFuture] = weakref.WeakSet()


def _fail_in_child() -> None:
    """Ends the waits of a forked child, where no thread delivers: with ForkedError, by whatever function it waits."""
    for future in list(_known):
        # A thread of the parent may hold the lock, and its waiters and callbacks are the parent's.
        future._condition = type(future._condition)()
        if future._state != FINISHED:
            vars(future)["_done_callbacks"] = []
            future._exception = ForkedError("the delivery belongs to the parent process, which writes the record")
            future._state = FINISHED


os.register_at_fork(after_in_child=_fail_in_child)
