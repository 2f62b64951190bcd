"""What goes into a producer and what comes back: a record, and where it is. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kstore.types import NO_OFFSET, NO_TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["NO_PARTITION", "NO_SIZE", "Callback", "Headers", "ProducerRecord", "RecordMetadata", "unknown_metadata"]

NO_PARTITION = -1
# Of a key or a value that is None.
NO_SIZE = -1

Headers: TypeAlias = "Iterable[tuple[str, Buffer | None]]"


class RecordMetadata(NamedTuple):
    """Where a record is, and how large its key and value became. -1 stands for what is not known, or not there.

    ``timestamp`` is the record's own, or that of the append where the log stamps its records.
    """

    topic: str
    partition: int
    offset: int = NO_OFFSET
    timestamp: int = NO_TIMESTAMP
    serialized_key_size: int = NO_SIZE
    serialized_value_size: int = NO_SIZE

    @property
    def has_offset(self) -> bool:
        return self.offset != NO_OFFSET

    @property
    def has_timestamp(self) -> bool:
        return self.timestamp != NO_TIMESTAMP

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}@{self.offset}"


# What is called with where a record is, or with what is known of it and why it failed.
Callback: TypeAlias = Callable[[RecordMetadata, Exception | None], object]


def unknown_metadata(topic: str, partition: int | None = None) -> RecordMetadata:
    """Of a record that failed: its topic, and its partition if that was known."""
    return RecordMetadata(topic, NO_PARTITION if partition is None else partition)


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """One record as it is handed to a producer, and as interceptors see and replace it (``dataclasses.replace``).

    Args:
        topic: its name.
        value, key: what the serializers take; None for none.
        headers: pairs of a str and bytes or None; kept as a tuple.
        timestamp: ms since the epoch, None for the time at which it is sent.
        partition: a number, None to leave it to the partitioner.

    Raises: TypeError, ValueError.
    """

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise TypeError(f"a topic of type {type(self.topic).__name__}, expected a str")
        if not self.topic:
            raise ValueError("an empty topic, expected a name")
        object.__setattr__(self, "headers", tuple(self.headers or ()))
        for name in ("timestamp", "partition"):
            number = getattr(self, name)
            if number is None:
                continue
            if index(number) < 0:
                raise ValueError(f"{name} {number}, expected None or at least 0")
            object.__setattr__(self, name, index(number))
