"""Runs the programs of this folder, each in a process of its own, and tells a slow one from one that hangs.

A program prints a line for each thing it tries; its last line is its result. It may take as long as the machine needs:
only one that prints nothing for ``SILENCE_SECONDS`` hangs.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile

from tests.support.harness.evidence import VERDICTS, Crashed, Hung, verdict_of

ROOT = Path(__file__).parents[2]
# A try takes less than a second on an idle machine.
SILENCE_SECONDS = 300.0


def count_of(program: str, *arguments: object) -> int:
    """Runs ``tests.crash.PROGRAM``, which prints at the end how many it tried. Raises: as ``last_line``."""
    return int(last_line("-m", f"tests.crash.{program}", *map(str, arguments)))


def last_line(*arguments: str, silence: float = SILENCE_SECONDS) -> str:
    """Runs Python with these arguments and returns the last line that it prints.

    Raises: the program's verdict, Crashed for any other failure, Hung with the stacks of its threads.
    """
    command = [sys.executable, "-X", "faulthandler", "-W", "ignore", *arguments]
    with TemporaryFile() as errors, subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors) as ran:
        try:
            said = b"".join(_pieces(ran, silence)).decode()
            status = ran.wait(silence)
        except (TimeoutError, subprocess.TimeoutExpired):
            ran.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                ran.wait(10)
            raise Hung(f"{arguments} printed nothing for {silence} s: {_text(errors.fileno())}") from None
        finally:
            ran.kill()
        if status:
            stderr = _text(errors.fileno())
            verdicts = [line for line in stderr.splitlines() if line.startswith("tests.support.harness.evidence.")]
            raise VERDICTS.get(verdict_of(verdicts[-1] if verdicts else ""), Crashed)(f"status {status}: {stderr}")
    return said.rstrip("\n").rpartition("\n")[2]


def _pieces(ran: subprocess.Popen[bytes], silence: float) -> Iterator[bytes]:
    """The program's output as it comes. Raises: TimeoutError after ``silence`` seconds without any."""
    assert ran.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(ran.stdout, selectors.EVENT_READ)
        while selector.select(silence):
            piece = os.read(ran.stdout.fileno(), 1 << 16)
            if not piece:
                return
            yield piece
    raise TimeoutError


def _text(file: int) -> str:
    return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace")
