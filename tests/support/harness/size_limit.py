"""``size_limit``: a disk that is full for any file that would grow."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def size_limit(size: int) -> Iterator[None]:
    """Inside, the system lets no file of this process grow beyond ``size`` bytes; Python ignores its SIGXFSZ."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
