"""Decoders of record contents for ``kstore dump-log``: their interface, and a file for each kind."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kstore.messages.schema import Value
from kstore.record._codec import Record


class Decoded(NamedTuple):
    """A record's key and value as text (str) or as JSON data; None if there is nothing to print."""

    key: Value
    value: Value


class Decoder(Protocol):
    """Turns a record into what is printed of it. Raises MessageError where Kafka's tool gives up."""

    def __call__(self, record: Record) -> Decoded: ...
