"""The input and output of a producer: a record, and its position. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from kstore.files.paths import PARTITION_MAX
from kstore.rules.arguments import timestamp_ms
from kstore.types import NO_OFFSET, NO_TIMESTAMP

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_PARTITION = -1
# The size of a key or a value that is None.
NO_SIZE = -1

Headers: TypeAlias = "Iterable[tuple[str | Buffer, Buffer | None]]"
# What callers may give.
GivenHeaders: TypeAlias = "Mapping[str, Buffer | None] | Mapping[bytes, Buffer | None] | Headers"


class RecordMetadata(NamedTuple):
    """The position of a record, and the sizes of its serialized key and value. -1: unknown, or missing.

    ``timestamp`` is the record's own, or that of the append if the log stamps its records.
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


# Called with the position of a record, or with what is known about it and the error.
Callback: TypeAlias = Callable[[RecordMetadata, Exception | None], object]


def unknown_metadata(topic: str, partition: int | None = None) -> RecordMetadata:
    """The metadata of a failed record: its topic, and its partition if known and possible."""
    if partition is None or not 0 <= partition <= PARTITION_MAX:
        partition = NO_PARTITION
    return RecordMetadata(topic, partition)


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """One record as given to a producer, and as interceptors see and replace it (``dataclasses.replace``).

    Args:
        topic: its name.
        value, key: the input of the serializers, or None.
        timestamp: ms since the epoch or an aware datetime, None for the time of the send.
        headers: a mapping, or pairs, of str to bytes or None.
        partition: a number, None to let the partitioner choose.

    Raises: TypeError, ValueError.
    """

    topic: str
    value: Any = None
    key: Any = None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            headers: GivenHeaders = (),
            timestamp: int | datetime | None = None,
            partition: int | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise TypeError(f"a topic of type {type(self.topic).__name__}, expected a str")
        if not self.topic:
            raise ValueError("an empty topic, expected a name")
        object.__setattr__(self, "topic", str.__str__(self.topic))  # of an enum, perhaps
        headers = self.headers or ()
        object.__setattr__(self, "headers", tuple(headers.items() if isinstance(headers, Mapping) else headers))
        if self.timestamp is not None:
            object.__setattr__(self, "timestamp", timestamp_ms(self.timestamp))
        for name in ("timestamp", "partition"):
            number = getattr(self, name)
            if number is None:
                continue
            if not hasattr(number, "__index__"):
                raise TypeError(f"a {name} of type {type(number).__name__}, expected an int or None")
            if index(number) < 0:
                raise ValueError(f"{name} {number}, expected None or at least 0")
            object.__setattr__(self, name, index(number))
