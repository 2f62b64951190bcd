"""A record for comparison in interop tests, from any reader: kstore, a Kafka consumer, or its writer."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """Everything a consumer sees of one record; ``timestamp`` in ms since the epoch."""

    offset: int
    timestamp: int
    timestamp_type: str
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Consumed(NamedTuple):
    """A partition as a consumer reads it: first offset, end offset (exclusive), and the records between."""

    begin: int
    end: int
    rows: list[Row]


class _RecordLike(Protocol):
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def timestamp_type(self) -> str: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


def rows_of(records: Iterable[_RecordLike]) -> list[Row]:
    """The rows of kstore's records."""
    return [Row(r.offset, r.timestamp, r.timestamp_type, r.leader_epoch, r.key, r.value, r.headers) for r in records]


def read_consumed(path: Path) -> Consumed:
    """What Client.java wrote to ``path``."""
    with path.open(encoding="utf-8") as lines:
        border = json.loads(next(lines))
        rows = [_row(json.loads(line)) for line in lines]
    return Consumed(border["begin"], border["end"], rows)


def _row(line: dict[str, object]) -> Row:
    headers, epoch = line.pop("headers"), line.pop("epoch")
    key, value = _bytes(line.pop("key")), _bytes(line.pop("value"))
    assert isinstance(headers, list)
    pairs = tuple(((_bytes(name) or b"").decode(), _bytes(content)) for name, content in headers)
    line["leader_epoch"] = -1 if epoch is None else epoch
    return Row(**line, key=key, value=value, headers=pairs)  # type: ignore[arg-type]


def _bytes(text: object) -> bytes | None:
    return None if text is None else base64.b64decode(str(text))
