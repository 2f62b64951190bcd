"""Small bars and sparklines of block characters on a terminal that can show them; elsewhere bars of ``#``, or nothing.

They have no colour, so ``NO_COLOR`` changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from kstore.cli.terminal import TerminalText

# Eighths of a character, from the left and from below.
LEFT_EIGHTHS = " ▏▎▍▌▋▊▉█"
LOWER_EIGHTHS = " ▁▂▃▄▅▆▇█"


def has_blocks() -> bool:
    """Whether standard output is a terminal that shows block characters."""
    stream = sys.stdout
    if not isinstance(stream, TerminalText) or os.environ.get("TERM") == "dumb":
        return False
    try:
        (LEFT_EIGHTHS + LOWER_EIGHTHS).encode(stream.encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def bar(value: int, most: int, width: int) -> str:
    """A bar for ``value``, ``width`` characters long if it is ``most``; not empty unless ``value`` is 0."""
    if value <= 0 or most <= 0:
        return ""
    if not has_blocks():
        return "#" * -(-value * width // most)
    eighths = -(-value * width * 8 // most)
    return (LEFT_EIGHTHS[8] * (eighths // 8) + LEFT_EIGHTHS[eighths % 8]).rstrip()


def sparkline(values: Sequence[int]) -> str:
    """A character for each of ``values``, as high as its share of the greatest; a space only for 0."""
    most = max(values, default=0) or 1
    return "".join([LOWER_EIGHTHS[-(-max(value, 0) * 8 // most)] for value in values])
