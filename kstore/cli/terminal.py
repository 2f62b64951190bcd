"""What a log holds never acts on the terminal: control characters are shown as escapes, such as ``\\x1b``.

``guarded_output`` replaces standard output and standard error where they are terminals; everything printed as text
passes through a ``TerminalText``, and only ``coloured`` makes it send a control sequence. What a command writes to the
buffer of standard output, bytes of a record for example, it passes through ``shown_bytes`` or ``shown_output``.

A pipe or a file gets every byte unchanged, and so does a terminal with ``--raw``.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Literal, TextIO, TypeAlias, cast

Colour: TypeAlias = Literal["red", "yellow", "green"]

# C0 except the tab, DEL and C1, and what changes the direction of text or breaks its lines in Unicode.
_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
CONTROL_IN_TEXT = re.compile(f"[{_CONTROL}]")
CONTROL_IN_LINE = re.compile(f"[\n{_CONTROL}]")
NAMED = {"\n": "\\n", "\r": "\\r"}
# Surrogates that no decoder makes, neither of bytes nor of file names: only ``coloured`` can ask for a colour.
COLOUR_MARKS: dict[Colour, str] = {"red": chr(0xD800), "yellow": chr(0xD801), "green": chr(0xD802)}
END_MARK = chr(0xD803)
SEQUENCES = {
    COLOUR_MARKS["red"]: "\x1b[31m",
    COLOUR_MARKS["yellow"]: "\x1b[33m",
    COLOUR_MARKS["green"]: "\x1b[32m",
    END_MARK: "\x1b[0m",
}
MARK = re.compile("[\ud800-\ud803]")


def escaped(text: str, *, lines: bool = False) -> str:
    """``text`` with its control characters as escapes, but for tabs; with ``lines`` it keeps its line breaks."""
    return (CONTROL_IN_TEXT if lines else CONTROL_IN_LINE).sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    # JSON knows the second form too: it escapes only what is below a space itself.
    return NAMED.get(char) or (f"\\x{ord(char):02x}" if char < " " else f"\\u{ord(char):04x}")


class TerminalText(io.TextIOWrapper):
    """A terminal as a text stream that escapes what is printed, except for line breaks. As thread-safe as any."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(
            terminal.buffer,
            encoding=terminal.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )
        self.terminal = terminal
        self.is_raw = False
        # Called before anything is written: a bar gives way.
        self.before_write: Callable[[], None] | None = None

    def write(self, text: str, /) -> int:
        if self.before_write is not None:
            self.before_write()
        shown = text if self.is_raw else escaped(text, lines=True)
        super().write(MARK.sub(_sequence, shown))
        return len(text)


def _sequence(match: re.Match[str]) -> str:
    return SEQUENCES[match[0]]


@contextmanager
def guarded_output() -> Iterator[None]:
    """Guards standard output and standard error, where they are terminals, while the block runs.

    Elsewhere what they cannot encode, as a directory's name that is not UTF-8, is shown as an escape and not an error.
    In JSON it is one that stands for the same name.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)
    changed = [
        (stream, stream.errors)
        for stream in (sys.stdout, sys.stderr)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, TerminalText)
    ]
    for text, _ in changed:
        text.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for text, errors in changed:
            with suppress(OSError):  # it flushes, and its reader may be gone
                text.reconfigure(errors=errors)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TerminalText) and stream not in before:
                try:
                    stream.flush()
                finally:
                    # Its end must not close the terminal.
                    stream.detach()
        sys.stdout, sys.stderr = before


def _guarded(stream: TextIO) -> TextIO:
    if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, TerminalText) and stream.isatty():
        stream.flush()
        return TerminalText(stream)
    return stream


def terminal_of(stream: TextIO) -> TextIO:
    """The stream that sends control sequences to the terminal of ``stream``: ``stream`` itself if it is not guarded."""
    return stream.terminal if isinstance(stream, TerminalText) else stream


def coloured(text: str, colour: Colour, stream: TextIO) -> str:
    """``text``, which ``stream`` shows in ``colour`` if it is a terminal and ``NO_COLOR`` is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    if isinstance(stream, TerminalText):
        return f"{COLOUR_MARKS[colour]}{text}{END_MARK}"
    return f"{SEQUENCES[COLOUR_MARKS[colour]]}{text}{SEQUENCES[END_MARK]}"


def say(text: str) -> None:
    """Tells the user ``text``, a line on standard error: what a program reads from standard output stays the same."""
    print(f"kstore: {text}", file=sys.stderr, flush=True)


def show_raw() -> None:
    """Sends everything to the terminal unchanged from now on (``--raw``)."""
    if isinstance(sys.stdout, TerminalText):
        sys.stdout.is_raw = True


def _escapes() -> bool:
    return isinstance(sys.stdout, TerminalText) and not sys.stdout.is_raw


def shown_bytes() -> Callable[[bytes], bytes] | None:
    """The function that makes a field of a record fit for standard output; None if it is written as it is.

    What it returns has no line break: a value cannot pose as another record.
    """
    return escaped_bytes if _escapes() else None


def shown_line() -> Callable[[str], str]:
    """The function that makes a line, without its line break, fit for standard output."""
    return escaped if _escapes() else str


def escaped_bytes(data: bytes) -> bytes:
    """``data`` as text on one line, with control characters and bytes that are not UTF-8 as escapes."""
    return escaped(data.decode("utf-8", "backslashreplace")).encode("utf-8", "backslashreplace")


def shown_output() -> BinaryIO:
    """Standard output for bytes of any kind: its buffer, or a stream that escapes them, except for line breaks."""
    return cast("BinaryIO", _TerminalBytes(sys.stdout)) if _escapes() else sys.stdout.buffer


class _TerminalBytes(io.RawIOBase):
    """Decodes UTF-8, over the borders of writes too, and prints it to a guarded terminal."""

    def __init__(self, text: TextIO) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        view = memoryview(data)  # type: ignore[arg-type]  # any buffer
        self._text.write(self._decoder.decode(bytes(view)))
        return view.nbytes

    def flush(self) -> None:
        self._text.flush()
