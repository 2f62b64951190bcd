"""A planted bug: the lines that it changes, and the tests that must catch it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """In ``file``, ``old`` becomes ``new``; ``tests`` must fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: str
