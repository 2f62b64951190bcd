"""Deserializers: what is made of the bytes of a record's key and value, and the record that holds what they made."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

from kstore.errors import RecordDeserializationError
from kstore.files.paths import TopicPartition
from kstore.record._codec import Record
from kstore.types import TimestampType

__all__ = ["DESERIALIZERS", "ConsumerRecord", "Deserializer", "Deserializers"]

Headers: TypeAlias = "tuple[tuple[str, bytes | None], ...]"
_Deserialize: TypeAlias = "Callable[[str, Headers, bytes | None], Any]"


class ConsumerRecord(NamedTuple):
    """A record as deserializers have made it: fields as in ``Record``, and where it comes from."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: Any
    value: Any
    headers: Headers
    leader_epoch: int


class Deserializer(Protocol):
    """What a deserializer is that is no plain function. It may have ``close()`` too."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """What ``data``, which may be None, stands for."""
        ...


DESERIALIZERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": lambda data: data,
    "str": lambda data: data.decode(),
    "json": json.loads,
}


class Deserializers:
    """Those of a consumer's keys and values: each a name, an object with ``deserialize``, or a function of bytes.

    For None names and functions are not asked: None stays None.
    """

    def __init__(self, key_deserializer: Any = "bytes", value_deserializer: Any = "bytes") -> None:
        self._settings = (key_deserializer, value_deserializer)
        self._key = _function_of(key_deserializer)
        self._value = _function_of(value_deserializer)

    @property
    def is_plain(self) -> bool:
        """Whether keys and values stay bytes, and records as they were read."""
        return self._settings == ("bytes", "bytes")

    def records(
        self, owner: TopicPartition, records: Iterable[Record]
    ) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
        """What is made of ``records``, up to the first of which nothing can be made; and what was wrong with that."""
        topic, partition = owner
        key, value = self._key, self._value
        made: list[ConsumerRecord] = []
        for record in records:
            what = "key"
            headers = record.headers
            try:
                made_key = key(topic, headers, record.key)
                what = "value"
                made_value = value(topic, headers, record.value)
            except Exception as error:
                failure = RecordDeserializationError(what, topic, partition, record.offset, type(error).__name__)
                failure.__cause__ = error
                return made, failure
            made.append(
                ConsumerRecord(
                    topic,
                    partition,
                    record.offset,
                    record.timestamp,
                    record.timestamp_type,
                    made_key,
                    made_value,
                    headers,
                    record.leader_epoch,
                )
            )
        return made, None

    def close(self) -> None:
        """Closes those that can be closed; what they raise is passed over."""
        for setting in self._settings:
            close = getattr(setting, "close", None)
            if close is not None:
                with suppress(Exception):
                    close()


def _function_of(setting: Any) -> _Deserialize:
    if hasattr(setting, "deserialize"):
        deserialize: _Deserialize = setting.deserialize
        return deserialize
    function = DESERIALIZERS[setting] if isinstance(setting, str) else setting

    def plain(topic: str, headers: Headers, data: bytes | None) -> Any:
        return None if data is None else function(data)

    return plain
