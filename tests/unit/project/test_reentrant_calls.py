"""Calls of finalizers, signal handlers and handlers of log messages inside a call of the same thread do not wait for
it. ``send`` accepts the record; what returns an offset raises ReentrantCallError, and the outer call is unharmed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.engine.append._group import GroupCommit, Pending
from kstore.errors import BufferExhaustedError, ReentrantCallError
from kstore.files._locks import OwnedLock, Presence
from kstore.log import writer_of
from kstore.queue.queue import core_of
from kstore.types import Durability
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.producer_helpers import Gathering, values_of

SECONDS_MAX = 300

# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_thread_that_has_the_lock_is_refused_and_keeps_it() -> None:
    lock = OwnedLock()
    with lock:
        for call in (lock.acquire, lock.__enter__, lambda: lock.acquire(timeout=1), lock.refuse_inside):
            with pytest.raises(ReentrantCallError):
                call()
        assert not lock.acquire(False)
        assert (lock.locked(), lock.is_mine) == (True, True)
    assert (lock.locked(), lock.is_mine) == (False, False)
    lock.refuse_inside()


def test_a_free_lock_that_is_released_is_an_error() -> None:
    with pytest.raises(RuntimeError):
        OwnedLock().release()


def test_presence_ends_with_the_outermost_block() -> None:
    presence = Presence()
    with presence.entered() as is_outermost:
        with presence.entered() as is_inner_outermost:
            pass
        assert (is_outermost, is_inner_outermost, presence.has_me) == (True, False, True)
    assert not presence.has_me


# --- a log ------------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[kstore.Log], object]] = {
    "append": lambda log: log.append(b"inner"),
    "append with headers": lambda log: log.append(b"inner", headers={"h": b"1"}),
    "append_many": lambda log: log.append_many([b"inner"] * 3),
    "roll": lambda log: log.roll(),
    "truncate_to": lambda log: log.truncate_to(1),
    "flush": lambda log: log.flush(),
    "delete_records": lambda log: log.delete_records(1),
    "apply_retention": lambda log: log.apply_retention(),
}


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_inside_a_change_of_the_log_is_refused_and_changes_nothing(
    tmp_path: Path, name: str, shared: bool, durability: Durability
) -> None:
    with kstore.Log(tmp_path / "log", durability=durability, shared=shared) as log:
        log.append_many([b"a", b"b"])
        with writer_of(log).turn.lock, pytest.raises(ReentrantCallError):
            CALLS[name](log)
        assert log.append(b"c") == 2
        assert [record.value for record in log.read()] == [b"a", b"b", b"c"]


class _Item(Pending):
    pass


def test_an_append_inside_a_group_commit_is_refused_and_the_group_is_committed() -> None:
    refused: list[Exception] = []

    def commit(items: list[Any]) -> None:
        try:
            group.submit(_Item())
        except ReentrantCallError as error:
            refused.append(error)
        for item in items:
            item.result = 7

    group = GroupCommit(commit, ManualClock())
    item = _Item()
    for _ in range(2):
        item = _Item()
        group.submit(item)
    assert (item.result, len(refused)) == (7, 2)
    assert (group.is_led, group.waiting_count) == (False, 0)


def test_an_append_by_the_owner_of_the_lock_joins_no_group() -> None:
    led: list[list[Any]] = []
    lock = OwnedLock()
    group = GroupCommit(led.append, ManualClock(), lock)
    with lock, pytest.raises(ReentrantCallError):
        group.submit(_Item())
    assert (led, group.is_led) == ([], False)


# --- a producer -------------------------------------------------------------------------------------------------------


def test_records_sent_inside_a_send_are_taken_over_in_order() -> None:
    gathering = Gathering(linger_ms=60_000)
    gathering.append(b"before")
    available = gathering.pool.available
    with gathering.queue().lock:
        deliveries = [gathering.append(b"inner %d" % number) for number in range(3)]
        assert gathering.pool.available < available
        assert len(gathering.accumulator.incomplete) == 4
    gathering.append(b"after")  # takes them over, after itself
    gathering.clock.advance(60_000)
    taken = gathering.take()
    assert [value for batch in taken for value in values_of(batch)][:4] == [
        b"before", b"after", b"inner 0", b"inner 1",
    ]  # fmt: skip
    assert all(delivery is not None for delivery in deliveries)
    for batch in taken:
        batch.succeed(0)
        gathering.accumulator.release(batch)
    assert gathering.pool.available == gathering.pool.total_bytes


def test_a_record_sent_inside_a_send_without_memory_fails_at_once() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=32_768)
    with gathering.queue().lock:
        gathering.append(b"x" * 32_000)
        with pytest.raises(BufferExhaustedError):
            gathering.append(b"y" * 32_000, timeout=3600)
    assert len(gathering.accumulator.incomplete) == 1


def test_a_record_sent_inside_a_write_never_waits_for_memory() -> None:
    gathering = Gathering(linger_ms=60_000, buffer_memory=32_768)
    gathering.append(b"x" * 32_000)
    with gathering.accumulator.writing.entered(), pytest.raises(BufferExhaustedError):
        gathering.append(b"y" * 32_000, timeout=3600)


@pytest.mark.parametrize("inside", ["appending", "writing"])
def test_a_wait_for_records_inside_a_send_is_refused(tmp_path: Path, inside: str) -> None:
    with kstore.open(tmp_path, durability="os") as store:
        store.topic("t")
        with store.producer(linger_ms=60_000) as producer:
            delivery = producer.send("t", b"1")
            presence: Presence = getattr(producer._outbox.accumulator, inside)
            with presence.entered():
                for call in (producer.flush, delivery.result):
                    with pytest.raises(ReentrantCallError):
                        call()
            assert delivery.result().offset == 0


def test_a_queue_refuses_a_put_inside_its_own(tmp_path: Path) -> None:
    with kstore.open(tmp_path) as store:
        queue = store.queue("jobs")
        with writer_of(store.log("jobs")).turn.lock, pytest.raises(ReentrantCallError):
            queue.put(b"inner")
        queue.put(b"outer")
        assert queue.get(block=False).value == b"outer"


PUTS: dict[str, Callable[[kstore.Queue], object]] = {
    "put": lambda queue: queue.put(b"inner"),
    "put with a delay": lambda queue: queue.put(b"inner", delay=1),
    "put_many": lambda queue: queue.put_many([b"inner"] * 2),
}


@pytest.mark.parametrize("name", PUTS)
def test_a_put_inside_another_call_of_the_queue_is_refused_before_the_item_is_in_the_log(
    tmp_path: Path, name: str
) -> None:
    with kstore.open(tmp_path) as store:
        queue = store.queue("jobs")
        with core_of(queue).lock, pytest.raises(ReentrantCallError):
            PUTS[name](queue)
        assert store.log("jobs").end_offset == 0
        assert queue.put(b"outer") == 0


# --- real programs ----------------------------------------------------------------------------------------------------

PROGRAM = """
import faulthandler, gc, kstore, logging, signal, sys
faulthandler.dump_traceback_later(200, exit=True)
store = kstore.open(sys.argv[1], durability=sys.argv[2]); store.topic("t", partitions=1); store.topic("u", partitions=1)
producer, log = store.producer(linger_ms=0, batch_size=2000), store.log("u")
sent = appended = refused = 0
is_on = True
def inner_send(*_):
    global sent
    if is_on: producer.send("t", b"inner"); sent += 1
