"""``DoorConfig``: the settings of a door, parsed and checked."""

from __future__ import annotations

from dataclasses import dataclass

from kstore.setting_rules import COUNT, GIB, KIB, MIB, SIZE, TIME, Rule, changed, parse_fields, within

INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """The settings of a door; sizes in bytes, times in ms. Immutable and checked."""

    auto_create_partitions: int = 1
    connections_max: int = 512
    request_bytes_max: int = 100 * MIB
    other_request_bytes_max: int = MIB
    memory_max: int = 256 * MIB
    idle_ms: int = 600_000
    rebalance_delay_ms: int = 0
    offsets_retention_minutes: int = 0

    def __repr__(self) -> str:
        return changed(self)

    def __post_init__(self) -> None:
        parse_fields(self, DOOR_RULES)


DOOR_RULES: dict[str, Rule] = {
    "auto_create_partitions": within(
        0, 10_000, COUNT, "num.partitions", "The partitions of a topic that a client creates by its name; 0: never."
    ),
    "connections_max": within(1, 10_000, COUNT, "max.connections", "How many connections may be open."),
    "request_bytes_max": within(64 * KIB, INT32_MAX, SIZE, "socket.request.max.bytes", "The largest Produce request."),
    "other_request_bytes_max": within(16 * KIB, INT32_MAX, SIZE, "", "The largest request of any other kind."),
    "memory_max": within(
        MIB, 1024 * GIB, SIZE, "queued.max.request.bytes", "What the requests of all connections may take together."
    ),
    "idle_ms": within(
        1, 7 * 86_400_000, TIME, "connections.max.idle.ms", "After this time without a request a connection ends."
    ),
    "rebalance_delay_ms": within(
        0, 300_000, TIME, "group.initial.rebalance.delay.ms", "How long a new group waits for more members."
    ),
    "offsets_retention_minutes": within(
        0,
        INT32_MAX,
        COUNT,
        "offsets.retention.minutes",
        "After how long a group without members loses what it has committed; 0: never.",
    ),
}
