"""Which partition of an internal topic holds a transactional id or a group: Kafka's rule. No I/O here.

partition = abs(hash) % count     hash: Java's String.hashCode; abs of the least int is 0 (Kafka: Utils.abs)
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "OFFSETS",
    "QUEUE_JOURNAL",
    "TRANSACTION_STATE",
    "InternalTopic",
    "is_internal",
    "java_hash",
    "partition_for",
]


class InternalTopic(NamedTuple):
    """A topic of the coordinator's own; ``partition_count`` is its initial number of partitions."""

    name: str
    partition_count: int


# One log: every transaction of a store ends in it, so that those that end at the same time share a sync. A broker uses
# the count that it finds.
TRANSACTION_STATE = InternalTopic("__transaction_state", 1)
# Kafka's default: a group is where a broker looks for it, even if the broker's own topic has the default.
OFFSETS = InternalTopic("__consumer_offsets", 50)

# kstore's own: the journal of a queue's items is in a topic of this prefix and the queue's name.
QUEUE_JOURNAL = "__queue_"

INTERNAL_TOPICS = frozenset({TRANSACTION_STATE.name, OFFSETS.name, "__share_group_state"})


def is_internal(topic: str) -> bool:
    """Whether ``topic`` is internal to Kafka or kstore."""
    return topic in INTERNAL_TOPICS or topic.startswith(QUEUE_JOURNAL)


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: over UTF-16 code units, in 32 signed bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (value * 31 + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_for(name: str, count: int) -> int:
    """The partition of ``count`` to which a transactional id or a group belongs."""
    hashed = java_hash(name)
    return 0 if hashed == -(1 << 31) else abs(hashed) % count