def inner_append(*_):
    global appended, refused
    if not is_on: return
    try: log.append(b"inner"); appended += 1
    except kstore.ReentrantCallError: refused += 1
def begin_signals(): signal.setitimer(signal.ITIMER_REAL, 0.0004, 0.0004)
class Sends:
    def __init__(self): self.me = self
    def __del__(self): inner_send()
class Appends:
    def __init__(self): self.me = self
    def __del__(self): inner_append()
class Logs:
    def __init__(self): self.me = self
    def __del__(self): logging.getLogger("app").warning("unclosed")
class Handler(logging.Handler):
    def emit(self, record): inner_send()
logging.getLogger().addHandler(Handler())
Garbage = object
%s
for number in range(int(sys.argv[3])):
    producer.send("t", b"%%d" %% number, headers=[("h", b"1")]); Garbage()
    assert log.append(b"%%d" %% number) >= number; Garbage()
    if number %% 50 == 0: log.append_many([b"many"] * 3); log.flush(); producer.flush()
signal.setitimer(signal.ITIMER_REAL, 0)
Garbage = object; gc.collect(); is_on = False
producer.close()
outer = int(sys.argv[3])
records = [record.value for record in store.log("t").read()]
assert len(records) == outer + sent, (len(records), outer, sent)
assert [one for one in records if one != b"inner"] == [b"%%d" %% number for number in range(outer)]
records = [record.value for record in log.read()]
assert records.count(b"inner") == appended, (records.count(b"inner"), appended, refused)
assert [one for one in records if one not in (b"inner", b"many")] == [b"%%d" %% number for number in range(outer)]
store.close()
print(sent, appended, refused)
"""
SITUATIONS = {
    "finalizers that send": "gc.set_threshold(1); Garbage = Sends",
    "finalizers that append": "gc.set_threshold(1); Garbage = Appends",
    "finalizers that log": "gc.set_threshold(1); Garbage = Logs",
    "a signal handler that sends": "signal.signal(signal.SIGALRM, inner_send); begin_signals()",
    "a signal handler that appends": "signal.signal(signal.SIGALRM, inner_append); begin_signals()",
}


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.sampled(4)
@pytest.mark.promise("reentrant")
def test_a_program_whose_calls_are_interrupted_by_its_own_ends_with_every_record(
    tmp_path: Path, name: str, durability: str
) -> None:
    program = textwrap.dedent(PROGRAM) % SITUATIONS[name]
    command = [sys.executable, "-c", program, str(tmp_path / "store"), durability, "300"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    sent, appended, refused = map(int, ran.stdout.split())
    assert sent or appended or refused


OF_A_STORE = """
import faulthandler, gc, kstore, signal, sys
faulthandler.dump_traceback_later(200, exit=True)
store, count = kstore.open(sys.argv[1], durability=sys.argv[2]), int(sys.argv[4])
for topic in "tuv":
    store.topic(topic, partitions=2)
