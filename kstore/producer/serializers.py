"""Serializers: convert a record's key and value to bytes."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kstore.errors import SerializationError
from kstore.producer.records import Headers

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger(__name__)

HeaderList: TypeAlias = "list[tuple[str | Buffer, Buffer | None]]"
_Serialize: TypeAlias = "Callable[[str, HeaderList, Any], Buffer | None]"


class Serializer(Protocol):
    """A serializer that is not a plain function. It may also have ``close()``. Many threads use it at once."""

    def serialize(self, topic: str, headers: HeaderList, data: Any) -> Buffer | None:
        """The bytes of ``data``, which may be None; headers may be added to ``headers``."""
        ...


class Serializers:
    """The serializers of keys and values, from the settings ``key_serializer`` and ``value_serializer``.

    Each is a name ("bytes", "str", "json"), an object with ``serialize``, or a function of the data alone. Names and
    functions are not called for None, which means a record without a key or value.
    """

    def __init__(self, key_serializer: Any = "bytes", value_serializer: Any = "bytes") -> None:
        self._settings = {"key_serializer": key_serializer, "value_serializer": value_serializer}
        self._key = _function_of(key_serializer)
        self._value = _function_of(value_serializer)

    @property
    def is_plain(self) -> bool:
        """Whether keys and values are bytes already."""
        return all(serializer == "bytes" for serializer in self._settings.values())

    def serialize(
        self, topic: str, key: Any, value: Any, headers: Headers | None = ()
    ) -> tuple[bytes | None, bytes | None, tuple[tuple[str | Buffer, Buffer | None], ...]]:
        """Key, value and headers of a record as sent; later additions to the headers are ignored.

        Raises: SerializationError.
        """
        given: HeaderList = list(headers or ())
        key_bytes = self._bytes_of("key", self._key, topic, given, key)
        value_bytes = self._bytes_of("value", self._value, topic, given, value)
        return key_bytes, value_bytes, tuple(given)

    def close(self) -> None:
        """Closes those that have ``close``; failures are logged."""
        for name, serializer in self._settings.items():
            try:
                close = getattr(serializer, "close", None)
                if close is not None:
                    close()
            except Exception:
                logger.exception("%s failed in close", name)

    def _bytes_of(self, what: str, serialize: _Serialize, topic: str, headers: HeaderList, data: Any) -> bytes | None:
        setting = f"{what}_serializer"
        serializer = self._settings[setting]
        name = repr(serializer) if isinstance(serializer, str) else type(serializer).__name__
        try:
            made = serialize(topic, headers, data)
        except Exception as error:
            advice = f"; give bytes, or set {setting}='str' or 'json'" if serializer == "bytes" else ""
            raise SerializationError(
                f"the {what} for topic {topic}, a {type(data).__name__}, cannot be serialized by {setting}, {name}: "
                f"{type(error).__name__}{advice}"
            ) from error
        try:
            return made if made is None or type(made) is bytes else memoryview(made).tobytes()
        except TypeError:
            raise SerializationError(
                f"{setting}, {name}, made a {type(made).__name__} of the {what} for topic {topic}, "
                "expected bytes or None"
            ) from None


def _from_str(data: Any) -> bytes:
    if not isinstance(data, str):
        raise TypeError(f"a {type(data).__name__}, expected a str")
    return data.encode()


def _from_json(data: Any) -> bytes:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _from_bytes(data: Any) -> bytes:
    return data if type(data) is bytes else memoryview(data).tobytes()


_FUNCTIONS: dict[str, Callable[[Any], Buffer | None]] = {"bytes": _from_bytes, "str": _from_str, "json": _from_json}


def _function_of(setting: Any) -> _Serialize:
    if hasattr(setting, "serialize"):
        serialize: _Serialize = setting.serialize
        return serialize
    function = _FUNCTIONS[setting] if isinstance(setting, str) else setting

    def plain(topic: str, headers: HeaderList, data: Any) -> Buffer | None:
        return None if data is None else function(data)

    return plain
