"""Decoders for single keys and values: the choices of ``--key-decoder-class`` and ``--value-decoder-class``."""

from __future__ import annotations

from collections.abc import Callable

from kstore.cli.decoders import Decoded
from kstore.messages.primitives import MessageError
from kstore.messages.schema import Value
from kstore.record._codec import Record, java_string

# Where Kafka's decoders are, and where they were up to Kafka 3.
PACKAGES = ("org.apache.kafka.tools.api.", "kafka.serializer.")
DEFAULT_CLASS = "org.apache.kafka.tools.api.StringDecoder"


class PlainDecoder:
    """Decodes key and value separately."""

    def __init__(self, key: Callable[[bytes], Value], value: Callable[[bytes], Value]) -> None:
        self._key = key
        self._value = value

    @property
    def is_text(self) -> bool:
        """Whether keys and values are shown as the text that they are."""
        return self._key is java_string and self._value is java_string

    def __call__(self, record: Record) -> Decoded:
        """Raises MessageError for bytes that do not fit the chosen type."""
        key, value = record.key, record.value
        return Decoded(key=None if key is None else self._key(key), value=None if value is None else self._value(value))


def bytes_decoder(class_name: str) -> Callable[[bytes], Value] | None:
    """The decoder for a class by its full or short name, None for a class that kstore does not know."""
    for package in PACKAGES:
        class_name = class_name.removeprefix(package)
    return BYTES_DECODERS.get(class_name)


def _number(data: bytes, size: int) -> Value:
    """The number in the first bytes, as Kafka's decoders read it: what follows them is ignored."""
    if len(data) < size:
        raise MessageError(f"{len(data)} bytes, expected the {size} of the decoder's number")
    return int.from_bytes(data[:size], "big", signed=True)


BYTES_DECODERS: dict[str, Callable[[bytes], Value]] = {
    "StringDecoder": java_string,
    "LongDecoder": lambda data: _number(data, 8),
    "IntegerDecoder": lambda data: _number(data, 4),
    # Kafka prints the identity of a Java array here, which says nothing.
    "DefaultDecoder": bytes.hex,
}
