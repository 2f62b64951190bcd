"""New records of a log as server-sent events, RECORDS_MAX at a time at most: a busy log must not drown a page.

An event's data is one line of JSON: the log's end, how many records were left out, and previews of the last ones. Its
id is the end, so a browser that connects again continues there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from anyio import to_thread

from kstore.errors import KstoreError
from kstore.log import Log, reads_of
from kstore.record._codec import Record
from kstore.rules.notebook import visible
from kstore.ui.pages import record_row, records_left
from kstore.ui.places import Place
from kstore.upkeep.numbers import time_text

# Each one waits in a thread.
FOLLOWERS_MAX = 16
RECORDS_MAX = 50
# A follower checks at least this often that its reader is still there.
WAIT_SECONDS = 1.0
# The least time between two events.
PAUSE_SECONDS = 0.2


async def follow(
    place: Place,
    open_log: Callable[[], Log],
    start: int | None,
    is_stopping: Callable[[], bool],
    *,
    limiter: anyio.CapacityLimiter,
    pause_seconds: float = PAUSE_SECONDS,
) -> AsyncIterator[str]:
    """Events about the records from offset ``start`` on (None: from the end on), until the reader leaves."""
    log: Log | None = None
    try:
        log = await to_thread.run_sync(open_log, limiter=limiter)
        next_offset = log.high_watermark if start is None else min(max(start, log.start_offset), log.high_watermark)
        # At once: the reader knows that it is connected.
        yield _comment("following")
        while not is_stopping():
            found = await to_thread.run_sync(_look, log, place, next_offset, limiter=limiter, abandon_on_cancel=True)
            if found is None:
                yield _comment("nothing new")
                continue
            next_offset = found["end"]
            yield f"id: {next_offset}\ndata: {json.dumps(found, separators=(',', ':'))}\n\n"
            await anyio.sleep(pause_seconds)
    except KstoreError as error:
        yield f"event: problem\ndata: {json.dumps(visible(str(error)))}\n\n"
    finally:
        if log is not None:
            log.close()


def _comment(text: str) -> str:
    return f": {text}\n\n"


def _look(log: Log, place: Place, next_offset: int) -> dict[str, Any] | None:
    """What is new, None if nothing has arrived for a while."""
    if not reads_of(log).wait_beyond(next_offset, WAIT_SECONDS, committed=False):
        end = log.high_watermark
        return None if end >= next_offset else {"end": end, "left_out": 0, "records": []}  # it was cut
    end = log.high_watermark
    first, records = records_left(log, max(next_offset, end - RECORDS_MAX), end, RECORDS_MAX)
    rows = [event_row(place, record) for record in records]
    return {"end": end, "left_out": min(first, end) - next_offset, "records": rows}


def event_row(place: Place, record: Record) -> dict[str, Any]:
    """A record in an event: a script shows its texts, and Jinja2 does not see them."""
    row = record_row(place, record)
    texts = {name: visible(row[name]["text"]) for name in ("key", "value")}
    return {**row, **texts, "time": time_text(record.timestamp)}
