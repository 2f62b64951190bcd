"""A process that makes a backup, or a replicator's rounds, in an object store on this disk, until it is killed.

usage: python -m tests.crash.upload_processes backup|replicate PATH TARGET KILL_AT SEED

The object store is fsspec's, four uploads at a time, as for any other. An object appears when its upload is complete;
what was sent of others is in ``TARGET.sent``, which no reader sees. The process kills itself at the begin of request
number KILL_AT of its backups, or in the middle of it if that is a write; 0: never. At the end it prints how many
requests there were, and the time of its last manifest.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from kstore.store import Store

# One that object stores have: a put needs no rename.
SCHEME = "r2"
SETTINGS: dict[str, Any] = {"background": False, "durability": "os", "segment_bytes": 1 << 14}


class Requests:
    """Counts them over all threads, and ends the process at one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = self.kill_at = 0
        self.is_counting = False

    def note(self) -> bool:
        """Whether it is the one."""
        with self._lock:
            self.count += self.is_counting
            return bool(self.is_counting and self.count == self.kill_at)


REQUESTS = Requests()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # until it strikes


class Objects(LocalFileSystem):
    """An object store in a directory."""

    protocol = SCHEME
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).removeprefix(f"{SCHEME}://").strip("/")

    def _request(self) -> None:
        if REQUESTS.note():
            die()

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self._request()
        found: dict[str, Any] = super().info(path, **options)
        return found

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self._request()
        return super().ls(path, detail=detail, **options)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._request()
        return Path(path).read_bytes()[start:end]

    def rm_file(self, path: str) -> None:
        self._request()
        super().rm_file(path)

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return Sent(path) if mode == "wb" else super().open(path, mode, **options)


class Sent:
    """An upload: each write sends a part, and ``close`` completes the object."""

    def __init__(self, path: str) -> None:
        self._object = Path(path)
        sent = next(parent for parent in self._object.parents if parent.name == "target").with_suffix(".sent")
        sent.mkdir(exist_ok=True)
        self._parts = sent / uuid.uuid4().hex
        self._file = self._parts.open("wb", buffering=0)
        self.closed = False

    def write(self, data: Any) -> int:
        is_last = REQUESTS.note()
        view = memoryview(data)
        self._file.write(view[: len(view) // 2])
        if is_last:
            die()
        self._file.write(view[len(view) // 2 :])
        return len(view)

    def close(self) -> None:
        is_last = REQUESTS.note()
        # Half of these kills come before the object appears, half before its response.
        if is_last and REQUESTS.kill_at % 2:
            die()
        self._object.parent.mkdir(parents=True, exist_ok=True)
        self._parts.replace(self._object)
        if is_last:
            die()
        self.closed = True

    def discard(self) -> None:
        self._parts.unlink(missing_ok=True)


def use_objects() -> None:
    fsspec.register_implementation(SCHEME, Objects, clobber=True)


def main() -> None:
    what, path, target, kill_at, seed = sys.argv[1:]
    use_objects()
    url, generator = f"{SCHEME}://{target}", random.Random(int(seed))
    REQUESTS.kill_at = int(kill_at)
    with Store(path, **SETTINGS) as store:
        if what == "backup":
            REQUESTS.is_counting = True
            time_ms = store.backup(url).time_ms
        else:
            with store.replicator(url, keep=1) as replicator:
                REQUESTS.is_counting = True
                for _ in range(3):
                    for partition in store.partitions("orders"):
                        log = store.log("orders", partition)
                        end = log.end_offset
                        log.append_many([b"%d" % at + b"x" * 500 for at in range(end, end + generator.randint(1, 25))])
                    time_ms = replicator.flush()
                REQUESTS.is_counting = False
        REQUESTS.is_counting = False
    print(REQUESTS.count, time_ms)


if __name__ == "__main__":
    main()
