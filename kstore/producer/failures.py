"""Errors in the form in which deliveries keep them."""

from __future__ import annotations

__all__ = ["without_frames"]


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
