"""Reads two logs in every way while a real broker writes and compacts them: no false damage, no lost record.

    python -m tests.interop.live_cleaner SECONDS

The step between keys is prime to ``KEYS``, so any ``KEYS`` consecutive records have all keys. Whatever the cleaner
removed, a reader must find the latest record of each key that was written before it began, one of the last ``KEYS``, or
a later one.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import kstore
from kstore.errors import DivergedError, FileMissingError
from kstore.upkeep.mirror import mirror
from kstore.upkeep.verify import verify_log
from tests.support.harness.evidence import Lost, Wrong
from tools.interop import java
from tools.interop.broker import Broker, BrokerError

KEYS = 500
KEY_STEP = 7919
# By topic: the codec of its producer.
TOPICS = {"plain": "none", "packed": "zstd"}
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "internal.segment.bytes": "32768",
    "index.interval.bytes": "512",
    # Removed files have other names at once. The broker closes them after this time, and a segment that it has not
    # flushed by then takes its log directory offline: at 50 ms, within minutes on a busy machine.
    "file.delete.delay.ms": "15000",
    "delete.retention.ms": "100",
}
BROKER_SETTINGS = "log.cleaner.backoff.ms=100\nlog.initial.task.delay.ms=100\nlog.cleaner.threads=2\n"
# How long a broker and its client take to start and to end.
MARGIN_SECONDS = 90
FOLLOW_SECONDS_MAX = 5


def key_of(offset: int) -> bytes:
    return b"%d" % (offset * KEY_STEP % KEYS)


def value_of(offset: int) -> bytes:
    return b"%d" % offset + b"v" * (offset % 60)


class Seen:
    """What one pass over a log returned, in order."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._latest: dict[bytes, int] = {}
        self._last = -1

    def add(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        if offset <= self._last:
            raise Wrong(f"{self._reader}: offset {offset} after {self._last}")
        if (key, value) != (key_of(offset), value_of(offset)):
            raise Wrong(f"{self._reader}: offset {offset} has {key!r}: {value!r}")
        self._latest[key_of(offset)] = self._last = offset

    def hold(self, end: int) -> None:
        """``end``: the log's end when the pass began."""
        for offset in range(max(end - KEYS, 0), end):
            found = self._latest.get(key_of(offset), -1)
            if found < offset:
                raise Lost(f"{self._reader}: key {key_of(offset)!r} has offset {found}, but {offset} was written")


def records(log: kstore.Log, seen: Seen) -> None:
    for record in log.read():
        seen.add(record.offset, record.key, record.value)


def records_over_damage(log: kstore.Log, seen: Seen) -> None:
    reader = log.read(on_corrupt="skip")
    for record in reader:
        seen.add(record.offset, record.key, record.value)
    if reader.corrupt:
        raise Wrong(f"damage reported in a sound log: {reader.corrupt}")


def columns(log: kstore.Log, seen: Seen) -> None:
    table = log.to_arrow(columns=["offset", "key", "value"])
    for row in table.to_pylist():
        seen.add(row["offset"], row["key"], row["value"])


def followed(log: kstore.Log, seen: Seen) -> None:
    for record in log.read(follow=True, timeout=FOLLOW_SECONDS_MAX):
        seen.add(record.offset, record.key, record.value)


def lookups(log: kstore.Log, seen: Seen) -> None:
    """Gets each key's latest record, which may be gone by now if a later one exists."""
    end = log.end_offset
    for offset in range(max(end - KEYS, 0), end):
        record = log.get(offset)
        if record is not None and (record.key, record.value) != (key_of(offset), value_of(offset)):
            raise Wrong(f"get({offset}) is {record}")
    records(log, seen)


def verified(log: kstore.Log, seen: Seen) -> None:
    report = log.verify()
    if not report.clean:
        raise Wrong(f"verify reports damage in a sound log: {report}")
    records(log, seen)


def verified_files(log: kstore.Log, seen: Seen) -> None:
    """Also every entry of the indexes and snapshots, as in the command."""
    found = verify_log(log.path).damages
    if found:
        raise Wrong(f"verify reports damage in a sound log: {found}")
    records(log, seen)


def mirrored(log: kstore.Log, seen: Seen) -> None:
    with tempfile.TemporaryDirectory() as target:
        for done in mirror(log.path, Path(target) / "copy-0"):
            if isinstance(done.error, FileMissingError | DivergedError):
                # The cleaner was faster, and the error says so.
                return records(log, seen)
            if done.error is not None or done.damage:
                raise Wrong(f"{done.error}, {done.damage}")
        with kstore.Log(Path(target) / "copy-0", read_only=True) as copy:
            records(copy, seen)


Pass = Callable[[kstore.Log, Seen], None]
PASSES: Sequence[Pass] = (
    records, records_over_damage, columns, followed, lookups, verified, verified_files, mirrored
)  # fmt: skip


class Beside:
    """The threads that read beside the broker, and what they found. Thread-safe."""

    def __init__(self, root: Path, topics: Iterable[str], passes: Sequence[Pass]) -> None:
        self.passes: Counter[str] = Counter()
        # Warnings too: the logs are sound.
        self.failures: list[str] = []
        # How many times a segment's file was replaced.
        self.rounds = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._watch, args=(root, topics))]
        for topic in topics:
            for one in passes:
                for is_kept in (False, True):
                    place = root / f"{topic}-0"
                    name = f"{one.__name__} of {topic}, {'one open log' if is_kept else 'opened each time'}"
                    self._threads.append(threading.Thread(target=self._run, args=(name, one, place, is_kept)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Each thread ends after the pass that it is in."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, one: Pass, place: Path, is_kept: bool) -> None:
        kept = kstore.Log(place, read_only=True)
        try:
            while not self._is_over.is_set():
                log = kept if is_kept else kstore.Log(place, read_only=True)
                try:
                    log.refresh()
                    seen, end = Seen(name), log.end_offset
                    one(log, seen)
                    seen.hold(end)
                finally:
                    if not is_kept:
                        log.close()
                self.passes[name] += 1
        except BaseException:
            self.failures.append(f"{name}, after {self.passes[name]} passes:\n{traceback.format_exc()}")
        finally:
            kept.close()

    def _watch(self, root: Path, topics: Iterable[str]) -> None:
        files: dict[Path, int] = {}
        while not self._is_over.wait(0.05):
            for topic in topics:
                for path in (root / f"{topic}-0").glob("*.log"):
                    try:
                        number = path.stat().st_ino
                    except FileNotFoundError:
                        continue
                    self.rounds += files.setdefault(path, number) != number
                    files[path] = number


def read_beside(broker: Broker, java_path: str, jars: Path, seconds: int, passes: Sequence[Pass] = PASSES) -> Beside:
    """Starts ``broker``, and reads beside it for this many seconds."""
    broker.extra_properties = BROKER_SETTINGS
    # On a busy machine all of it takes longer.
    broker.life_seconds_max = 2 * (seconds + MARGIN_SECONDS)
    beside = Beside(broker.data, TOPICS, passes)

    def write(topic: str, codec: str) -> None:
        command = f"keyed\t{topic}\t{seconds}\t{KEYS}\t{codec}"
        limit = 2 * seconds + MARGIN_SECONDS
        try:
            java.run(java_path, jars, "Client.java", [command], seconds=limit, server=broker.server)
        except Exception as error:
            beside.failures.append(f"the writer of {topic}: {error}")

    writers = [threading.Thread(target=write, args=item) for item in TOPICS.items()]
    warned = logging.Handler(logging.WARNING)
    warned.emit = lambda record: beside.failures.append(record.getMessage())  # type: ignore[method-assign]
    try:
        with broker.running():
            broker.create_topics(dict.fromkeys(TOPICS, TOPIC_SETTINGS))
            # A topic's directory is created after the topic, at the latest when it is read.
            broker.consume(TOPICS, "read_uncommitted")
            logging.getLogger("kstore").addHandler(warned)
            beside.start()
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            beside.finish()
            logging.getLogger("kstore").removeHandler(warned)
    except BrokerError as error:
        # What the readers found until then counts.
        beside.failures.append(f"the broker: {error}")
    return beside


def main() -> None:
    seconds = int(sys.argv[1])
    java_path, jars = java.find_java(), java.fetch_jars()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as root:
        beside = read_beside(Broker(Path(root), java_path, jars), java_path, jars, seconds)
    for name, count in sorted(beside.passes.items()):
        print(f"{count:8,} passes: {name}")
    print(f"{beside.rounds:,} replaced segments in {time.monotonic() - begun:.0f} s, {len(beside.failures)} failures")
    print(*beside.failures, sep="\n")
    sys.exit(bool(beside.failures))


if __name__ == "__main__":
    main()
