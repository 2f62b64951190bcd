"""Chooses the parser of a batch by its magic. No I/O here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kstore.errors import CorruptBatchError, UnsupportedFormatError
from kstore.record.batch import LOG_OVERHEAD_BYTES, Batch, parse_v2
from kstore.record.legacy import parse_legacy

if TYPE_CHECKING:
    from typing_extensions import Buffer

# The same in all versions.
SIZE_POSITION = 8
MAGIC_POSITION = 16


class Parser(Protocol):
    """Reads a header at byte ``position``; raises CorruptDataError for values that no writer produces."""

    def __call__(self, data: Buffer, position: int = 0, *, header_only: bool = False) -> Batch: ...


# By magic.
PARSERS: tuple[Parser, ...] = (parse_legacy, parse_legacy, parse_v2)


def entry_size(data: bytes | bytearray | memoryview, position: int = 0) -> int:
    """The bytes that the entry at ``position``, of any version, says that it has; its first 12 bytes are there."""
    return int.from_bytes(data[position + SIZE_POSITION : position + LOG_OVERHEAD_BYTES], "big", signed=True) + (
        LOG_OVERHEAD_BYTES
    )


def parse_batch(data: Buffer, position: int = 0, *, header_only: bool = False) -> Batch:
    """The batch, of any version, that starts at byte ``position`` of ``data`` (bytes-like, items of one byte).

    With ``header_only`` the bytes after the header need not be there; the batch's ``size`` says how many belong to it.
    Checks only the header: ``ensure_valid`` checks the CRC, ``check`` the records.

    Raises CorruptBatchError for a header that no writer produces, UnsupportedFormatError for another magic.
    """
    view = memoryview(data)
    if position < 0 or len(view) - position <= MAGIC_POSITION:
        raise CorruptBatchError(
            f"{len(view) - position} bytes, expected the {MAGIC_POSITION + 1} up to a batch's magic", position=position
        )
    magic = view[position + MAGIC_POSITION]
    if magic >= len(PARSERS):
        raise UnsupportedFormatError(f"magic {magic}, expected 0 to {len(PARSERS) - 1}", position=position)
    return PARSERS[magic](data, position, header_only=header_only)
