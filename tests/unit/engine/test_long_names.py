"""Names in length-prefixed fields: one that does not fit raises a typed error before anything is done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition
from kstore.messages.primitives import STRING_BYTES_MAX
from kstore.store import Store, coordinator_of
from kstore.transactions.group_records import OffsetAndMetadata
from tests.support.fakes.fake_clock import ManualClock

HERE = TopicPartition("orders", 0)
LONGEST = "n" * STRING_BYTES_MAX


@pytest.fixture(params=[False, True], ids=["alone", "shared"])
def shared(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def store(shared: bool, tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", clock=ManualClock(), background=False, durability="os", shared=shared) as opened:
        opened.create_topic("orders")
        yield opened


def transactional(store: Store, group: str) -> None:
    with store.producer(transactional_id="t") as producer, producer.transaction():
        producer.send_offsets({HERE: 1}, group)


def commits(store: Store, metadata: str) -> None:
    with store.consumer(group="g") as consumer:
        consumer.assign([HERE])
        consumer.commit({HERE: OffsetAndMetadata(0, metadata=metadata)})


USES: dict[str, Callable[[Store, str], Any]] = {
    "member": lambda store, name: store.consumer("orders", group=name),
    "group": lambda store, name: store.consumer(group=name),
    "coordinator": lambda store, name: coordinator_of(store).commit_offsets(name, {HERE: 1}),
    "committed topic": lambda store, name: coordinator_of(store).commit_offsets("g", {TopicPartition(name, 0): 1}),
    "metadata": commits,
    "offsets of a transaction": transactional,
    "transactional id": lambda store, name: store.producer(transactional_id=name),
    "consumer's client id": lambda store, name: store.consumer("orders", group="g", client_id=name),
    "producer's client id": lambda store, name: store.producer(client_id=name),
    "topic": lambda store, name: store.create_topic(name),
    "queue": lambda store, name: store.queue(name),
}
ALONE = ("offsets of a transaction", "transactional id")


@pytest.mark.parametrize(
    "name",
    [LONGEST + "n", "\u00e9" * (STRING_BYTES_MAX // 2 + 1), "a\ud800", 3],
    ids=["long", "bytes", "surrogate", "int"],
)
@pytest.mark.parametrize(
    ("use", "shared"), [(use, shared) for use in USES for shared in (False, True) if not (use in ALONE and shared)]
)
@pytest.mark.sampled(24)
def test_a_name_that_does_not_fit_its_field_is_refused_before_its_first_use(
    store: Store, shared: bool, use: str, name: Any, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError):
        USES[use](store, name)
    if use not in ("coordinator", "committed topic", "metadata", "offsets of a transaction"):
        assert sorted(tmp_path.rglob("*")) == before


def test_the_longest_names_that_fit_are_taken(store: Store, shared: bool) -> None:
    with store.consumer("orders", group=LONGEST, client_id=LONGEST) as consumer:
        consumer.poll()
        consumer.commit({HERE: 0})
        assert consumer.committed(HERE)[HERE].offset == 0
    if not shared:
        with store.producer(transactional_id=LONGEST) as producer, producer.transaction():
            producer.send("orders", b"v")
            producer.send_offsets({HERE: 1}, LONGEST)


def test_a_queue_whose_dead_letters_could_have_no_name_is_refused(store: Store) -> None:
    """The journal of its dead letters has the longest name; an error at the first dead letter would be too late."""
    with pytest.raises(ConfigError, match=r"topic name '__queue_n+\.dead'"):
        store.queue("n" * 237)
    assert store.topics() == ["orders"]
    queue = store.queue("n" * 236, max_deliveries=1)
    queue.put(b"v")
    queue.get().nack()
    assert queue.dead_letters.get_nowait().value == b"v"
    store.queue("n" * 241, max_deliveries=0).put(b"v")
