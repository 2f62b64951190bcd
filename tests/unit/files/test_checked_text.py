"""The first line of kstore's own text files: its bytes, and what is refused."""

from __future__ import annotations

import pytest

from kstore.errors import CorruptFileError, UnsupportedFormatError
from kstore.files.checkpoint import CheckedText

FORM = CheckedText("kstore.example", 1)


def test_a_file_is_a_line_and_its_content() -> None:
    data = FORM.encode(b"123456789")
    assert data == b"kstore.example 1 e3069283\n123456789"
    assert FORM.decode(data, "path") == b"123456789"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "line 1 is not 'kstore.example <version> <CRC>'"),
        (b"kstore.other 1 e3069283\n123456789", "line 1 is not"),
        (b"kstore.example 1 E3069283\n123456789", "line 1 is not"),
        (b"x" * 1_000_000, "line 1 is not"),
        (b"kstore.example 1 e3069283\n12345678", "the CRC does not fit"),
        (b"kstore.example 2 e3069283\n12345678", "the CRC does not fit"),
    ],
    ids=["empty", "other", "capitals", "long", "cut", "later and cut"],
)
def test_what_is_not_such_a_file_is_damage(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptFileError, match=reason):
        FORM.decode(data, "path")


def test_another_version_is_told_from_damage() -> None:
    with pytest.raises(UnsupportedFormatError, match="version 2, expected 1"):
        FORM.decode(b"kstore.example 2 e3069283\n123456789", "path")
