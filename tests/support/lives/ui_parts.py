"""``kstore ui`` for tests: the application is called directly, without a server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import uvicorn

from kstore.files.fs import FileSystem
from kstore.files.local import SYSTEM_FS
from kstore.ui.app import guarded_app
from kstore.ui.checking import Checks
from kstore.ui.guard import Guard
from kstore.ui.search_pages import LIMITS, Limits
from kstore.ui.survey import Survey

PORT = 4711
HOST = f"127.0.0.1:{PORT}"
COUNT_SECONDS = 60


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class Site:
    """An application, and a browser that may use it."""

    def __init__(self, app: Guard, survey: Survey, checks: Checks) -> None:
        self.app = app
        self.survey = survey
        self.checks = checks
        answer = self.ask(f"/?token={app.token}")
        self.cookie = answer.headers["set-cookie"].partition(";")[0]

    def get(self, url: str) -> Answer:
        return self.ask(url, headers={"cookie": self.cookie})

    def post(self, url: str, **headers: str) -> Answer:
        """What a form of a page sends."""
        sent = {"cookie": self.cookie, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin", **headers}
        return self.ask(url, method="POST", headers=sent)

    def page(self, url: str) -> str:
        """The text of a page that exists."""
        answer = self.get(url)
        assert answer.status == 200, (url, answer.text)
        return answer.text

    def json(self, url: str) -> Any:
        answer = self.get(url)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json"), (url, answer.text)
        return answer.json()

    def ask(
        self, url: str, *, method: str = "GET", host: str | None = HOST, headers: dict[str, str] | None = None
    ) -> Answer:
        return asyncio.run(self._ask(url, method, host, headers or {}))

    async def _ask(self, url: str, method: str, host: str | None, headers: dict[str, str]) -> Answer:
        events: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

        async def receive() -> MutableMapping[str, Any]:
            await asyncio.Event().wait()  # the browser stays connected
            raise AssertionError

        await self.app(scope(url, method=method, host=host, headers=headers), receive, events.put)
        messages = [events.get_nowait() for _ in range(events.qsize())]
        start, *bodies = messages
        named = {name.decode(): value.decode() for name, value in start["headers"]}
        assert len(named) == len(start["headers"]), "a header is given twice"
        return Answer(start["status"], named, b"".join(message.get("body", b"") for message in bodies))


def scope(url: str, *, method: str = "GET", host: str | None = HOST, headers: dict[str, str]) -> dict[str, Any]:
    """A request as a server passes it on; its path may hold any bytes, and is decoded as in uvicorn."""
    parts = urlsplit(url, allow_fragments=False) if url.startswith("/") and not url.startswith("//") else None
    path, query = (parts.path, parts.query) if parts else (url, "")
    lines = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote_to_bytes(path).decode("utf-8", "replace"),
        "raw_path": path.encode("utf-8", "replace"),
        "query_string": query.encode(),
        "root_path": "",
        "headers": lines if host is None else [(b"host", host.encode()), *lines],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", PORT),
        "state": {},
    }


@contextmanager
def site(
    paths: Sequence[Path],
    *,
    fs: FileSystem = SYSTEM_FS,
    counted: bool = True,
    deep: bool = False,
    bytes_per_second: float | None = None,
    limits: Limits = LIMITS,
) -> Iterator[Site]:
    """The pages about ``paths``; ``counted``: after every log was counted."""
    survey, checks = Survey(paths, fs=fs, deep=deep), Checks(bytes_per_second=bytes_per_second, fs=fs)
    app = guarded_app(survey, checks, port=PORT, is_stopping=lambda: False, pause_seconds=0, limits=limits)
    survey.start()
    try:
        assert survey.wait(COUNT_SECONDS) if counted else survey.wait_for_places(COUNT_SECONDS)
        yield Site(app, survey, checks)
    finally:
        checks.stop()
        survey.stop()


@contextmanager
def served(app: Any) -> Iterator[str]:
    """The address of a server in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_level="warning", timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


class LetIn:
    """Adds the cookie to every request: a browser started for one page has none."""

    def __init__(self, pages: Site) -> None:
        self._pages = pages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [*scope["headers"], (b"cookie", self._pages.cookie.encode())]
        await self._pages.app({**scope, "headers": headers}, receive, send)
