"""An ASGI application over a log: POST appends the body, GET streams every event as lines and waits for more.

usage: uvicorn asgi_app:app --timeout-graceful-shutdown 5      (or any other ASGI server; the store is in ./data)

curl -X POST --data hello http://127.0.0.1:8000/     answers the offset, after the event is on disk
curl -N http://127.0.0.1:8000/?from=0                streams
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

import kstore

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class App:
    """One store for the process, opened and closed with the server (ASGI's lifespan)."""

    def __init__(self, directory: str = "data") -> None:
        self._directory = directory

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["method"] == "POST":
            await self._append(receive, send)
        else:
            (first,) = parse_qs(scope["query_string"].decode()).get("from", ["0"])
            await self._stream(int(first), receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # lifespan.startup
        async with kstore.aio.open(self._directory) as store:
            await store.topic("events")  # created, if it does not exist
            self._log = await store.log("events")
            await send({"type": "lifespan.startup.complete"})
            await receive()  # lifespan.shutdown
        await send({"type": "lifespan.shutdown.complete"})

    async def _append(self, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return  # a part of an event is no event
            body, more = body + message.get("body", b""), message.get("more_body", False)
        offset = await self._log.append(body)  # appends of concurrent requests share one write and one sync
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"%d\n" % offset})

    async def _stream(self, first: int, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        gone = asyncio.ensure_future(_gone(receive))
        reader = self._log.read_values(first, follow=True)
        try:
            while True:
                event = asyncio.ensure_future(anext(reader))  # no thread waits meanwhile
                await asyncio.wait({event, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    event.cancel()
                    return
                line = (event.result() or b"") + b"\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
        finally:
            gone.cancel()
            reader.close()


async def _gone(receive: Receive) -> None:
    """Waits until the client is gone. What comes before that is the request's own body."""
    while (await receive())["type"] != "http.disconnect":
        pass


app = App()
