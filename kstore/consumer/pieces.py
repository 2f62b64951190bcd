"""The records that an iteration has handed to compiled code, and its progress: no Python call per record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, Protocol

from kstore.files.paths import TopicPartition
from kstore.record._codec import RecordCursor
from kstore.record._runs import RunRecords, RunValues

# Creates items on request, and knows its progress.
Cursor = RecordCursor | RunRecords | RunValues


class Lender(Protocol):
    """The partition that a piece belongs to: ``fetching.PartitionReader``, which is built on pieces and cannot be
    imported here."""

    @property
    def owner(self) -> TopicPartition: ...
    @property
    def position(self) -> int | None: ...
    @property
    def paused(self) -> bool: ...
    def known_position(self) -> int | None: ...
    def seek(self, offset: int | None) -> None: ...
    def leave(self, offset: int, unused_count: int = 0) -> None: ...
    def stop(self) -> None: ...
    def lend(self, count: int) -> LentItems | None: ...
    def lend_values(self, count: int) -> LentItems | None: ...
    def settle(self) -> None:
        """Notes the progress: all lent records were given out, or their piece was ended."""
        ...


class LentItems(Protocol):
    """Some items of one partition, given out by an iterator that can be ended."""

    @property
    def reader(self) -> Lender: ...

    @property
    def items(self) -> Iterator[Any]: ...

    @property
    def is_of_values(self) -> bool:
        """Whether its items are values, not records."""
        ...

    def position(self) -> int | None:
        """The offset after the last item that was given out."""
        ...

    def end(self) -> None:
        """Stops giving out items; the reader continues after the last one."""
        ...

    def following(self, count: int) -> LentItems | None:
        """The next piece of the same kind and partition, after this one was given out; None if no more is available
        now."""
        ...


class CursorPiece:
    """Records, or values, that are created on request."""

    __slots__ = ("_cursor", "items", "reader")

    def __init__(self, reader: Lender, cursor: Cursor, count: int | None) -> None:
        """``count``: the most items; None means all, with nothing between the cursor and the caller."""
        self.reader: Lender = reader
        self._cursor = cursor
        self.items: Iterator[Any] = cursor if count is None else islice(cursor, count)

    @property
    def is_of_values(self) -> bool:
        return isinstance(self._cursor, RunValues)

    def position(self) -> int | None:
        return self._cursor.next_offset

    def following(self, count: int) -> LentItems | None:
        return self.reader.lend_values(count) if self.is_of_values else self.reader.lend(count)

    def end(self) -> None:
        if not self._cursor.has_more:
            self.reader.settle()
            return
        # First: if Ctrl-C comes in between, a second call does the same. An ended cursor looks like one all given out.
        self.reader.leave(self._cursor.next_offset)
        self._cursor.end()


class ListPiece:
    """Items that exist already; ``offsets`` has their offsets if they have none themselves."""

    __slots__ = ("_items", "_offsets", "items", "reader")

    def __init__(self, reader: Lender, items: list[Any], offsets: Sequence[int] | None = None) -> None:
        self.reader: Lender = reader
        self._items = items
        self._offsets = offsets
        self.items: Iterator[Any] = iter(items)

    @property
    def is_of_values(self) -> bool:
        return self._offsets is not None

    def position(self) -> int | None:
        rest = length_hint(self.items)
        if not rest:
            return self.reader.position
        place = len(self._items) - rest
        return self._items[place].offset if self._offsets is None else self._offsets[place]

    def following(self, count: int) -> LentItems | None:
        return self.reader.lend_values(count) if self.is_of_values else self.reader.lend(count)

    def end(self) -> None:
        if rest := length_hint(self.items):
            offset = self.position()
            assert offset is not None
            # First: if Ctrl-C comes in between, a second call does the same.
            self.reader.leave(offset, rest)
            # Past the last item: the holder of the iterator finds it exhausted.
            self.items.__setstate__(len(self._items))  # type: ignore[attr-defined]
