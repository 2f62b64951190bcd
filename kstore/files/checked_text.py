"""The form of kstore's own text files: a line with their name, version and CRC, then the content. No I/O here.

line 1   <name> <version> <CRC-32C of the rest, 8 hex digits>
rest     the content
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kstore.errors import CorruptFileError, PathLike, UnsupportedFormatError
from kstore.record.crc import crc32c

HEAD = re.compile(rb"(\S{1,40}) ([0-9]{1,9}) ([0-9a-f]{8})\n")


class CheckedText(NamedTuple):
    """One kind of file, by its ``name``, of which this program writes ``version``, and reads it and those from
    ``oldest`` on."""

    name: str
    version: int
    oldest: int | None = None

    def encode(self, body: bytes, version: int | None = None) -> bytes:
        """The file. ``version``: an older one, which can express the content too."""
        head = self.name.encode("ascii"), self.version if version is None else version, crc32c(body)
        return b"%s %d %08x\n" % head + body

    def decode(self, data: bytes, path: PathLike) -> bytes:
        """The content. Raises: CorruptFileError; UnsupportedFormatError for another version."""
        head = HEAD.match(data)
        if head is None or head[1] != self.name.encode("ascii"):
            raise CorruptFileError(f"line 1 is not '{self.name} <version> <CRC>'", path=path)
        body = data[head.end() :]
        if int(head[3], 16) != crc32c(body):
            raise CorruptFileError("the CRC does not fit", path=path)
        oldest = self.version if self.oldest is None else self.oldest
        if not oldest <= int(head[2]) <= self.version:
            expected = f"{self.version}" if oldest == self.version else f"{oldest} to {self.version}"
            raise UnsupportedFormatError(f"version {int(head[2])}, expected {expected}", path=path)
        return body
