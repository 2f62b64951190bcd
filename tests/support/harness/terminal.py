"""A command in a pseudo-terminal: its output, as a person would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def in_terminal(
    *arguments: str,
    directory: Path,
    columns: int = 80,
    stdout: int | None = None,
    environment: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    """Runs ``kstore`` with a terminal of this width as its standard streams; returns the status and what it sent there.

    ``stdout``: another descriptor for standard output.
    """
    ours, theirs = pty.openpty()
    try:
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # line breaks arrive as they are sent
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        process = subprocess.Popen(
            [sys.executable, "-m", "kstore", *arguments],
            cwd=directory,
            env=known | {"TERM": "xterm", "PYTHONPATH": str(ROOT)} | (environment or {}),
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
        )
    finally:
        os.close(theirs)
    parts = []
    try:
        while True:
            try:
                part = os.read(ours, 1 << 16)
            except OSError:
                break  # the last process on the terminal has gone
            if not part:
                break
            parts.append(part)
        return process.wait(timeout=60), b"".join(parts)
    finally:
        os.close(ours)
        process.kill()
        process.wait()


def screen(sent: bytes) -> list[str]:
    """The lines that a wide terminal shows after ``sent``."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", sent.decode()):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif not part.startswith("\x1b"):
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
        elif part.endswith("K"):
            lines[row] = "" if part == "\x1b[2K" else lines[row][:column]
        elif part.endswith("A"):
            row -= int(part[2:-1] or 1)
    return lines
