"""The bytes of a Fetch response: headers here, and between them slices that are sent from their files.

The codec would need the records in memory. A test holds these bytes against it, for each version.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from kstore.door import errors
from kstore.door.reply import ReplySink
from kstore.engine.read.fetch import FetchSlice
from kstore.files.checkpoint import EpochEntry
from kstore.messages._wire import MessageWriter
from kstore.messages.primitives import INT16, INT32, NUMBERS

FLEXIBLE_SINCE = 12
# number, error, high watermark, last stable offset
PART = struct.Struct(">ihqq")
ABORTED = struct.Struct(">qq")
DIVERGING = struct.Struct(">iq")
INT64 = NUMBERS["int64"]
NO_REPLICA = -1
# A tagged field of a partition (KIP-595): where the client's epoch ended here.
DIVERGING_TAG = 0


class FetchedPart(NamedTuple):
    """What was found in one partition. ``size``: of the slice, also once it was released.

    ``aborted`` are producer ids and first offsets; None for "read_uncommitted".
    """

    number: int
    error: int = errors.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: EpochEntry | None = None
    size: int = 0
    slice: FetchSlice | None = None


class FetchReply:
    """A response without a session. Sends itself once."""

    def __init__(
        self, version: int, topics: Sequence[tuple[str, Sequence[FetchedPart]]], *, error: int = errors.NONE
    ) -> None:
        """``error``: of the whole request."""
        pieces = _pieces(version, topics, error)
        self._pieces: list[bytes | FetchSlice] = pieces
        self.length: int = sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in pieces)

    def send(self, sender: ReplySink) -> None:
        """Sends everything; each slice's file is let go of as soon as it was sent."""
        pieces, self._pieces = self._pieces[::-1], []
        while pieces:
            piece = pieces.pop()
            if isinstance(piece, bytes):
                sender.write(piece, more=bool(pieces))
            else:
                sender.send_slice(piece, piece.size)


def _pieces(version: int, topics: Sequence[tuple[str, Sequence[FetchedPart]]], error: int) -> list[bytes | FetchSlice]:
    """Bytes and slices, in the order of the response."""
    is_flexible = version >= FLEXIBLE_SINCE
    pieces: list[bytes | FetchSlice] = []
    out = MessageWriter()
    out.number(INT32, 0)  # throttleTimeMs
    if version >= 7:
        out.number(INT16, error)
        out.number(INT32, 0)  # sessionId
    out.length(len(topics), is_flexible=is_flexible, form=INT32)
    for topic, parts in topics:
        out.string(topic, is_flexible=is_flexible)
        out.length(len(parts), is_flexible=is_flexible, form=INT32)
        for part in parts:
            _write_head(out, version, part)
            if part.slice is not None:
                pieces += [bytes(out.data), part.slice]
                out = MessageWriter()
            if is_flexible:
                _write_tags(out, part)
        if is_flexible:
            out.uvarint(0)
    if is_flexible:
        out.uvarint(0)
    pieces.append(bytes(out.data))
    return pieces


def _write_head(out: MessageWriter, version: int, part: FetchedPart) -> None:
    """What comes before the records of a partition, with their size."""
    is_flexible = version >= FLEXIBLE_SINCE
    out.data.extend(PART.pack(part.number, part.error, part.high_watermark, part.last_stable_offset))
    if version >= 5:
        out.number(INT64, part.log_start_offset)
    aborted = part.aborted
    out.length(-1 if aborted is None else len(aborted), is_flexible=is_flexible, form=INT32)
    for transaction in aborted or ():
        out.data.extend(ABORTED.pack(*transaction))
        if is_flexible:
            out.uvarint(0)
    if version >= 11:
        out.number(INT32, NO_REPLICA)
    out.length(0 if part.slice is None else part.slice.size, is_flexible=is_flexible, form=INT32)


def _write_tags(out: MessageWriter, part: FetchedPart) -> None:
    diverging = part.diverging
    if diverging is None:
        out.uvarint(0)
        return
    out.data.extend(bytes((1, DIVERGING_TAG, DIVERGING.size + 1)))
    out.data.extend(DIVERGING.pack(*diverging))
    out.uvarint(0)
