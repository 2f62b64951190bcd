"""Runs the README's examples in an empty directory and compares what they print with what it says.

usage: python readme.py README.md [--spark]

An environment without a checkout runs this file, so it needs kstore with its command, and else the standard library
alone. The blocks run in order, as one program; then the commands of the text that look at the blocks' data.
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

__all__ = ["code_blocks", "commands", "main", "printed_by", "said_by"]

SPARK = "kstore.spark"
# What grep says of a pattern that is nowhere.
FOUND_NOTHING = {"grep": 1}


def code_blocks(text: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def said_by(blocks: list[str]) -> list[str]:
    """The lines that the comments after ``print(...)`` promise: ``# 1 2, then 3 4``."""
    said = re.findall(r"print\(.*\)  # (.*)", "\n".join(blocks))
    return [line for text in said for line in re.split(r", then |, (?=\d )", text)]


def commands(text: str) -> list[list[str]]:
    """The commands in the text that name something in the directory ``data``."""
    spans = re.findall(r"`(kstore [a-z-]+ [^`]+)`", text)
    return [words for words in map(shlex.split, spans) if any(word.split("/")[0] == "data" for word in words)]


def printed_by(block: str) -> list[str]:
    Path("example.py").write_text(block, encoding="utf-8")
    with redirect_stdout(StringIO()) as output:
        runpy.run_path("example.py")
    return output.getvalue().splitlines()


def main(readme: str, *options: str) -> int:
    text = Path(readme).read_text(encoding="utf-8")
    blocks = [block for block in code_blocks(text, "python") if SPARK not in block or "--spark" in options]
    called = commands(text)
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        expected, printed = said_by(blocks), printed_by("\n\n".join(blocks))
        if not expected or printed != expected:
            print(f"the README's examples print {printed}, expected {expected}")
            return 1
        for words in called:
            command = [str(Path(sys.executable).with_name("kstore")), *words[1:]]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            if done.returncode != FOUND_NOTHING.get(words[1], 0) or not done.stdout + done.stderr:
                said = (done.stdout + done.stderr).strip()
                print(f"{shlex.join(words)} ends with status {done.returncode} and says {said!r}")
                return 1
    print(f"ran {len(blocks)} examples, which printed {len(printed)} lines, and {len(called)} commands")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
