"""A browser's connection: uvicorn's, with a time limit for requests, and with our headers on its own answers too.

Every connection counts towards the limit, with the token or without. So none stays open without a request: otherwise a
few that are left open, or send a request that never ends, would keep out the user who has the token. When there are too
many, the one that has waited for a request the longest gives way to a new one.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kstore.ui.guard import HEADERS, Application, Receive, Scope, Send, answer

# From the connection, or from the last answer, to the end of the next request's head.
HEAD_SECONDS = 10.0
CONNECTIONS_MAX = 100


class Connection(H11Protocol):  # type: ignore[misc]  # untyped for us
    """What uvicorn calls for one connection, in the thread of its loop."""

    app: Application

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._guarded: Application = self.app
        self.app = self._admitted
        self._head_timer: asyncio.TimerHandle | None = None

    async def _admitted(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._open_count() > CONNECTIONS_MAX:
            self.logger.warning("over %d connections: a request is refused", CONNECTIONS_MAX)
            await answer(send, 503, "There are too many connections.", connection="close")
        else:
            await self._guarded(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect_head()
        if len(self.connections) > CONNECTIONS_MAX and self._open_count() > CONNECTIONS_MAX:
            self._drop_oldest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()  # a request has begun, and not ended

    def on_response_complete(self) -> None:
        # Before the call: the next request may be here already. An unread body has the same limit as a head.
        self._expect_head()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        headers = {"content-type": "text/plain; charset=utf-8", "connection": "close", **HEADERS}
        lines = [(name.encode(), value.encode()) for name, value in headers.items()]
        for event in (
            h11.Response(status_code=400, headers=lines, reason=b"Bad Request"),
            h11.Data(data=msg.encode("ascii")),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _open_count(self) -> int:
        return sum(not each.transport.is_closing() for each in self.connections)

    def _drop_oldest(self) -> None:
        """Closes the connection that has waited for a request the longest; one that is being answered stays."""
        waiting = [each for each in self.connections if each is not self and each._head_timer is not None]
        if waiting:
            oldest = min(waiting, key=lambda each: each._head_timer.when())
            oldest._stop_timer()
            oldest.transport.abort()

    def _expect_head(self) -> None:
        self._stop_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
