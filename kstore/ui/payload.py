"""Bytes of records for people: as text, JSON or hex, cut at a size. No I/O here.

JSON keeps every token as it was written and changes only the space between them: numbers are not rounded, and a key
that occurs twice is shown twice.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

Form = Literal["auto", "text", "json", "hex"]
FORMS: tuple[str, ...] = get_args(Form)

# What a page shows of a key, value or header.
TEXT_BYTES_MAX = 64 << 10
HEX_BYTES_MAX = 16 << 10
PREVIEW_BYTES = 120
HEX_ROW_BYTES = 16

TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
INDENT = "  "
# Deeper lines are not indented further: a thousand levels would make a page of spaces.
DEPTH_MAX = 40


class Shown(NamedTuple):
    """``text`` in the form ``form``, or "null"; ``hidden`` of the ``size`` bytes are left out."""

    form: str
    text: str
    size: int | None
    hidden: int

    def fields(self) -> dict[str, Any]:
        return self._asdict()


def shown(data: bytes | None, form: str = "auto", size_max: int | None = None) -> Shown:
    """``data`` as ``form``, or as text or hex if it is not JSON or not UTF-8; "auto": JSON, text or hex, as it fits."""
    if data is None:
        return Shown("null", "", None, 0)
    cut = data[: TEXT_BYTES_MAX if size_max is None else size_max]
    if form in ("auto", "json") and len(cut) == len(data):
        pretty = _json_text(data, is_structured=form == "auto")
        if pretty is not None:
            return Shown("json", pretty, len(data), 0)
    if form == "hex" or (form == "auto" and not _is_text(cut, is_whole=len(cut) == len(data))):
        cut = cut[:HEX_BYTES_MAX]
        return Shown("hex", "\n".join(hex_rows(cut)), len(data), len(data) - len(cut))
    text = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(cut, final=len(cut) == len(data))
    return Shown("text", text, len(data), len(data) - len(cut))


def preview(data: bytes | None) -> Shown:
    """The beginning of ``data`` on one line."""
    if data is None:
        return Shown("null", "", None, 0)
    cut = data[:PREVIEW_BYTES]
    hidden = len(data) - len(cut)
    if not _is_text(cut, is_whole=not hidden):
        return Shown("hex", cut[: PREVIEW_BYTES // 3].hex(" "), len(data), max(len(data) - PREVIEW_BYTES // 3, 0))
    return Shown("text", codecs.getincrementaldecoder("utf-8")().decode(cut, final=not hidden), len(data), hidden)


def hex_rows(data: bytes, position: int = 0) -> Iterator[str]:
    """Rows of sixteen bytes, with their position before them and as characters after them."""
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        text = "".join([chr(byte) if 32 <= byte < 127 else "." for byte in row])
        yield f"{position + at:08x}  {row.hex(' '):<{3 * HEX_ROW_BYTES - 1}}  {text}"


def _is_text(data: bytes, *, is_whole: bool) -> bool:
    """Whether it is UTF-8 without control characters other than tabs and line breaks."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data, final=is_whole)
    except UnicodeDecodeError:
        return False
    return not any(char < " " and char not in "\t\r\n" for char in text)


def _json_text(data: bytes, *, is_structured: bool) -> str | None:
    """``data`` indented; None if it is not JSON or, with ``is_structured``, not an object or an array."""
    try:
        text = data.decode()
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if is_structured and not isinstance(value, dict | list):
        return None
    return "".join(_indented(TOKEN.findall(text)))


def _indented(tokens: list[str]) -> Iterator[str]:
    depth = 0
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else ""
        following = tokens[number + 1] if number + 1 < len(tokens) else ""
        if token in ("]", "}"):
            depth -= 1
            if before not in ("[", "{"):
                yield "\n" + INDENT * min(depth, DEPTH_MAX)
        yield ": " if token == ":" else token
        if token in ("[", "{"):
            depth += 1
        if token == "," or (token in ("[", "{") and following not in ("]", "}")):
            yield "\n" + INDENT * min(depth, DEPTH_MAX)
