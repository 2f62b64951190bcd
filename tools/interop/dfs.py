"""A real HDFS on loopback: a name node and two data nodes in one process, on free ports, never left running.

The process waits on a pipe from this one: it stops when the pipe closes, however its parent ended, and a watchdog in it
limits its life as well. Its output goes to ``dfs.log`` in its directory.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tools.interop import java

START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
LIFE_SECONDS_MAX = 1800
# The user who may write below "/": the name node trusts the user's name over HTTP.
USER = "root"


class DfsError(Exception):
    """A cluster that did not start; the message has the end of its log."""


class Dfs:
    """A running HDFS: the addresses of its name node. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[bytes], said_path: Path, hdfs: str, http: str) -> None:
        self._process = process
        self._said_path = said_path
        self.hdfs = hdfs
        self.http = http

    @property
    def webhdfs(self) -> str:
        """The same files over HTTP."""
        return self.http.replace("http://", f"webhdfs://{USER}@", 1)

    @contextlib.contextmanager
    def without_data_node(self, *, is_noticed: bool = False) -> Iterator[None]:
        """Kills a data node, each time the other one, and starts it again at the end. Raises: DfsError.

        ``is_noticed``: the name node knows that it is dead, which otherwise takes minutes.
        """
        # One that was started again is the last one.
        self._command("kill 0")
        try:
            if is_noticed:
                self._command("notice")
            yield
        finally:
            self._command("start")

    def _command(self, command: str) -> None:
        assert self._process.stdin is not None
        done_count = self._done_count()
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._done_count() == done_count:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DfsError(f"HDFS did not {command} (status {self._process.poll()})")
            time.sleep(0.02)

    def _done_count(self) -> int:
        return self._said_path.read_text(errors="replace").count("done\n")


@contextlib.contextmanager
def running_dfs(root: Path, java_path: str, jars: Path) -> Iterator[Dfs]:
    """An empty HDFS with its blocks below ``root``; Java and jars (``HDFS_POM``) from ``java``. Raises DfsError."""
    root.mkdir(parents=True, exist_ok=True)
    log_path, ready_path = root / "dfs.log", root / "ready.txt"
    program = java.command(java_path, jars, "Dfs.java", seconds=LIFE_SECONDS_MAX)
    with log_path.open("wb") as log, ready_path.open("wb") as ready:
        process = subprocess.Popen([*program, str(root / "blocks")], stdin=subprocess.PIPE, stdout=ready, stderr=log)
    try:
        yield _wait(process, ready_path, log_path)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], ready_path: Path, log_path: Path) -> Dfs:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        words = ready_path.read_text(errors="replace")
        if words.endswith("\n") and "ready " in words:
            hdfs, http = words.partition("ready ")[2].split()
            return Dfs(process, ready_path, hdfs, http)
        time.sleep(0.1)
    process.kill()
    said = log_path.read_text(errors="replace")[-3000:]
    raise DfsError(f"HDFS did not start (status {process.poll()}):\n{said}")
