"""Which member of a group reads which partitions: Kafka's range and round-robin assignors. Pure functions over values.

    range         per topic: each member gets a run of partitions, the first ones one more
    round_robin   all partitions of all topics in order, one at a time to the members that want the topic

Members are taken in the given order, which is the order of their joining. A topic that no member wants is not assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from typing import TypeAlias

from kstore.files.paths import TopicPartition

# The members, each with its partitions, sorted.
Assignment: TypeAlias = dict[str, tuple[TopicPartition, ...]]
_Wanted: TypeAlias = Mapping[str, Sequence[str]]
_Partitions: TypeAlias = Mapping[str, Sequence[int]]


def assign(strategy: str, wanted: _Wanted, partitions: _Partitions) -> Assignment:
    """Shares the ``partitions`` of each topic among the members; ``wanted`` has the topics that each wants."""
    shares: dict[str, list[TopicPartition]] = {member: [] for member in wanted}
    _STRATEGIES[strategy](wanted, partitions, shares)
    return {member: tuple(sorted(share)) for member, share in shares.items()}


def _by_range(wanted: _Wanted, partitions: _Partitions, shares: dict[str, list[TopicPartition]]) -> None:
    for topic in sorted(partitions):
        takers = [member for member, topics in wanted.items() if topic in topics]
        if not takers:
            continue
        numbers = sorted(partitions[topic])
        each, more = divmod(len(numbers), len(takers))
        start = 0
        for place, member in enumerate(takers):
            stop = start + each + (place < more)
            shares[member] += [TopicPartition(topic, number) for number in numbers[start:stop]]
            start = stop


def _round_robin(wanted: _Wanted, partitions: _Partitions, shares: dict[str, list[TopicPartition]]) -> None:
    takers = cycle(wanted)
    for topic in sorted(partitions):
        if not any(topic in topics for topics in wanted.values()):
            continue
        for number in sorted(partitions[topic]):
            member = next(takers)
            while topic not in wanted[member]:
                member = next(takers)
            shares[member].append(TopicPartition(topic, number))


_STRATEGIES: dict[str, Callable[[_Wanted, _Partitions, dict[str, list[TopicPartition]]], None]] = {
    "range": _by_range,
    "round_robin": _round_robin,
}
STRATEGIES = tuple(_STRATEGIES)
