"""A time on the command line: ms since the epoch, or an ISO 8601 date and time."""

from __future__ import annotations

from datetime import datetime

import click

__all__ = ["TimeType"]


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