producer = store.producer(transactional_id="x", linger_ms=0)
queue, consumer, log = store.queue("jobs"), store.consumer("t", group="g"), store.log("v", 0)
log.append(b"first")
(batch,) = (bytes(one.data) for one in log.fetch(0).batches())
done, refused = dict.fromkeys(["put", "append_batches", "commit", "describe"], 0), 0
is_on, is_inside = True, False
def inner(*_):
    global is_inside, refused
    if is_inside or not is_on: return
    is_inside = True
    for name, call in (
        ("put", lambda: queue.put(b"inner")),
        ("append_batches", lambda: log.append_batches(batch)),
        ("commit", consumer.commit),
        ("describe", lambda: store.describe_topic("t")),
    ):
        try: call(); done[name] += 1
        except kstore.ReentrantCallError: refused += 1
    is_inside = False
    if sys.argv[3] == "signals": begin_signal()
def begin_signal(): signal.setitimer(signal.ITIMER_REAL, 0.001)  # not at intervals: calls go on, however slow it is
class Finalized:
    def __init__(self): self.me = self
    def __del__(self): inner()
Garbage = object
if sys.argv[3] == "signals":
    signal.signal(signal.SIGALRM, inner); begin_signal()
else:
    gc.set_threshold(1); Garbage = Finalized
for number in range(count):
    with producer.transaction():
        for topic in "tu":
            producer.send(topic, b"%d" % number, partition=number % 2); Garbage()
    queue.put(b"outer"); Garbage()
    job = queue.get(); Garbage()
    job.ack()
    consumer.poll(); Garbage()
    consumer.commit()
    log.append_batches(batch)
is_on = False; signal.setitimer(signal.ITIMER_REAL, 0)
Garbage = object; gc.collect()
for topic in "tu":
    logs = [store.log(topic, partition) for partition in range(2)]
    values = [int(one.value) for each in logs for one in each.read(isolation_level="read_committed")]
    assert sorted(values) == list(range(count)), topic
assert queue.qsize() == done["put"], (queue.qsize(), done)
assert log.end_offset == 1 + count + done["append_batches"], (log.end_offset, done)
producer.close(); consumer.close(); store.close()
print(sum(done.values()), refused)
"""


@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.parametrize("way", ["signals", "finalizers"])
@pytest.mark.sampled(1, keep=("signals-os",))
@pytest.mark.promise("reentrant")
def test_transactions_queues_and_groups_whose_calls_are_interrupted_by_others_end_whole(
    tmp_path: Path, way: str, durability: str, tried: Callable[[str, int], None]
) -> None:
    command = [sys.executable, "-c", OF_A_STORE, str(tmp_path / "store"), durability, way, "100"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    done, _ = map(int, ran.stdout.split())
    assert done > 10
    tried("faults", done)
