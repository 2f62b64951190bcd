"""Objects whose creation waits: await them, or open them with ``async with``, which also closes them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, TypeVar

Arguments = ParamSpec("Arguments")


def made_by(call: str) -> Callable[[Callable[Arguments, None]], Callable[Arguments, None]]:
    """Decorates the ``__init__`` of a class that ``call`` makes: the error of a user's own call says so."""

    def decorate(init: Callable[Arguments, None]) -> Callable[Arguments, None]:
        arguments = signature(init)

        @wraps(init)
        def checked(*given: Arguments.args, **named: Arguments.kwargs) -> None:
            try:
                init(*given, **named)
            except TypeError:
                try:
                    arguments.bind(*given, **named)
                except TypeError:
                    kind = type(given[0]).__name__
                    raise TypeError(f"an aio.{kind} belongs to an open store: use {call}") from None
                raise

        return checked

    return decorate


class _Closable(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Made = TypeVar("Made", bound=_Closable)


class Opening(Coroutine[Any, Any, Made]):
    """``async with open(...) as made`` and ``made = await open(...)``; also works with ``create_task``, like a
    coroutine."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Made]]) -> None:
        self._make = make
        self.__qualname__ = make.__qualname__  # for the names of tasks
        self._making: Coroutine[Any, Any, Made] | None = None
        self._made: Made | None = None

    def __await__(self) -> Generator[Any, None, Made]:
        return self._make().__await__()

    async def __aenter__(self) -> Made:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # a type checker would then take any name

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f'no {name!r} before it is open: use "async with ... as opened:", or "opened = await ..."'
            )

    # --- the interface of a coroutine --------------------------------------------------------------------------

    def send(self, value: Any, /) -> Any:
        if self._making is None:
            self._making = self._make()
        return self._making.send(value)

    def throw(self, *error: Any) -> Any:
        if self._making is None:
            self._making = self._make()
        return self._making.throw(*error)

    def close(self) -> None:
        if self._making is not None:
            self._making.close()
