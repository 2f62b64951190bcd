"""The output file of a report or an export."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

__all__ = ["output_file"]


@contextmanager
def output_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A file that is named ``path`` when the block ends; an error in the block leaves what was there. It is not synced.

    A device or a pipe, such as /dev/null, is written to as it is: replacing it would take it from all other programs.

    Raises: OSError.
    """
    target = Path(path)
    if target.exists() and not target.is_file():
        with target.open("wb") as out:
            yield out
        return
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as out:
            yield out
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
