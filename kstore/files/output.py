"""The output file of a report or an export."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

# The names that systems give to what a process has open.
OWN_DESCRIPTOR = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/([0-9]{1,6})", re.ASCII)
DESCRIPTORS = {"stdout": 1, "stderr": 2}


@contextmanager
def output_file(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """A file that is named ``path`` when the block ends; an error in the block leaves what was there. It is not synced.

    A device or a pipe, such as /dev/null, is written to as it is: replacing it would take it from all other programs.
    So is what this process has open, such as /dev/stdout, whatever that is.

    Raises: OSError; ENXIO for a pipe that no program has open for reading, which would be waited for without end.
    """
    target = Path(path)
    own = OWN_DESCRIPTOR.fullmatch(str(target))
    if own is not None or (target.exists() and not target.is_file()):
        fd = _opened(target) if own is None else os.dup(DESCRIPTORS.get(own[1]) or int(own[2]))
        with os.fdopen(fd, "wb") as out:
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


def _opened(target: Path) -> int:
    try:
        # O_NONBLOCK: a pipe without a reader is an error, and not waited for.
        fd = os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(
                errno.ENXIO, "a pipe that no program reads, or a device that is absent", str(target)
            ) from None
        raise
    os.set_blocking(fd, True)
    return fd
