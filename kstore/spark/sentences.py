"""Errors as Spark shows them: with the traceback of kstore's error alone, not first those of what caused it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kstore.errors import KstoreError

__all__ = ["without_causes"]


@contextmanager
def without_causes() -> Iterator[None]:
    """Around what Spark calls, also as a decorator: an error of kstore leaves it without its causes.

    Spark passes errors on as text, causes first. An error's own message says everything that a user needs.
    """
    try:
        yield
    except KstoreError as error:
        raise error from None
