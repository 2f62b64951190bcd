"""The life of a store in steps, and a model of what is certain, doubtful and gone.

A step is reported before it is done and confirmed after it; if only reported, it exists completely or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.store import Store
from tests.support.fakes.fake_clock import ManualClock
from tests.support.harness.evidence import Lost, Wrong

# Small segments, so that retention has something to delete.
SETTINGS: dict[str, Any] = {"segment_bytes": 1024, "index_interval_bytes": 64}
# The kind of a step, its topic, and its parameter.
Step = tuple[str, str, int, int]
NAMES = ("orders", "jobs", "a.b")
PARTITIONS_MAX = 6
VALUE = b"%d:" + b"x" * 200


@dataclass(slots=True)
class Topic:
    """A topic that certainly exists. ``starts`` are the lowest possible starts of its partitions."""

    partitions: int
    limit: int = -1
    values: dict[int, list[bytes]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Model:
    topics: dict[str, Topic] = field(default_factory=dict)
    pending: Step | None = None

    def done(self) -> None:
        """The last reported step is done."""
        assert self.pending is not None
        kind, name, partition, number = self.pending
        self.pending = None
        match kind:
            case "create":
                self.topics[name] = Topic(number)
            case "grow":
                self.topics[name].partitions = number
            case "alter":
                self.topics[name].limit = number
            case "append":
                self.topics[name].values.setdefault(partition, []).append(VALUE % number)
            case "delete-records":
                self.topics[name].starts[partition] = number
            case "delete":
                del self.topics[name]


def do(store: Store, step: Step) -> None:
    """Does one step. Raises: what the store raises."""
    kind, name, partition, number = step
    match kind:
        case "create":
            store.create_topic(name, number)
        case "grow":
            store.add_partitions(name, number)
        case "alter":
            store.alter_topic(name, retention_bytes=number)
        case "append":
            store.log(name, partition).append(VALUE % number)
        case "delete-records":
            store.log(name, partition).delete_records(number)
        case "delete":
            store.delete_topic(name)
        case "checkpoint":
            store.checkpoint()
        case "remove":
            store.run_task("removal")
        case _:
            raise AssertionError(kind)


def scripted() -> list[Step]:
    """A life that does everything."""
    steps: list[Step] = [("create", "orders", 0, 2)]
    steps += [("append", "orders", 1, number) for number in range(8)]
    steps += [
        ("grow", "orders", 0, 4),
        ("alter", "orders", 0, 1 << 20),
        ("create", "jobs", 0, 1),
        ("append", "jobs", 0, 100),
        ("delete-records", "orders", 1, 6),
        ("checkpoint", "", 0, 0),
        ("delete", "jobs", 0, 0),
        ("create", "jobs", 0, 3),
        ("append", "jobs", 0, 200),
        ("remove", "", 0, 0),
        ("delete", "orders", 0, 0),
    ]
    return steps


def random_step(generator: random.Random, model: Model) -> Step:
    """A random step that can be done."""
    name = generator.choice(NAMES)
    topic = model.topics.get(name)
    if topic is None:
        return "create", name, 0, generator.randint(1, 4)
    partition = generator.randrange(topic.partitions)
    match generator.randrange(12):
        case 0 | 1:
            return "delete", name, 0, 0
        case 2 if topic.partitions < PARTITIONS_MAX:
            return "grow", name, 0, topic.partitions + 1
        case 3:
            return "alter", name, 0, generator.randrange(10**6, 10**7)
        case 4:
            return "checkpoint", "", 0, 0
        case 5:
            return "remove", "", 0, 0
        case 6:
            start, end = topic.starts.get(partition, 0), len(topic.values.get(partition, ()))
            return "delete-records", name, partition, generator.randint(start, end)
        case _:
            return "append", name, partition, generator.randrange(10**6)


def seen_in(store: Store) -> Model:
    """A model of the contents of a store."""
    model = Model()
    for name in store.topics():
        topic = model.topics[name] = Topic(len(store.partitions(name)))
        topic.limit = store.describe_topic(name).settings.get("retention_bytes", -1)
        for number in range(topic.partitions):
            log = store.log(name, number)
            topic.starts[number] = log.start_offset
            kept = [value for value in log.read_values(log.start_offset) if value is not None]
            topic.values[number] = [b""] * log.start_offset + kept
    return model


def check_store(path: Path, model: Model, fs: FileSystem = SYSTEM_FS) -> Model:
    """Opens the store, compares it with ``model``, and returns the model of its contents. Raises: Lost, Wrong."""
    with Store(path, background=False, fs=fs, clock=ManualClock(), **SETTINGS) as store:
        found = _look(store, model)
        store.run_task("removal")
        expected = {f"{name}-{number}" for name, topic in found.topics.items() for number in range(topic.partitions)}
        there = {name for name in fs.list(path) if fs.stat(path / name).is_dir}
        if there != expected:
            raise Wrong(f"directories {sorted(there ^ expected)}, pending {model.pending}")
        if store.notes or store.ignored:
            raise Wrong(f"{store.notes} {store.ignored}, pending {model.pending}")
    return found


def _look(store: Store, model: Model) -> Model:
    kind, pending_name, pending_partition, pending_number = model.pending or ("", "", 0, 0)
    may: Callable[[str, str], bool] = lambda what, name: kind == what and pending_name == name  # noqa: E731
    found = Model()
    for name in store.topics():
        if name not in model.topics and not may("create", name):
            raise Wrong(f"topic {name} is there, pending {model.pending}")
        known = model.topics.get(name) or Topic(pending_number)
        seen = found.topics[name] = Topic(len(store.partitions(name)))
        allowed = {known.partitions} | ({pending_number} if may("grow", name) else set())
        if seen.partitions not in allowed:
            raise Wrong(f"{name} has {seen.partitions} partitions, expected {allowed}")
        seen.limit = store.describe_topic(name).settings.get("retention_bytes", -1)
        if seen.limit != known.limit and not (may("alter", name) and seen.limit == pending_number):
            raise Wrong(f"{name} has the limit {seen.limit}, expected {known.limit}")
        for number in range(seen.partitions):
            log = store.log(name, number)
            values, start = known.values.get(number, []), known.starts.get(number, 0)
            here = pending_partition == number
            starts = {start} | ({pending_number} if may("delete-records", name) and here else set())
            if log.start_offset not in starts:
                raise Wrong(f"{name}-{number} starts at {log.start_offset}, expected {starts}")
            seen.starts[number] = start = log.start_offset
            kept = [value for value in log.read_values(start) if value is not None]
            after = [*values, VALUE % pending_number] if may("append", name) and here else values
            if kept not in (values[start:], after[start:]):
                verdict = Lost if len(kept) < len(values) - start else Wrong
                raise verdict(f"{name}-{number} has {len(kept)} records from {start} on, expected {len(values)}")
            seen.values[number] = [*values[:start], *kept]
    for name in model.topics.keys() - found.topics.keys():
        if not may("delete", name):
            raise Lost(f"topic {name} is not there, pending {model.pending}")
    return found
