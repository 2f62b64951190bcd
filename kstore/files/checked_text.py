"""The form of kstore's own text files: a line with their name, version and CRC, then the content. No I/O here.

line 1   <name> <version> <CRC-32C of the rest, 8 hex digits>
rest     the content
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kstore.errors import CorruptFileError, PathLike, UnsupportedFormatError
from kstore.record.crc import crc32c

__all__ = ["CheckedText"]

HEAD = re.compile(rb"(\S{1,40}) ([0-9]{1,9}) ([0-9a-f]{8})\n")


class CheckedText(NamedTuple):
    """One kind of file, by its ``name``, of which this program reads and writes ``version``."""

    name: str
    version: int

    def encode(self, body: bytes) -> bytes:
        return b"%s %d %08x\n" % (self.name.encode("ascii"), self.version, crc32c(body)) + body

    def decode(self, data: bytes, path: PathLike) -> bytes:
        """The content. Raises: CorruptFileError; UnsupportedFormatError for another version."""
        head = HEAD.match(data)
        if head is None or head[1] != self.name.encode("ascii"):
            raise CorruptFileError(f"line 1 is not '{self.name} <version> <CRC>'", path=path)
        body = data[head.end() :]
        if int(head[3], 16) != crc32c(body):
            raise CorruptFileError("the CRC does not fit", path=path)
        if int(head[2]) != self.version:
            raise UnsupportedFormatError(f"version {int(head[2])}, expected {self.version}", path=path)
        return body
