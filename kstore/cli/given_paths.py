"""Paths in errors as the user gave them to the command, and one wording for one that does not exist."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

# The words of the system, and so of ls, cat and grep.
NO_SUCH_FILE = os.strerror(errno.ENOENT)


def name_as_given(error: OSError, given: Iterable[object]) -> None:
    """Changes ``error`` so that it names a file at or below one of ``given``, a command's arguments, as that one does.

    If an argument leads to nothing, that is the message, whatever was expected there.
    """
    if not isinstance(error.filename, str) or "://" in error.filename:
        return
    name = Path(error.filename)
    for text in sorted(set(_paths(given)), key=len, reverse=True):
        path = Path(text)
        if name in (path, path.absolute()):
            error.filename = text
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                error.strerror = NO_SUCH_FILE
            return
        if name.is_relative_to(path.absolute()):
            error.filename = str(path / name.relative_to(path.absolute()))
            return


def _paths(given: Iterable[object]) -> Iterator[str]:
    for value in given:
        if isinstance(value, tuple):
            yield from _paths(value)
        elif isinstance(value, str | os.PathLike):
            path = os.fsdecode(value)
            # What "~" stands for is shown in full.
            if path and "://" not in path and not path.startswith("~"):
                yield path
