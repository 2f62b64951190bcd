"""Text that a stranger may have written, shown so that it cannot disturb what surrounds it. Pure."""

from __future__ import annotations

import unicodedata

# Control characters, formatting ones (which reverse or hide text), halves of pairs, private and unassigned characters.
HIDDEN_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def visible(text: str) -> str:
    """``text`` with every character that has no shape of its own written as its number: ``"a\\u202eb"``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join([_escaped(char) if unicodedata.category(char) in HIDDEN_CATEGORIES else char for char in text])


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
