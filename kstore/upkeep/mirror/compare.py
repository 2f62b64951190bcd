"""Whether a copied ``.log`` fits its source, and which bytes it lacks; checks every batch on the way.

A copy that is shorter than its source is a prefix of it, or a crash left a torn end: then the copy continues after the
last whole batch that both have. If whole batches follow that the source does not have, they diverge.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from kstore.errors import TruncatedFileError
from kstore.files.fs import File
from kstore.record.batch import BATCH_HEADER_BYTES
from kstore.record.headers import walk_headers
from kstore.record.parse import parse_batch
from kstore.record.scan import SearchBudget, find_next_batch
from kstore.record.walk import Damage, walk
from kstore.scan.visits import visit
from kstore.types import OFFSET_MAX

COPY_BYTES = 1 << 20
# The last batch is within this, unless it is larger than brokers accept by default.
LAST_BYTES = (1 << 20) + 4096
# How far a check may read ahead of what was yielded; beyond it, the bytes are read again.
PENDING_BYTES_MAX = 8 << 20


class Fit(NamedTuple):
    """How a copy fits its source: it continues at ``position``, before which all batches are below ``next_offset``."""

    kind: Literal["same", "behind", "diverged"]
    position: int
    next_offset: int


def fit(source: File, source_size: int, target: File, target_size: int, base_offset: int) -> Fit:
    """Compares all that both have of the segment, up to ``source_size`` and ``target_size``."""
    common = _common_size(source, target, min(source_size, target_size))
    if common == source_size == target_size:
        return Fit("same", common, base_offset)
    position, next_offset = _boundary(source, source_size, common, base_offset)
    foreign = _foreign_batch(source, target, position, target_size, base_offset)
    return Fit("behind", position, next_offset) if foreign is None else Fit("diverged", foreign, next_offset)


def _foreign_batch(source: File, target: File, position: int, stop: int, base_offset: int) -> int | None:
    """The position of the target's first whole batch, at or after ``position``, that the source lacks there.

    A power cut may leave a hole in what was being appended, and whole batches of the source after it.
    """
    budget = SearchBudget(stop - position)
    while position < stop:
        found = find_next_batch(target, position, stop, next_offset=base_offset, budget=budget)
        if found is None:
            # The rest was not searched, and may be foreign.
            return position if budget.is_spent else None
        size = parse_batch(target.pread(BATCH_HEADER_BYTES, found), header_only=True).size
        if source.pread(size, found) != target.pread(size, found):
            return found
        position = found + size
    return None


def end_offset(target: File, size: int, base_offset: int) -> int:
    """The offset after the last whole batch in the first ``size`` bytes."""
    return visit(walk_headers(target, size, next_offset=base_offset), base_offset=base_offset)


def ends_equal(source: File, target: File, size: int) -> bool:
    """Whether the first ``size`` bytes end with the same batch: enough if the copy is known to be whole."""
    at = max(size - LAST_BYTES, 0)
    return source.pread(size - at, at) == target.pread(size - at, at)


def _common_size(one: File, other: File, stop: int) -> int:
    """How many bytes are the same from the start, up to ``stop``."""
    for at in range(0, stop, COPY_BYTES):
        size = min(COPY_BYTES, stop - at)
        left, right = one.pread(size, at), other.pread(size, at)
        if left != right:
            return at + _first_difference(left, right)
    return stop


def _first_difference(left: bytes, right: bytes) -> int:
    """Where two pieces first differ, by halving; each comparison is a single call."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _boundary(source: File, stop: int, common: int, base_offset: int) -> tuple[int, int]:
    """Position and offset after the last batch, or damage, of the source that ends at or before ``common``."""
    position, next_offset = 0, base_offset
    for item in walk(source, 0, stop, next_offset=base_offset):
        if isinstance(item, Damage):
            end, offset = item.stop, item.next_offset if item.next_offset is not None else next_offset
        else:
            at, batch = item
            end, offset = at + batch.size, batch.last_offset + 1
        if end > common:
            break
        position, next_offset = end, offset
    return position, next_offset


def plain_chunks(source: File, start: int, stop: int, *, all_of_them: bool = True) -> Iterator[bytes]:
    """Bytes ``start`` to ``stop``. Raises: TruncatedFileError if some are missing, and ``all_of_them`` are needed."""
    while start < stop:
        data = source.pread(min(COPY_BYTES, stop - start), start)
        if not data:
            if not all_of_them:
                return
            raise TruncatedFileError(errno.EIO, f"ends at {start}, expected {stop} bytes", source.path)
        yield data
        start += len(data)


def checked_chunks(
    source: File,
    start: int,
    stop: int,
    *,
    next_offset: int,
    offset_stop: int = OFFSET_MAX,
    found: Callable[[Damage], None],
) -> Iterator[bytes]:
    """Bytes ``start`` to ``stop``, all of them and in order; ``found`` receives the damage among them.

    They are usually read once: the check's own reads are yielded. Raises: TruncatedFileError, StorageError.
    """
    tee = _Tee(source, start)
    for item in walk(tee, start, stop, next_offset=next_offset, offset_stop=offset_stop):
        if isinstance(item, Damage):
            found(item)
            end = item.stop
        else:
            end = item[0] + item[1].size
        yield from tee.take()
        if tee.copied < end:
            yield from plain_chunks(source, tee.copied, end)
            tee.copied = end
    yield from tee.take()
    yield from plain_chunks(source, tee.copied, stop)


class _Tee:
    """A Source that keeps what is read through it, in order and once, until it is taken."""

    def __init__(self, source: File, start: int) -> None:
        self._source = source
        self._pending: list[bytes] = []
        self._pending_size = 0
        # Everything before it was kept or taken.
        self.copied = start

    def pread(self, size: int, position: int) -> bytes:
        data = self._source.pread(size, position)
        fits = position <= self.copied < position + len(data)
        if fits and self._pending_size < PENDING_BYTES_MAX:
            part = data[self.copied - position :]
            self._pending.append(part)
            self._pending_size += len(part)
            self.copied += len(part)
        return data

    def take(self) -> list[bytes]:
        pending, self._pending, self._pending_size = self._pending, [], 0
        return pending
