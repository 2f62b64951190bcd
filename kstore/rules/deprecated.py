"""Names that public classes had in an earlier release: they work for one more, with a warning (docs/stability.md)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["Deprecated"]


class Deprecated:
    """An attribute that only kstore's own layers should use. A class hides it from editors and type checkers with
    ``if not TYPE_CHECKING``."""

    def __init__(self, found: Callable[[Any], object]) -> None:
        """``found`` returns the attribute of an object."""
        self._found = found

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, thing: object, owner: type | None = None) -> object:
        if thing is None:
            return self
        message = f"{self._name} is for kstore's own use, and goes in the next minor release"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self._found(thing)
