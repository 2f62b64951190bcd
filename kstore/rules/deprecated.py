"""Public names of an earlier release: they work for one more, with a warning (docs/stability.md)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def farewell(what: str, instead: str) -> str:
    """The sentence of a warning; ``instead`` says what replaces it."""
    return f"{what} will be removed in the next minor release: {instead}"


def deprecated(name: str, instead: str, function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """``function`` as the public function ``name``, which warns at each call."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **named: Arguments.kwargs) -> Result:
        warnings.warn(farewell(name, instead), DeprecationWarning, stacklevel=2)
        return function(*args, **named)

    call.__name__ = call.__qualname__ = name.rpartition(".")[2]
    return call


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
        warnings.warn(farewell(self._name, self._instead), DeprecationWarning, stacklevel=2)
        if thing is None:  # as a function of the class
            return lambda thing, *args, **named: self._found(thing)(*args, **named)
        return self._found(thing)
