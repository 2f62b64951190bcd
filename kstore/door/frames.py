"""Frames: sizes and headers of requests and responses. Pure: bytes in, requests out. No I/O here.

frame       int32 size of what follows, then header and body
request     int16 api, int16 version, int32 correlation id, nullable string client id (int16 length);
            in flexible versions tagged fields; then the body
response    int32 correlation id; in flexible versions tagged fields, but never for ApiVersions; then the body
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from kstore.door.call import Message
from kstore.messages import schema
from kstore.messages._wire import MessageReader
from kstore.messages.schema import load_messages

SIZE = struct.Struct(">i")
HEAD = struct.Struct(">hhi")
RESPONSE_HEAD = struct.Struct(">ii")
API_VERSIONS = 18
# What a response has at most: a broker's fetch.max.bytes, whatever a client asks for.
RESPONSE_BYTES_MAX = 57_671_680


class Head(NamedTuple):
    """The first bytes of a request, which decide what else is read."""

    api: int
    version: int
    correlation_id: int


class Request(NamedTuple):
    """One request; ``body`` has the fields of all versions, and ``element_count`` elements in its arrays."""

    head: Head
    client_id: str
    body: Message
    element_count: int


class Wire(NamedTuple):
    """The two messages of an API."""

    request: schema.Message
    response: schema.Message


@cache
def wire_of(name: str) -> Wire:
    messages = load_messages("wire")
    return Wire(messages[f"{name}Request"], messages[f"{name}Response"])


def read_head(data: bytes | memoryview) -> Head:
    return Head(*HEAD.unpack_from(data))


def read_request(wire: Wire, data: bytes | memoryview, *, elements_max: int) -> Request:
    """The request of a whole frame, without its size. Views in its body are of ``data``.

    Bytes after the request are left alone, as a broker does: librdkafka's Metadata of version 12 has some.

    Raises: MessageError for bytes that are not a request, TooManyElementsError for more than ``elements_max`` elements.
    """
    head = read_head(data)
    reader = MessageReader(data, elements_max=elements_max, text_errors="replace")
    reader.take(HEAD.size)
    client_id = reader.string(is_flexible=False)
    if head.version in wire.request.flexible:
        reader.skip_tagged()
    body: Message = wire.request.read(reader, head.version)
    return Request(head, client_id or "", body, elements_max - (reader.elements_left or 0))


def response_header(wire: Wire, head: Head, body_size: int) -> bytes:
    """Size and header of the response to ``head``, with ``body_size`` bytes after them."""
    tagged = b"\0" if head.version in wire.response.flexible and head.api != API_VERSIONS else b""
    return RESPONSE_HEAD.pack(4 + len(tagged) + body_size, head.correlation_id) + tagged


def response_bytes(wire: Wire, head: Head, message: Message) -> bytes:
    """The whole frame of a response. Raises: ValueError, struct.error for a message that it cannot hold."""
    body = wire.response.write(message, head.version)
    return response_header(wire, head, len(body)) + body
