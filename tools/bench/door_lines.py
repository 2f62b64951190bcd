"""A door beside a live Kafka broker, both on the same disk: Java's own performance tools against each, in turn.

Durability is "os" on both sides: nothing is synced. The start of a JVM and its first records do not count.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tools.bench.measure import MILLION, all_in_turn, rows_as_table
from tools.interop import java
from tools.interop.broker import Broker

RECORDS = 1_000_000
# Until a JVM has compiled its code.
WARM_RECORDS = 200_000
RECORD_SIZE = 100
LARGE_BATCHES = ("batch.size=1000000", "linger.ms=50", "max.request.size=2000000")
JVM_OPTIONS = ("-Xmx512m", "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
PRODUCED = re.compile(r"([\d.]+) records/sec")
SECONDS_MAX = 300
# What a door is to reach, as a multiple of the broker's: rates at least, processor time and memory at most.
ASKED = {"in, defaults": 0.8, "in, large batches": 2.0, "out, checked": 1.5}
PROCESSOR_MAX, MEMORY_MAX = 0.7, 1 / 6


class Taken(NamedTuple):
    """One run of a tool: records a second, and the microseconds of processor time for each that the server took, and
    the tool, with its start. Where they share two busy processors, the tool bounds how much faster a server can be.
    """

    rate: float
    processor_us: float
    tool_us: float


@dataclass
class Server:
    """A broker or a door."""

    name: str
    address: str
    process: int
    create: Callable[[str], object]
    topics: list[str] = field(default_factory=list)

    def new_topic(self) -> str:
        name = f"orders-{len(self.topics)}"
        self.create(name)
        self.topics.append(name)
        return name

    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        [line] = [line for line in Path(f"/proc/{self.process}/status").read_text().splitlines() if "VmHWM" in line]
        return int(line.split()[1]) << 10


class Tools:
    """Java's performance tools."""

    def __init__(self, java_path: str, jars: Path) -> None:
        self._command = [java_path, *JVM_OPTIONS, "-cp", f"{jars}/*"]

    def _run(self, server: Server, tool: str, *args: str) -> tuple[str, float, float]:
        """What the tool prints, and the processor time for each record: the server's, and its own."""
        servers, own = server.processor_seconds(), _children_seconds()
        command = [*self._command, f"org.apache.kafka.tools.{tool}", "--bootstrap-server", server.address, *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        if done.returncode != 0:
            raise java.ProgramError(
                f"{tool} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}"
            )
        servers, own = server.processor_seconds() - servers, _children_seconds() - own
        return done.stdout, servers / RECORDS * MILLION, own / RECORDS * MILLION

    def produce(self, server: Server, *settings: str) -> Taken:
        topic = server.new_topic()
        size = ("--record-size", str(RECORD_SIZE), "--num-records", str(RECORDS), "--throughput", "-1")
        more = ("--command-property", *settings) if settings else ()
        printed, *used = self._run(
            server, "ProducerPerformance", "--topic", topic, *size, "--warmup-records", str(WARM_RECORDS), *more
        )
        return Taken(float(PRODUCED.findall(printed)[-1]), *used)

    def consume(self, server: Server) -> Taken:
        size = ("--num-records", str(RECORDS))
        printed, *used = self._run(server, "ConsumerPerformance", "--topic", server.topics[-1], *size)
        head, row = ([cell.strip() for cell in line.split(",")] for line in printed.splitlines()[:2])
        # Without the time until the group assigns it the partition.
        return Taken(float(dict(zip(head, row, strict=True))["fetch.nMsg.sec"]), *used)


def _children_seconds() -> float:
    """The processor time of the processes that this one has started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextmanager
def serving(path: Path) -> Iterator[Server]:
    """``kstore serve`` in a process of its own."""
    command = [sys.executable, "-m", "kstore", "serve", "--port", "0", "--durability", "os", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            # A topic is created by the first client that names it.
            yield Server("door", process.stdout.readline().decode().strip(), process.pid, lambda name: None)
        finally:
            process.terminate()


def beside_a_broker(root: Path, java_path: str, jars: Path, *, rounds: int) -> str:
    """The table of both, measured in turn; a figure is a median."""
    broker, tools = Broker(root, java_path, jars), Tools(java_path, jars)
    broker.life_seconds_max = 3600
    # The heap that Kafka's own script gives a broker.
    broker.jvm_options = ("-Xmx1g", "-Xms1g", *JVM_OPTIONS[1:])
    with broker.running(), serving(root / "door") as door:
        live = Server("broker", broker.server, broker.process_id, lambda name: broker.create_topics({name: {}}))
        rows: list[tuple[str, ...]] = []
        works: dict[str, Callable[[Server], Taken]] = {
            "in, defaults": tools.produce,
            "in, large batches": lambda server: tools.produce(server, *LARGE_BATCHES),
            "out, checked": tools.consume,
        }
        for name, work in works.items():
            rows += _rows(name, *all_in_turn((partial(work, door), partial(work, live)), rounds=rounds))
        peaks = [server.peak_bytes() for server in (door, live)]
    said = [f"{peak >> 20} MiB" for peak in peaks]
    rows.append(("peak resident memory", *said, f"{peaks[0] / peaks[1]:.2f}", f"at most {MEMORY_MAX:.2g}"))
    return rows_as_table([("", "door", "broker", "x", "asked"), *rows])


def _rows(name: str, door: Sequence[Taken], broker: Sequence[Taken]) -> list[tuple[str, ...]]:
    """The rate, and the processor time of the server and of the tool."""
    rates = [statistics.median(one.rate for one in taken) for taken in (door, broker)]
    used = [statistics.median(one.processor_us for one in taken) for taken in (door, broker)]
    tool = [statistics.median(one.tool_us for one in taken) for taken in (door, broker)]
    said = [f"{rate / MILLION:.2f} M/s" for rate in rates], *([f"{one:.2f} us" for one in two] for two in (used, tool))
    return [
        (name, *said[0], f"{rates[0] / rates[1]:.2f}", f"at least {ASKED[name]:g}"),
        (f"{name}: processor", *said[1], f"{used[0] / max(used[1], 0.001):.2f}", f"at most {PROCESSOR_MAX:g}"),
        (f"{name}: processor of the tool", *said[2], f"{tool[0] / tool[1]:.2f}", ""),
    ]
