"""Gives an attribute another value for a while, in programs that tests start too.

``unittest.mock`` does it as well, but imports asyncio, which costs each such program a tenth of its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

ABSENT = object()


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Inside, ``owner.name`` is ``value``; afterwards it is what it was, or inherited as it was."""
    # What an attribute gives may be bound: what is put back is what the owner itself holds.
    before = vars(owner).get(name, ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
