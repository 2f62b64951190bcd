"""The operations of a simulated life on its store. Each step draws its parameters from a generator of its own, so that
a life continues in the same way when other steps are removed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.simulation.model import Batch, Entry, Found, LogModel, TopicModel
from tests.simulation.transactions import TOPIC

if TYPE_CHECKING:
    from tests.simulation.life import Life

Step = Callable[["Life", random.Random], None]

CHURNED = ("first", "second")
DAY_MS = 86_400_000


def _entries(life: Life, generator: random.Random, model: LogModel) -> tuple[Entry, ...]:
    made = []
    for _ in range(generator.choice((1, 1, 2, 3, 5))):
        entry = life.new_entry(generator)
        if model.compacted:
            value = None if generator.random() < 0.15 else entry.value
            entry = Entry(b"k%d" % generator.randrange(6), value)
        made.append(entry)
    return tuple(made)


def batches(life: Life, generator: random.Random, model: LogModel, count: int) -> list[Batch]:
    life.write_count += 1
    made: list[Batch] = []
    first = model.end
    for _ in range(count):
        entries = _entries(life, generator, model)
        made.append(Batch(first, entries, life.clock.now_ms(), life.write_count))
        first = made[-1].stop
        if first - model.end >= 6:
            break  # a write fits into a segment
    return made


def _place(life: Life, generator: random.Random) -> tuple[str, int, LogModel]:
    names = [name for name, topic in life.topics.items() if not topic.may_be_missing]
    name = generator.choice(sorted(names))
    logs = life.topics[name].logs
    partition = generator.randrange(len(logs))
    life.count_markers(name, partition, logs[partition])
    return name, partition, logs[partition]


def append(life: Life, generator: random.Random) -> None:
    """One batch, or a few in one write."""
    name, partition, model = _place(life, generator)
    made = batches(life, generator, model, generator.choice((1, 1, 1, 2, 4)))
    append_to(life, name, partition, model, made)


def append_to(life: Life, name: str, partition: int, model: LogModel, made: Sequence[Batch]) -> None:
    log = life.store.log(name, partition)
    model.begin(made)
    if len(made) == 1:
        (batch,) = made
        if len(batch.entries) == 1:
            first = log.append(batch.entries[0].value, key=batch.entries[0].key, timestamp=batch.time_ms)
        else:
            first = log.append_many(
                [entry.value for entry in batch.entries],
                keys=[entry.key for entry in batch.entries],
                timestamps=[batch.time_ms] * len(batch.entries),
            ).first_offset
    else:
        data = b"".join(
            build_batch(
                [
                    Record(number, batch.time_ms, key=entry.key, value=entry.value)
                    for number, entry in enumerate(batch.entries)
                ]
            )
            for batch in made
        )
        first = log.append_batches(data).first_offset
    model.done(made, first)


def burst(life: Life, generator: random.Random) -> None:
    """A run of appends to one partition, so that it rolls."""
    name, partition, model = _place(life, generator)
    for _ in range(generator.randint(4, 12)):
        append_to(life, name, partition, model, batches(life, generator, model, 1))


def flush(life: Life, generator: random.Random) -> None:
    name, partition, model = _place(life, generator)
    life.store.log(name, partition).flush()
    model.flushed()


def roll(life: Life, generator: random.Random) -> None:
    name, partition, _ = _place(life, generator)
    life.store.log(name, partition).roll()


def delete_records(life: Life, generator: random.Random) -> None:
    name, partition, model = _place(life, generator)
    if model.compacted or name == TOPIC:
        return
    log = life.store.log(name, partition)
    stop = min(model.end, log.high_watermark)
    if stop < model.start_max:
        return
    before = generator.randint(model.start_max, stop)
    model.start_max = before
    log.delete_records(before)
    model.start_min = before


def truncate(life: Life, generator: random.Random) -> None:
    """Cuts off the last batches of a log."""
    name, partition, model = _place(life, generator)
    # Damaged or doubtful batches would move the end.
    last = [batch for batch in model.certain[-4:] if batch.first > model.start_max]
    if model.compacted or model.slack or model.rotten or model.doubtful or not last:
        return
    offset = generator.choice(last).first
    log = life.store.log(name, partition)
    model.begin_truncation(offset)
    log.truncate_to(offset)
    model.truncated(offset)


def read(life: Life, generator: random.Random) -> None:
    """A reader of the open store."""
    name, partition, model = _place(life, generator)
    model.hold(Found.of(life.store.log(name, partition)))


def look(life: Life, generator: random.Random) -> None:
    """A reader in another process: it writes nothing, and finds everything acknowledged."""
    life.look_from_outside()


# --- transactions, offsets, a queue: no promises of their own if the store does not sync ------------------------------


def transact(life: Life, generator: random.Random) -> None:
    if life.has_all:
        life.transactions.step(life, generator)


def audit(life: Life, generator: random.Random) -> None:
    """Committed readers of the open store."""
    if life.has_all:
        life.transactions.hold(life, settled=False)


def commit_offset(life: Life, generator: random.Random) -> None:
    if life.has_all:
        life.transactions.commit_offset(life, generator)


def work(life: Life, generator: random.Random) -> None:
    """The queue: items are put, leased, acked, returned."""
    if life.has_all:
        life.items.step(life, generator)


def drain(life: Life, generator: random.Random) -> None:
    if life.has_all:
        life.items.drain(life, generator)


# --- topics -----------------------------------------------------------------------------------------------------------


def churn(life: Life, generator: random.Random) -> None:
    """Creates, grows or deletes a topic."""
    name = generator.choice(CHURNED)
    topic = life.topics.get(name)
    if topic is None:
        count = generator.randint(1, 3)
        topic = life.topics[name] = TopicModel([], may_be_missing=True)
        topic.logs = [life.new_log(f"{name}-{number}") for number in range(count)]
        life.store.create_topic(name, count)
        topic.may_be_missing = False
    elif topic.may_be_missing:
        return
    elif generator.random() < 0.5 and len(topic.logs) < 5:
        topic.growing = life.new_log(f"{name}-{len(topic.logs)}")
        life.store.add_partitions(name, len(topic.logs) + 1)
        topic.logs.append(topic.growing)
        topic.growing = None
    else:
        topic.may_be_missing = True
        life.store.delete_topic(name)
        del life.topics[name]


# --- background work of the store ------------------------------------------------------------------------------------


def clean(life: Life, generator: random.Random) -> None:
    for topic in life.topics.values():
        for model in topic.logs:
            if model.compacted:
                model.compacted_to = model.end
    life.store.run_task("cleaner")


def retain(life: Life, generator: random.Random) -> None:
    life.store.run_task("retention")


def tasks(life: Life, generator: random.Random) -> None:
    """Runs everything that is due by the clock."""
    for topic in life.topics.values():
        for model in topic.logs:
            if model.compacted:
                model.compacted_to = model.end
    life.store.run_due_tasks()


def chore(life: Life, generator: random.Random) -> None:
    name = generator.choice(("checkpoints", "removal", "idle roll", "producers"))
    life.store.run_task(name)


def reopen(life: Life, generator: random.Random) -> None:
    life.close()
    life.open()


# --- time -------------------------------------------------------------------------------------------------------------


def wait(life: Life, generator: random.Random) -> None:
    life.clock.advance(generator.choice((10, 1000, 60_000, 3_600_000)))


def weeks(life: Life, generator: random.Random) -> None:
    """A long time without any operation."""
    life.clock.advance(generator.randint(1, 20) * 7 * DAY_MS)


def jump(life: Life, generator: random.Random) -> None:
    """The wall clock is set, by up to four weeks."""
    life.clock.jump(generator.randint(-28 * DAY_MS, 28 * DAY_MS))


# --- faults -----------------------------------------------------------------------------------------------------------


def power(life: Life, generator: random.Random) -> None:
    life.arm("power", generator)


def kill(life: Life, generator: random.Random) -> None:
    life.arm("kill", generator)


def fail(life: Life, generator: random.Random) -> None:
    life.arm("fail", generator)


def full(life: Life, generator: random.Random) -> None:
    """The disk will be full soon, until a step has failed because of it."""
    life.arm("full", generator)


def rot(life: Life, generator: random.Random) -> None:
    life.rot(generator)


# Each kind of step, and its frequency.
STEPS: dict[str, tuple[Step, int]] = {
    "append": (append, 30),
    "burst": (burst, 8),
    "flush": (flush, 4),
    "roll": (roll, 3),
    "delete records": (delete_records, 3),
    "truncate": (truncate, 3),
    "read": (read, 3),
    "look": (look, 2),
    "transact": (transact, 16),
    "audit": (audit, 2),
    "commit offset": (commit_offset, 3),
    "work": (work, 12),
    "drain": (drain, 1),
    "churn": (churn, 5),
    "clean": (clean, 4),
    "retain": (retain, 2),
    "tasks": (tasks, 3),
    "chore": (chore, 4),
    "reopen": (reopen, 3),
    "wait": (wait, 5),
    "weeks": (weeks, 2),
    "jump": (jump, 2),
    "power": (power, 7),
    "kill": (kill, 3),
    "fail": (fail, 3),
    "full": (full, 1),
    "rot": (rot, 2),
}
