"""What Kafka and Java make of hostile bytes, as tables.

``tests/interop/test_decoded.py`` compares them with the real ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class DecodedPayload(NamedTuple):
    """A compressed payload, and its bytes, or None if Kafka refuses it."""

    name: str
    codec_id: int
    magic: int
    data: bytes
    content: bytes | None


def _rows(name: str) -> list[list[str]]:
    lines = (HERE / name).read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def _bytes(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def payloads() -> list[DecodedPayload]:
    return [
        DecodedPayload(
            name, int(codec_id), int(magic), _bytes(data), None if answer.startswith("!") else _bytes(answer)
        )
        for name, codec_id, magic, data, answer in _rows("payloads.tsv")
    ]


def texts() -> list[tuple[bytes, str]]:
    """Bytes, and the text that Java's ``new String(bytes, UTF_8)`` makes of them."""
    return [(_bytes(data), _bytes(answer).decode("utf-16-be")) for data, answer in _rows("texts.tsv")]
