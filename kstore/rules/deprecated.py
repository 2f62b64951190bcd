"""Names that public classes had in an earlier release: they work for one more, with a warning (docs/stability.md)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["Deprecated"]


class Deprecated:
    """An attribute that only kstore's own layers should use. A class hides it from editors and type checkers with
    ``if not TYPE_CHECKING``."""

    def __init__(self, found: Callable[[Any], Any], instead: str) -> None:
        """``found`` returns the attribute of an object; ``instead`` says what replaces it."""
        self._found = found
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, thing: object, owner: type | None = None) -> object:
        message = f"{self._name} will be removed in the next minor release: {self._instead}"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        if thing is None:  # as a function of the class
            return lambda thing, *args, **named: self._found(thing)(*args, **named)
        return self._found(thing)
