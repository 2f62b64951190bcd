"""Runs a page's examples in an empty directory and compares what they print with what the page says.

usage: python readme.py PAGE... [--spark]

An environment without a checkout runs this file, so it needs kstore with its command, and else the standard library
alone. The blocks run in order, as one program; then the commands of the page that look at the blocks' data.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

SPARK = "kstore.spark"
# What grep says of a pattern that is nowhere.
FOUND_NOTHING = {"grep": 1}


def code_blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def said_by(blocks: list[str]) -> list[str]:
    """The lines that the comments after ``print(...)`` promise: ``# 1 2, then 3 4``, or ``# -> 1 2``."""
    said = re.findall(r"print\(.*\)  # (?:-> )?(.*)", "\n".join(blocks))
    return [line for text in said for line in re.split(r", then |, (?=\d )", text)]


def commands(text: str) -> list[list[str]]:
    """The commands, in the text or in a block of them, that name something in the directory ``data``."""
    blocks = re.findall(r"^```\n((?:kstore [^\n]*\n)+)```$", text, re.MULTILINE)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    called = map(shlex.split, [*re.findall(r"`(kstore [a-z-]+ [^`]+)`", text), *lines])
    return [words for words in called if any(word.split("/")[0] == "data" for word in words)]


def printed_by(block: str) -> list[str]:
    Path("example.py").write_text(block, encoding="utf-8")
    with redirect_stdout(StringIO()) as output:
        runpy.run_path("example.py")
    return output.getvalue().splitlines()


def run(page: str, options: list[str]) -> str:
    """What ran, as a sentence. Raises RuntimeError if the page is not true."""
    text = Path(page).read_text(encoding="utf-8")
    blocks = [block for block in code_blocks(text, "python") if SPARK not in block or "--spark" in options]
    called = commands(text)
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        expected, printed = said_by(blocks), printed_by("\n\n".join(blocks))
        if not expected or printed != expected:
            raise RuntimeError(f"its examples print {printed}, expected {expected}")
        for words in called:
            command = [str(Path(sys.executable).with_name("kstore")), *words[1:]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode != FOUND_NOTHING.get(words[1], 0):
                said = (done.stdout + done.stderr).strip()
                raise RuntimeError(f"{shlex.join(words)} ends with status {done.returncode} and says {said!r}")
    return f"{len(blocks)} examples, which printed {len(printed)} lines, and {len(called)} commands"


def main(*arguments: str) -> int:
    options = [each for each in arguments if each.startswith("--")]
    for page in arguments:
        if page not in options:
            try:
                print(f"{Path(page).name}: {run(page, options)}")
            except RuntimeError as error:
                print(f"{Path(page).name}: {error}")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
