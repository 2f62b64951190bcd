"""Checks of a log's arguments, with errors that say what was found and what was expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import index
from typing import Any, TypeVar

from kstore.config import LogConfig
from kstore.errors import ConfigError, InvalidRecordError, InvalidTimestampError, RecordError
from kstore.types import LOG_APPEND_TIME, NO_TIMESTAMP

T = TypeVar("T")


def _time_window(config: LogConfig, now_ms: int) -> tuple[int, int]:
    lowest = max(now_ms - config.message_timestamp_before_max_ms, 0)
    return lowest, now_ms + config.message_timestamp_after_max_ms


def are_timely(least: int, greatest: int, config: LogConfig, now_ms: int) -> bool:
    """Whether timestamps from ``least`` to ``greatest`` (ms) are accepted without a look at each."""
    lowest, highest = _time_window(config, now_ms)
    return lowest <= least and greatest <= highest


def check_timestamps(timestamps: Sequence[int], config: LogConfig, now_ms: int) -> None:
    if not timestamps or config.message_timestamp_type == LOG_APPEND_TIME:
        return
    if are_timely(min(timestamps), max(timestamps), config, now_ms):
        return
    lowest, highest = _time_window(config, now_ms)
    errors = [
        RecordError(index, f"timestamp {timestamp} ms, expected {lowest} to {highest}")
        for index, timestamp in enumerate(timestamps)
        if timestamp != NO_TIMESTAMP and not lowest <= timestamp <= highest
    ]
    if errors:
        raise InvalidTimestampError(f"{errors[0].message} (record {errors[0].index} of {len(timestamps)})", errors)


def check_keys(keys: Sequence[object] | None, count: int) -> None:
    missing = range(count) if keys is None else [index for index, key in enumerate(keys) if key is None]
    if missing:
        errors = [RecordError(index, "no key, and a compacted log needs one") for index in missing]
        raise InvalidRecordError(f"record {errors[0].index} has no key, and a compacted log needs one", errors)


def milliseconds(when: int | datetime | str) -> int:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"the time {when.isoformat()} has no time zone: give an aware datetime")
        return round(when.timestamp() * 1000)
    if isinstance(when, int):
        return when
    raise ValueError(f"a time is ms since the epoch, a datetime, 'earliest', 'latest' or 'max_timestamp', not {when!r}")


def timestamp_ms(given: object) -> int:
    """A record's timestamp, from ms or an aware datetime. Raises: TypeError, ValueError."""
    if isinstance(given, datetime):
        return milliseconds(given)
    try:
        return index(given)  # type: ignore[arg-type]  # for other types it raises TypeError
    except TypeError:
        raise TypeError(
            f"a timestamp of type {type(given).__name__}, expected ms since the epoch as an int, or an aware datetime"
        ) from None


def as_sequence(name: str, given: Iterable[T]) -> Sequence[T]:
    """``given``, or a list of its items. Raises: TypeError if it is not iterable, or is a single text."""
    if isinstance(given, list | tuple):
        return given
    if isinstance(given, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name} must be an iterable with an item for each record, not {type(given).__name__}")
    if not isinstance(given, Iterable):
        raise TypeError(f"{name} must be an iterable with an item for each record, not {type(given).__name__}")
    return list(given)


def as_rows(name: str, given: Iterable[Any]) -> Sequence[Any]:
    """``as_sequence`` of items that can be read more than once: a record that does not fit a batch is encoded again."""
    rows = as_sequence(name, given)
    if all(row is None or isinstance(row, list | tuple | Mapping) for row in rows):
        return rows
    return [tuple(row) if isinstance(row, Iterator) else row for row in rows]


def as_columns(
    values: Iterable[Any], keys: Iterable[Any] | None, timestamps: Iterable[Any] | None, headers: Iterable[Any] | None
) -> tuple[Sequence[Any], Sequence[Any] | None, Sequence[Any] | None, Sequence[Any] | None]:
    """``values`` and what belongs to each of them, as lists or tuples.

    Raises: TypeError as ``as_sequence``; ValueError if their lengths differ.
    """
    rows = as_sequence("values", values)
    return (
        rows,
        _column("keys", keys, len(rows)),
        _column("timestamps", timestamps, len(rows)),
        _column("headers", headers, len(rows)),
    )


def _column(name: str, given: Iterable[Any] | None, count: int) -> Sequence[Any] | None:
    if given is None:
        return None
    column = as_sequence(name, given)
    if len(column) != count:
        raise ValueError(f"{len(column)} {name} for {count} values")
    return column


def offset_number(name: str, given: object) -> int:
    """Raises: TypeError for anything but a whole number."""
    try:
        return index(given)  # type: ignore[arg-type]  # for other types it raises TypeError
    except TypeError:
        raise TypeError(f"{name} is {given!r:.80}, expected an int") from None


def whole_number(name: str, value: int, bits: int) -> None:
    """Raises: TypeError, ValueError for anything but a number from 0 up that fits a signed field of this many bits."""
    highest = 2 ** (bits - 1) - 1
    if not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}, expected an int")
    if not 0 <= value <= highest:
        raise ValueError(f"{name} is {value}, expected 0 to {highest}")


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}, expected one of {', '.join(map(repr, allowed))}")
