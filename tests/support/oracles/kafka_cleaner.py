"""Compacts a directory's segments the way Kafka's LogCleaner does, one system call at a time.

write <base>.log.cleaned    rename it to .swap    rename each old file to .deleted, the .log first
rename .swap to the final names, the .log first    unlink what is .deleted
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name
from kstore.record.batch import Batch
from kstore.record.scan import parse_batches

SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)


def clean(directory: Path, bases: Sequence[int], keeps: Callable[[Batch], bool]) -> Iterator[str]:
    """Merges the segments ``bases`` into one of the batches that ``keeps`` chooses; yields after each step."""
    first = bases[0]
    kept = [
        bytes(batch.data)
        for base in bases
        for batch in parse_batches(directory.joinpath(segment_name(base, LOG_SUFFIX)).read_bytes())
        if keeps(batch)
    ]
    contents = {LOG_SUFFIX: b"".join(kept), INDEX_SUFFIX: b"", TIME_INDEX_SUFFIX: b""}
    for suffix, data in contents.items():
        (directory / segment_name(first, f"{suffix}.cleaned")).write_bytes(data)
    yield "written"
    for suffix in SUFFIXES:
        yield from _renamed(directory, first, f"{suffix}.cleaned", f"{suffix}.swap")
    for base in bases:
        for suffix in SUFFIXES:
            yield from _renamed(directory, base, suffix, f"{suffix}.deleted")
    for suffix in SUFFIXES:
        yield from _renamed(directory, first, f"{suffix}.swap", suffix)
    for base in bases:
        for suffix in SUFFIXES:
            directory.joinpath(segment_name(base, f"{suffix}.deleted")).unlink(missing_ok=True)
    yield "unlinked"


def _renamed(directory: Path, base: int, old: str, new: str) -> Iterator[str]:
    path = directory / segment_name(base, old)
    if path.exists():
        path.rename(directory / segment_name(base, new))
        yield f"{segment_name(base, old)} is {new}"
