"""The settings of a queue, typed and checked.

A setting is a field of ``QueueConfig`` and a row of ``RULES``; ``queue_settings()`` gives both as one table.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from kstore.clock import Clock
from kstore.setting_rules import COUNT, MIB, SIZE, Rule, Setting, changed, parse_fields, resolved, table, within
from kstore.types import DURABILITIES, INT32_MAX

# A year: a larger number is a mistake.
SECONDS_MAX = 366 * 86_400.0


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """A queue's settings. Immutable; every value is checked. Raises ConfigError for an invalid value."""

    dead_letters: str = ""
    durability: str = ""
    lease_seconds: float = 30.0
    max_deliveries: int = 20
    maxsize: int = 0
    note_deliveries: bool = False
    segment_bytes: int = 16 * MIB

    def __repr__(self) -> str:
        return changed(self)

    def __post_init__(self) -> None:
        parse_fields(self, RULES)

    @classmethod
    def from_settings(cls, **settings: Any) -> QueueConfig:
        """Raises ConfigError for a setting that does not exist, with the nearest one that does."""
        return cls(**resolved(settings, RULES, " of a queue", HINTS))


def queue_settings() -> tuple[Setting, ...]:
    """Every setting of a queue, in the order of ``QueueConfig``."""
    return table(QueueConfig(), RULES)


def seconds_of(name: str, value: object) -> float:
    """Raises: TypeError, ValueError for anything but a number of seconds from 0 to ``SECONDS_MAX``.

    ``name`` is the argument's, for the error."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r:.80}, expected seconds as a number")
    if not 0 <= value <= SECONDS_MAX:
        raise ValueError(f"{name} is {value}, expected 0 to {SECONDS_MAX:.0f} seconds")
    return float(value)


def check_timeout(timeout: float | None) -> None:
    """Raises: TypeError, ValueError, whether or not the call would have to wait."""
    if timeout is None:
        return
    if not isinstance(timeout, int | float):
        raise TypeError(f"timeout is {timeout!r:.80}, expected seconds, or None")
    if not timeout >= 0:
        raise ValueError(f"timeout is {timeout}, expected a number that is not negative")


def deadline_of(timeout: float | None, clock: Clock) -> float | None:
    """Raises: as ``check_timeout``."""
    check_timeout(timeout)
    return None if timeout is None else clock.monotonic() + timeout


# --- how values are read ----------------------------------------------------------------------------------------------


def _name(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _durability(value: object) -> str:
    if value not in ("", *DURABILITIES):
        raise ValueError
    return str(value)


def _lease(value: object) -> float:
    seconds = seconds_of("a lease", value)
    if not seconds:
        raise ValueError
    return seconds


# In the order of QueueConfig.
RULES: dict[str, Rule] = {
    "dead_letters": Rule(
        "", _name, "the name of a topic",
        "The queue for items that were delivered too many times; '' means <name>.dead.",
    ),
    "durability": Rule(
        "", _durability, "'sync', 'interval', 'os', or ''",
        "The durability of the queue's logs, fixed at creation; '' means the store's.",
    ),
    "lease_seconds": Rule(
        "", _lease, f"seconds, above 0 and up to {SECONDS_MAX:.0f}",
        "How long a lease lasts: its holder alone has the item.",
    ),
    "max_deliveries": within(
        0, INT32_MAX, COUNT, "",
        "An item delivered this many times without an ack becomes a dead letter; 0 means never.",
    ),
    "maxsize": within(0, INT32_MAX, COUNT, "", "A put waits while this many items wait; 0 means no limit."),
    "note_deliveries": Rule(
        "", _bool, "True or False",
        "Each delivery is recorded before it is made, so that one that kills its process counts too.",
    ),
    "segment_bytes": within(
        1 << 14, INT32_MAX, SIZE, "segment.bytes", "Space is freed in units of this size; fixed at creation."
    ),
}  # fmt: skip
assert tuple(RULES) == tuple(row.name for row in fields(QueueConfig))

# What to use for settings of other queues.
HINTS = {
    "auto_commit": "an item is done when its job is acked: with queue.get() as job",
    "dead_letter_queue": "use dead_letters=",
    "lease_ms": "use lease_seconds=",
    "lease_timeout": "use lease_seconds=",
    "max_length": "use maxsize=",
    "max_receive_count": "use max_deliveries=",
    "max_retries": "use max_deliveries=",
    "max_size": "use maxsize=",
    "retries": "use max_deliveries=",
    "timeout": "give get its timeout=, or use lease_seconds=",
    "visibility_timeout": "use lease_seconds=",
}
