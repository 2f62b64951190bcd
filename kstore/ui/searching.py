"""Searches records as ``kstore grep`` does, and sends what it finds as events, while it goes on.

A process of its own searches: a regular expression can take forever over a single value and cannot be interrupted, and
would hold up every page until then. The process is killed when the browser leaves, when another search begins, and when
its time is over. It ends by itself too, should the server be gone.

An event's data is one line of JSON: ``text`` says how far the search is, ``records`` are those that were found since.
The event "end" is the last one.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import anyio
from anyio import to_thread

from kstore.errors import KstoreError, OffsetOutOfRangeError
from kstore.log import Log
from kstore.rules.notebook import visible
from kstore.types import CorruptRange
from kstore.ui.following import event_row
from kstore.ui.places import Place
from kstore.ui.search_pages import LIMITS, Limits
from kstore.upkeep.numbers import count_text, size_text
from kstore.upkeep.search import Match, Pattern, Piece, pieces, search

# How long the server waits for the process before it looks whether the browser is still there.
WAIT_SECONDS = 0.2
# Records that were found are sent at least this often, and as soon as there are ROWS_MAX.
SEND_SECONDS = 0.2
ROWS_MAX = 50
PROBLEMS_MAX = 5


Event = dict[str, Any]


# --- the process ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _State:
    """How far a search is."""

    total: int
    read: int = 0
    found: int = 0
    damaged: int = 0
    rows: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sent_at: float = 0.0

    def event(self, end: str = "") -> Event:
        """What is new; ``end`` says why nothing more comes."""
        rows, self.rows, self.sent_at = self.rows, [], time.monotonic()
        counted = f"{count_text(self.found)} {'record' if self.found == 1 else 'records'} found"
        text = f"{counted} in {size_text(self.read)} of {size_text(max(self.total, self.read))}"
        text += f"; {count_text(self.damaged)} damaged places were left out" if self.damaged else ""
        text += f". {end}" if end else " …"
        if self.problems:
            text += f" Not searched: {'; '.join(self.problems[:PROBLEMS_MAX])}"
            text += f"; and {len(self.problems) - PROBLEMS_MAX} more." if len(self.problems) > PROBLEMS_MAX else "."
        return {"text": visible(text), "records": rows, "found": self.found, "read": self.read, "ended": bool(end)}


def searched(pattern: Pattern, places: Sequence[Place], total: int, limits: Limits) -> Iterator[Event]:
    """The events of a search in ``places``, one after another, of which the last one has ``ended``."""
    state = _State(total)
    for place in places:
        try:
            with Log(place.path, read_only=True) as log:
                for piece in pieces(log):
                    for item in _present(log, pattern, piece):
                        if isinstance(item, Match):
                            state.found += 1
                            state.rows.append({**event_row(place, item.record), "log": visible(place.name)})
                        else:
                            state.damaged += 1
                        if state.found == limits.records:
                            yield state.event(f"The search ends after {count_text(limits.records)} records.")
                            return
                        if len(state.rows) >= ROWS_MAX or _is_due(state):
                            yield state.event()
                    state.read += piece.size
                    if state.read >= limits.size:
                        yield state.event(f"The search ends after {size_text(limits.size)}.")
                        return
                    if _is_due(state):
                        yield state.event()
        except KstoreError as error:
            state.problems.append(str(error))
    yield state.event("Everything was searched.")


def _is_due(state: _State) -> bool:
    return time.monotonic() - state.sent_at >= SEND_SECONDS


def _present(log: Log, pattern: Pattern, piece: Piece) -> Iterator[Match | CorruptRange]:
    """What matches in ``piece``, as far as retention leaves it."""
    start = piece.start_offset
    while start < piece.stop_offset:
        try:
            for item in search(log, pattern, piece._replace(start_offset=start)):
                start = (item.record.offset if isinstance(item, Match) else item.last) + 1
                yield item
            return
        except OffsetOutOfRangeError:
            if log.start_offset <= start:
                raise
            start = log.start_offset


def _work(sink: Connection, pattern: Pattern, places: Sequence[Place], total: int, limits: Limits) -> None:
    """The process: it ends by itself if the server is killed, also within a regular expression."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.seconds + 10)
    try:
        for event in searched(pattern, places, total, limits):
            sink.send(event)
    except BrokenPipeError:
        pass  # the server has ended


# --- the server -------------------------------------------------------------------------------------------------------


class _Search:
    """One process; for one thread at a time."""

    def __init__(self) -> None:
        self.is_superseded = False
        self._process: Any = None
        self._source: Connection | None = None

    def start(self, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        source, sink = context.Pipe(duplex=False)
        self._source = source
        try:
            self._process = context.Process(target=_work, args=(sink, *arguments), name="kstore-ui-search", daemon=True)
            self._process.start()
        finally:
            sink.close()

    def receive(self) -> Event | None:
        """What the process has found; None if nothing has come for a while. Raises: EOFError if it has ended."""
        assert self._source is not None
        if not self._source.poll(WAIT_SECONDS):
            return None
        event: Event = self._source.recv()
        return event

    def end(self) -> None:
        if self._process is not None and self._process.pid is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._source is not None:
            self._source.close()


class Searches:
    """The searches of one user: a new one ends the one before. For the server's event loop."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._last: _Search | None = None
        # One process at a time.
        self._turn = anyio.Lock()

    async def events(
        self, pattern: Pattern, places: Sequence[Place], total: int, is_stopping: Callable[[], bool]
    ) -> AsyncIterator[str]:
        """The events of a search in ``places``, which have ``total`` bytes, until the reader leaves."""
        one = _Search()
        if self._last is not None:
            self._last.is_superseded = True
        self._last = one
        yield ": searching\n\n"
        async with self._turn:
            if one.is_superseded:
                yield _end("Another search has begun.")
                return
            try:
                await to_thread.run_sync(partial(one.start, pattern, places, total, self.limits))
                deadline = anyio.current_time() + self.limits.seconds
                said = ""
                while not is_stopping():
                    if one.is_superseded:
                        yield _end(f"{said} Another search has begun.")
                        return
                    if anyio.current_time() >= deadline:
                        yield _end(f"{said} The search ends after {self.limits.seconds:g} seconds.")
                        return
                    event = await to_thread.run_sync(one.receive)
                    if event is None:
                        yield ": nothing new\n\n"
                        continue
                    said = event["text"]
                    yield _event(event)
                    if event["ended"]:
                        return
            except EOFError:
                yield _end("The search ended early: the system ended its process, for want of memory perhaps.")
            finally:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(one.end)
                if self._last is one:
                    self._last = None


def _end(text: str) -> str:
    return _event({"text": text.strip(), "records": [], "ended": True})


def _event(event: Event) -> str:
    kind = "event: end\n" if event["ended"] else ""
    return f"{kind}data: {json.dumps(event, separators=(',', ':'))}\n\n"
