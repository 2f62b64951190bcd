"""The form of an error that a delivery keeps."""

from __future__ import annotations

__all__ = ["without_frames"]


def without_frames(error: BaseException) -> BaseException:
    """The error and its causes, without the frames of their tracebacks: those keep alive what was to be written, as
    long as the error is kept. A pooled buffer with a view of it alive cannot grow."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error
