"""A real Kafka broker on loopback: one node in KRaft mode, in its own directory, never left running.

The broker process waits on a pipe from this one: it stops when the pipe closes, however its parent ended. A watchdog
also limits its life.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.interop import java
from tools.interop.records import Consumed, read_consumed

# The mark of a clean stop in the root of a log directory.
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"

START_SECONDS_MAX = 90
STOP_SECONDS_MAX = 60
LIFE_SECONDS_MAX = 240
CLIENT_SECONDS_MAX = 120
START_ATTEMPTS = 3  # another process may take a free port between our look and the broker's bind

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
log.dirs={data}
metadata.log.dir={meta}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
group.initial.rebalance.delay.ms=0
log.retention.ms=-1
"""


class BrokerError(Exception):
    """A broker that did not start or stop properly; the message has the end of its log."""


class Broker:
    """One broker's directories and configuration below ``root``, and its process while it runs. Not thread-safe."""

    # Lines for the broker's configuration; set before its start.
    extra_properties = ""
    # The limit of its life, whatever happens; set before its start.
    life_seconds_max = LIFE_SECONDS_MAX
    # For its JVM; set before its start.
    jvm_options: Sequence[str] = java.JVM_OPTIONS

    def __init__(self, root: Path, java_path: str, jars: Path) -> None:
        self.data = root / "data"
        self.meta = root / "meta"
        self._root = root
        self._java = java_path
        self._jars = jars
        self._cluster = base64.urlsafe_b64encode(b"kstore" + uuid.uuid4().bytes[:10]).decode().rstrip("=")
        self._port = 0
        self._starts = 0
        # Of the latest start.
        self.process_id = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Starts the broker, and stops it cleanly at the end; kills it if that fails. Raises: BrokerError."""
        process = self._start()
        self.process_id = process.pid
        try:
            yield
            self._stop(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    @property
    def server(self) -> str:
        """Where clients reach the broker since its latest start."""
        return f"127.0.0.1:{self._port}"

    @property
    def log(self) -> str:
        """What the broker has printed since its latest start."""
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def create_topics(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Creates topics, by default of one partition, each with its settings in Kafka's names."""
        self.client(
            "\t".join(["create", topic, *(f"{name}={value}" for name, value in settings.items())])
            for topic, settings in topics.items()
        )

    def consume(self, topics: Iterable[str], isolation_level: str) -> dict[str, Consumed]:
        """Everything that a consumer reads from partition 0 of each topic."""
        folder = self._root / f"consumed-{self._starts}-{isolation_level}"
        folder.mkdir(exist_ok=True)
        paths = {topic: folder / f"{topic}.jsonl" for topic in topics}
        self.client(f"consume\t{topic}\t{isolation_level}\t{path}" for topic, path in paths.items())
        return {topic: read_consumed(path) for topic, path in paths.items()}

    def seek(self, offsets: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """By topic, the first record for a consumer that seeks each offset."""
        return self._look_up("seek", offsets)

    def offsets_for_times(self, timestamps: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        """By topic, the first offset at or after each time (ms; -1 if none), and then the latest record's."""
        return self._look_up("time", timestamps)

    def _look_up(self, verb: str, numbers: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
        folder = self._root / f"{verb}-{self._starts}"
        folder.mkdir(exist_ok=True)
        self.client("\t".join([verb, topic, str(folder / topic), *map(str, asked)]) for topic, asked in numbers.items())
        return {topic: [int(line) for line in (folder / topic).read_text().split()] for topic in numbers}

    def client(self, commands: Iterable[str]) -> None:
        """Runs commands of Client.java against the running broker, in one JVM. Raises: java.ProgramError."""
        java.run(self._java, self._jars, "Client.java", commands, seconds=CLIENT_SECONDS_MAX, server=self.server)

    @property
    def _log_path(self) -> Path:
        return self._root / f"broker-{self._starts}.log"

    def _start(self) -> subprocess.Popen[bytes]:
        for _ in range(START_ATTEMPTS):
            process = self._launch()
            try:
                if self._is_ready(process):
                    return process
            except BaseException:
                _end(process)
                raise
            _end(process)
            if "BindException" not in self.log:
                break
        raise BrokerError(f"the broker did not start:\n{self.log[-3000:]}")

    def _launch(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        self._port, controller_port = _free_ports()
        properties = self._root / "server.properties"
        properties.write_text(
            PROPERTIES.format(port=self._port, controller_port=controller_port, data=self.data, meta=self.meta)
            + self.extra_properties
        )
        logger = {"org.slf4j.simpleLogger.defaultLogLevel": "info"}
        program = java.command(
            self._java, self._jars, "Broker.java", seconds=self.life_seconds_max, options=self.jvm_options, **logger
        )
        with self._log_path.open("wb") as log:
            return subprocess.Popen(
                [*program, str(properties), self._cluster, str(self.meta)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _is_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and process.poll() is None:
            # Printed when the listener answers and every log in the directory is open.
            if "Kafka Server started" in self.log:
                return True
            time.sleep(0.1)
        return False

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.poll() is not None:
            raise BrokerError(f"the broker ended by itself with status {process.poll()}:\n{self.log[-3000:]}")
        process.stdin.close()
        try:
            status = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise BrokerError(f"the broker did not stop within {STOP_SECONDS_MAX} s:\n{self.log[-3000:]}") from None
        if status != 0 or not (self.data / CLEAN_SHUTDOWN).exists():
            raise BrokerError(f"the broker did not stop cleanly (status {status}):\n{self.log[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
