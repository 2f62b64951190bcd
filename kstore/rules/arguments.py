"""Checks of a log's arguments, with errors that say what was found and what was expected."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kstore.config import LogConfig
from kstore.errors import ConfigError, InvalidRecordError, InvalidTimestampError, RecordError
from kstore.types import LOG_APPEND_TIME, NO_TIMESTAMP

__all__ = ["check_keys", "check_timestamps", "milliseconds", "one_of", "whole_number"]


def check_timestamps(timestamps: Sequence[int], config: LogConfig, now_ms: int) -> None:
    if not timestamps or config.message_timestamp_type == LOG_APPEND_TIME:
        return
    lowest = max(now_ms - config.message_timestamp_before_max_ms, 0)
    highest = now_ms + config.message_timestamp_after_max_ms
    if lowest <= min(timestamps) and max(timestamps) <= highest:
        return
    errors = [
        RecordError(index, f"timestamp {timestamp} ms, expected {lowest} to {highest}")
        for index, timestamp in enumerate(timestamps)
        if timestamp != NO_TIMESTAMP and not lowest <= timestamp <= highest
    ]
    if errors:
        raise InvalidTimestampError(f"{errors[0].message} (record {errors[0].index} of {len(timestamps)})", errors)


def check_keys(keys: Sequence[bytes | None] | None, count: int) -> None:
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
