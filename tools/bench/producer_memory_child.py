"""Fills a producer whose sender is blocked in a write, in its own process; prints the peak growth of its memory in
bytes, including the delivery, and the number of accepted records.

usage: python -m tools.bench.producer_memory_child STORE VALUE_SIZE CODEC
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import kstore
from kstore.errors import BufferExhaustedError, PathLike
from kstore.files.local import OsFile, OsFileSystem
from tools.bench.logs import values
from tools.bench.memory_child import greatest_bytes, reset_peak, status_bytes
from tools.bench.producers_child import TOPIC

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_BLOCK_MS = 200
WAIT_SECONDS = 30
DISTINCT_BYTES = 1 << 20


class Gate:
    """A gate at which writes wait while it is shut."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.reached = threading.Event()

    def shut(self) -> None:
        self.reached.clear()
        self.opened.clear()

    def open(self) -> None:
        self.opened.set()

    def enter(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_SECONDS), "the gate stayed shut"


class GatedFile(OsFile):
    __slots__ = ("_gate",)

    def __init__(self, fd: int, path: str, gate: Gate) -> None:
        super().__init__(fd, path)
        self._gate = gate

    def write_all(self, buffers: Sequence[Buffer], position: int) -> None:
        self._gate.enter()
        super().write_all(buffers, position)


class GatedFs(OsFileSystem):
    """This machine's file system, whose writes wait at a gate."""

    __slots__ = ("_gate",)

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def open(self, path: PathLike, *, write: bool = False, create: bool = False, mode: int = 0o600) -> OsFile:
        file = super().open(path, write=write, create=create, mode=mode)
        gated = GatedFile(os.dup(file.fileno()), file.path, self._gate)
        file.close()
        return gated


def main() -> None:
    path, value_size, codec = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    distinct = values(max(DISTINCT_BYTES // value_size, 1), value_size)
    gate = Gate()
    with kstore.open(path, durability="os", fs=GatedFs(gate)) as store:
        store.create_topic(TOPIC, 1)
        with store.producer(max_block_ms=MAX_BLOCK_MS, compression_type=codec) as producer:  # type: ignore[arg-type]  # a parameter of the program
            producer.send(TOPIC, b"first").result()
            gate.shut()
            producer.send(TOPIC, b"second")
            assert gate.reached.wait(WAIT_SECONDS), "the sender wrote nothing"
            is_exact = reset_peak()
            before = status_bytes("VmRSS") if is_exact else greatest_bytes()
            count = 2
            while True:
                delivery = producer.send(TOPIC, distinct[count % len(distinct)])
                if delivery.done():
                    break
                count += 1
            assert isinstance(delivery.exception(), BufferExhaustedError), delivery.exception()
            gate.open()
            producer.flush()
            grown = (status_bytes("VmHWM") if is_exact else greatest_bytes()) - before
        assert store.log(TOPIC).end_offset == count, f"{store.log(TOPIC).end_offset} records, expected {count}"
    print(grown, count)


if __name__ == "__main__":
    main()
