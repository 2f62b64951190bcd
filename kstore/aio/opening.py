"""What takes some blocking to be made: to be awaited, or opened by ``async with``, which also closes it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["Opening"]


class _Closable(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


Made = TypeVar("Made", bound=_Closable)


class Opening(Generic[Made]):
    """``async with open(...) as made`` and ``made = await open(...)``."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Made]]) -> None:
        self._make = make
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
