"""Deserializers: convert the bytes of a record's key and value."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from kstore.errors import RecordDeserializationError
from kstore.files.paths import TopicPartition
from kstore.record._codec import ConsumerRecord

Headers: TypeAlias = "tuple[tuple[str, bytes | None], ...]"
_Deserialize: TypeAlias = "Callable[[str, Headers, bytes | None], Any]"


class Deserializer(Protocol):
    """A deserializer that is not a plain function. It may also have ``close()``."""

    def deserialize(self, topic: str, headers: Headers, data: bytes | None) -> Any:
        """The value of ``data``, which may be None."""
        ...


DESERIALIZERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": lambda data: data,
    "str": lambda data: data.decode(),
    "json": json.loads,
}


class Deserializers:
    """The deserializers of keys and values: each a name, an object with ``deserialize``, or a function of bytes.

    Names and functions are not called for None: None stays None.
    """

    def __init__(self, key_deserializer: Any = "bytes", value_deserializer: Any = "bytes") -> None:
        self._settings = (key_deserializer, value_deserializer)
        self._key = _function_of(key_deserializer)
        self._value = _function_of(value_deserializer)

    @property
    def is_plain(self) -> bool:
        """Whether keys and values stay bytes."""
        return self._settings == ("bytes", "bytes")

    def records(
        self, owner: TopicPartition, records: Iterable[ConsumerRecord]
    ) -> tuple[list[ConsumerRecord], RecordDeserializationError | None]:
        """The deserialized ``records``, up to the first that fails, and its error."""
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
            made.append(record.deserialized(made_key, made_value))
        return made, None

    def close(self) -> None:
        """Closes those that have ``close``; their exceptions are ignored."""
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
