"""Unpacks an archive of the tests."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, directory: Path) -> None:
    """Unpacks ``archive`` below ``directory``.

    It sets the filter as an attribute: an argument for it came with CPython 3.11.4, and 3.12 warns if it has none.
    """
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(directory)
