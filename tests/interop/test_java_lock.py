"""kstore's directory lock and Java's, which a broker uses, exclude each other."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from kstore.errors import LockedError
from kstore.files.lock import DirectoryLock, probe_lock

JAVA = shutil.which("java")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(JAVA is None, reason="Java is not installed"),
]

SOURCE = Path(__file__).parents[2] / "tools" / "interop" / "HoldLock.java"


class JavaLocker:
    """A Java program that tries to take the lock on request."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def answer(self) -> str:
        return self._output.readline().strip()

    def try_again(self) -> str:
        self._input.write("\n")
        self._input.flush()
        assert self.answer() == "released"
        return self.answer()

    def stop(self) -> None:
        self._input.close()
        assert self.answer() == "released"


@pytest.fixture
def java(tmp_path: Path) -> Iterator[JavaLocker]:
    assert JAVA is not None
    command = [JAVA, str(SOURCE), str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield JavaLocker(process)
        finally:
            process.kill()


def test_java_and_kstore_keep_each_other_out(tmp_path: Path, java: JavaLocker) -> None:
    if (first := java.answer()) == "":
        pytest.skip("this Java cannot run a source file: a runtime without a compiler")
    assert first == "locked"
    for use in (DirectoryLock, probe_lock):
        for shared in (False, True):
            with pytest.raises(LockedError, match=rf"process {java.pid} \(a broker or another program\)"):
                use(tmp_path, shared=shared)
    # Java releases the lock and tries again, so kstore's attempts must not have disturbed it.
    assert java.try_again() == "locked"
    java.stop()
    with DirectoryLock(tmp_path) as lock:
        assert lock.held


@pytest.mark.parametrize("shared", [False, True])
def test_java_finds_a_directory_that_kstore_holds_locked(shared: bool, tmp_path: Path) -> None:
    assert JAVA is not None
    command = [JAVA, str(SOURCE), str(tmp_path / ".lock")]
    with DirectoryLock(tmp_path, shared=shared):
        held = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    free = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False)
    if held.returncode != 0:
        pytest.skip("this Java cannot run a source file: a runtime without a compiler")
    assert held.stdout.split() == ["refused", "released"]
    assert free.stdout.split() == ["locked", "released"]
