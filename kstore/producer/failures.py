"""Errors in the form in which deliveries keep them, and errors of their callbacks."""

from __future__ import annotations

import logging

from kstore.producer._accumulate import ProducerBatch

logger = logging.getLogger(__name__)


def log_callback(batch: ProducerBatch, failure: BaseException) -> None:
    """Logs the exception of a callback of a record in ``batch``."""
    logger.error("%s-%d: a callback failed", batch.topic, batch.partition, exc_info=failure)


def without_frames(error: BaseException) -> BaseException:
    """The error and its causes, without the frames of their tracebacks, which would keep the written data alive as long
    as the error. A pooled buffer cannot grow while a view of it is alive."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error
