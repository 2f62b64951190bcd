"""The parts of a consumer. The consumer of an event loop has the same parts, with its own waiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kstore.consumer.commits import Commits
from kstore.consumer.config import ConsumerConfig, next_client_id
from kstore.consumer.consumer_metrics import ConsumerCounters
from kstore.consumer.deserializers import Deserializers
from kstore.consumer.next_records import NextRecords
from kstore.consumer.of_store import StoreGroups
from kstore.consumer.place import GroupPlace
from kstore.consumer.reading import Positions, Reading
from kstore.consumer.sharing import Sharing
from kstore.consumer.use import SoleUse
from kstore.consumer.waiting import LogWaiter
from kstore.errors import ConfigError
from kstore.logs.topics import Topics
from kstore.messages.primitives import check_string


class ConsumerParts(NamedTuple):
    """Each part has one job. None refers to the consumer, so that an unused consumer can be collected."""

    config: ConsumerConfig
    client_id: str
    topics: Topics
    use: SoleUse
    counters: ConsumerCounters
    waiter: LogWaiter
    deserializers: Deserializers
    reading: Reading
    positions: Positions
    place: GroupPlace
    commits: Commits
    sharing: Sharing
    next: NextRecords


def consumer_parts(
    topics: Topics,
    groups: StoreGroups,
    group: str | None,
    settings: Mapping[str, Any],
    *,
    waiter: LogWaiter | None = None,
) -> ConsumerParts:
    """Makes the parts; nothing runs yet. ``settings`` are those of ``ConsumerConfig``; the default waiter is for
    threads.

    Raises: ConfigError.
    """
    config = ConsumerConfig.from_settings(**settings)
    if group is not None:
        check_string("group", group)
    client_id = next_client_id(config, group)
    if config.enable_auto_commit and group is None:
        raise ConfigError("enable_auto_commit is True, expected False without a group")
    clock = topics.clock
    deserializers = Deserializers(config.key_deserializer, config.value_deserializer)
    counters = ConsumerCounters(clock.monotonic())
    waiter = LogWaiter(clock) if waiter is None else waiter
    use = SoleUse(client_id)
    reading = Reading(topics, groups, config, group)
    positions = Positions(reading, waiter, use)
    place = GroupPlace(group, client_id, config, topics, groups, waiter)
    commits = Commits(groups, place, reading, positions, config, counters, clock, client_id=client_id)
    sharing = Sharing(topics, place, reading, positions, commits, waiter, config, counters)
    following = NextRecords(
        use, reading, positions, place, commits, sharing, waiter, deserializers, config, counters, clock
    )
    return ConsumerParts(
        config,
        client_id,
        topics,
        use,
        counters,
        waiter,
        deserializers,
        reading,
        positions,
        place,
        commits,
        sharing,
        following,
    )
