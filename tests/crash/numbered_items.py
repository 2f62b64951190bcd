"""Items of a queue that carry a number. A program that is started a dozen times a test imports only this."""

from __future__ import annotations


def number_of(value: bytes | None) -> int:
    return int((value or b"").rstrip(b"."))
