"""A time on the command line: given as ms since the epoch or an ISO 8601 date and time, shown as the latter in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

__all__ = ["TimeType", "timestamp_text"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp_text(timestamp_ms: int) -> str:
    """A timestamp for people: ISO 8601 in UTC; "-" for none, the plain number if no calendar has it."""
    if timestamp_ms < 0:
        return "-"
    try:
        return (EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(timestamp_ms)


class TimeType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """Ms since the epoch, or an ISO 8601 date and time; without a zone it is local time."""

    name = "time"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if text.isascii() and text.isdigit():
            return int(text)
        try:
            return round(datetime.fromisoformat(text).timestamp() * 1000)
        except ValueError:
            self.fail(f"{text!r}, expected ms since the epoch or an ISO 8601 time", param, ctx)
