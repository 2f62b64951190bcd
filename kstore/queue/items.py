"""An item as a record: the queue's own data is in headers whose names start with ``kstore.``. No I/O here.

    kstore.due          ms since the epoch: not delivered before this time
    kstore.deliveries   how many times it was delivered before it got here
    kstore.moved-from   it is a copy of the item at that offset, which counts if the journal says so
    kstore.dead-from    a dead letter: its former topic and offset

Their values are decimal numbers as text, so that ``kstore read`` shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

from kstore.record._codec import Record
from kstore.types import INT64_MAX

Headers = tuple[tuple[str, bytes | None], ...]
# What callers may give.
GivenHeaders = Mapping[str, bytes | None] | Mapping[bytes, bytes | None] | Iterable[tuple[str | bytes, bytes | None]]
# A header's key: text; bytes; or bytes only if it is not UTF-8.
KeyT = TypeVar("KeyT", str, bytes, str | bytes)

OWN = "kstore."
OWN_BYTES = OWN.encode()
DUE, DELIVERIES, MOVED_FROM, DEAD_FROM = "kstore.due", "kstore.deliveries", "kstore.moved-from", "kstore.dead-from"
NUMBER_BYTES_MAX = 19


class Marks(NamedTuple):
    """The queue's own headers."""

    due_ms: int = 0
    delivery_count: int = 0
    moved_from: int | None = None


NOTHING = Marks()


class Shown(NamedTuple):
    """An item as ``peek`` shows it; ``is_leased`` within this process, ``due_ms`` 0 if it waits for nothing."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    delivery_count: int
    due_ms: int
    is_leased: bool


def marks_of(record: Record) -> Marks:
    """A record's own headers of the queue; a value that is not a number is ignored."""
    found = {name: _number(value) for name, value in record.headers if _is_own(name)}
    if not found:
        return NOTHING
    return Marks(found.get(DUE) or 0, found.get(DELIVERIES) or 0, found.get(MOVED_FROM))


def _is_own(key: str | bytes) -> bool:
    return key.startswith(OWN_BYTES) if isinstance(key, bytes) else key.startswith(OWN)


def of_user(headers: tuple[tuple[KeyT, bytes | None], ...]) -> tuple[tuple[KeyT, bytes | None], ...]:
    """The headers without those of the queue."""
    return tuple([header for header in headers if not _is_own(header[0])]) if headers else headers


def with_marks(
    headers: tuple[tuple[KeyT, bytes | None], ...], marks: Marks, dead_from: str = ""
) -> tuple[tuple[str | bytes, bytes | None], ...]:
    """The user's headers, with those for ``marks``."""
    own: list[tuple[str | bytes, bytes | None]] = []
    if marks.due_ms:
        own.append((DUE, b"%d" % marks.due_ms))
    if marks.delivery_count:
        own.append((DELIVERIES, b"%d" % marks.delivery_count))
    if marks.moved_from is not None:
        own.append((MOVED_FROM, b"%d" % marks.moved_from))
    if dead_from:
        own.append((DEAD_FROM, dead_from.encode()))
    return (*of_user(headers), *own)


def _number(value: bytes | None) -> int | None:
    if not value or len(value) > NUMBER_BYTES_MAX or not value.isdigit():
        return None
    return min(int(value), INT64_MAX)
