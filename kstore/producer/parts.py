"""The parts of a producer, also of the producer of an event loop."""

from __future__ import annotations

from typing import Any, NamedTuple

from kstore.clock import Clock
from kstore.files.lifetime import Lifetime
from kstore.logs.topics import Topics
from kstore.producer.config import ProducerConfig, next_client_id
from kstore.producer.metadata import TopicMetadata
from kstore.producer.outbox import Outbox
from kstore.producer.producer_metrics import ProducerCounters
from kstore.producer.slow_path import SlowPath
from kstore.producer.transactions import TransactionManager
from kstore.transactions.of_store import StoreCoordinator


class ProducerParts(NamedTuple):
    """Each part has one job, and none refers to the producer."""

    config: ProducerConfig
    client_id: str
    topics: Topics
    clock: Clock
    life: Lifetime
    counters: ProducerCounters
    metadata: TopicMetadata
    transactions: TransactionManager
    outbox: Outbox
    slow_path: SlowPath


def producer_parts(
    topics: Topics, coordinator: StoreCoordinator, *, is_threaded: bool = True, **settings: Any
) -> ProducerParts:
    """Makes the parts; nothing runs yet. ``settings`` are those of ``ProducerConfig``; ``is_threaded``: see ``Outbox``.

    Raises: ConfigError.
    """
    config = ProducerConfig.from_settings(**settings)
    client_id = next_client_id(config)
    clock = topics.clock
    life = Lifetime(f"the producer {client_id}")
    counters = ProducerCounters()
    # An exclusive store knows at once that a topic does not exist.
    is_block_time_given = "max_block_ms" in settings or "max.block.ms" in settings
    metadata = TopicMetadata(config, topics, waits=topics.shared or is_block_time_given)
    transactions = TransactionManager(config, coordinator.get, clock)
    outbox = Outbox(
        config, topics, metadata, transactions, counters, life, client_id=client_id, is_threaded=is_threaded
    )
    outbox.accumulator.is_transactional = outbox.accumulator.is_paused = config.transactional_id is not None
    slow_path = SlowPath(config, clock, metadata, transactions, outbox, counters, life, client_id=client_id)
    return ProducerParts(config, client_id, topics, clock, life, counters, metadata, transactions, outbox, slow_path)
