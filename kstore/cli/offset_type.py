"""Where to start and end on the command line, in the syntax of kcat's ``-o``."""

from __future__ import annotations

import re
from typing import NamedTuple

import click

from kstore.cli.time_type import TimeType
from kstore.log import Log

FORM = re.compile(r"(?P<word>beginning|earliest|end|latest|stored)|(?P<number>-?[0-9]{1,19})|(?P<at>[se])@(?P<time>.+)")
FORMS = "beginning, end, stored, N, -N (from the end), s@TIME (from a time), e@TIME (up to a time)"

TIME = TimeType()


class Place(NamedTuple):
    """``kind``: "beginning", "end", "stored", "offset", "back", "since" or "until"; with an offset, a count or ms."""

    kind: str
    number: int = 0


class OffsetType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """One of kcat's forms."""

    name = "offset"

    def convert(self, value: str | Place, param: click.Parameter | None, ctx: click.Context | None) -> Place:
        if isinstance(value, Place):
            return value
        match = FORM.fullmatch(value)
        if match is None:
            self.fail(f"{value!r}, expected one of {FORMS}", param, ctx)
        if match["word"]:
            return Place({"earliest": "beginning", "latest": "end"}.get(match["word"], match["word"]))
        if match["at"]:
            return Place("since" if match["at"] == "s" else "until", TIME.convert(match["time"], param, ctx))
        number = int(match["number"])
        return Place("back", -number) if match["number"].startswith("-") else Place("offset", number)


def begin_offset(log: Log, place: Place) -> int:
    """The offset of a log that ``place`` means. Raises: StorageError."""
    end = log.high_watermark
    if place.kind == "end":
        return end
    if place.kind == "offset":
        return place.number
    if place.kind == "back":
        return max(log.start_offset, end - place.number)
    if place.kind == "since":
        found = log.offset_for_time(place.number)
        return end if found is None else found
    return log.start_offset


def end_offset(log: Log, until_ms: int | None) -> int:
    """Where a log ends now, or the offset at a time."""
    found = None if until_ms is None else log.offset_for_time(until_ms)
    return log.high_watermark if found is None else min(found, log.high_watermark)
