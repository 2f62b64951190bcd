"""Who may ask, and what every answer carries. It stands before the application and knows nothing of logs.

- Only GET and POST, and only under a name of this machine: a page from elsewhere whose name was rebound to 127.0.0.1
  has another ``Host``.
- A POST must come from one of these pages, as its ``Origin`` says: other servers on this machine have another port, but
  the browser sends our cookie for them too. Its body is never read. Nor can their pages load anything from here.
- The address that is printed has a token. Its first use sets a cookie that other sites cannot send and scripts cannot
  read, and leads to an address without the token: so it stays out of the history and of links.
- Every answer, also a refusal, forbids scripts and styles from elsewhere or within the page, framing and caching.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HOSTS = ("127.0.0.1", "localhost")
HOST = re.compile(f"({'|'.join(map(re.escape, HOSTS))})(:[0-9]{{1,5}})?".encode())
HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With "no-referrer" a browser does not say where a POST comes from.
    "referrer-policy": "same-origin",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
TOKEN_BYTES = 32
METHODS = ("GET", "POST")


class Guard:
    """An ASGI application in front of another one. ``token`` is the one of the first address. Thread-safe."""

    def __init__(self, app: Application, *, port: int) -> None:
        self._app = app
        self.token: str = secrets.token_urlsafe(TOKEN_BYTES)
        # Not the token: it can be shown on a screen, and the cookie never is.
        self._session = secrets.token_urlsafe(TOKEN_BYTES)
        # Cookies do not distinguish ports, and two of us may run.
        self._cookie = f"kstore-ui-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # no web sockets; a server that offers a lifespan does without
        if scope["method"] not in METHODS:
            await answer(send, 405, "These pages answer GET, and a few of them POST.", allow=", ".join(METHODS))
        elif not _is_of_this_machine(_values(scope, b"host")):
            await answer(send, 403, f"The host's name is not one of {', '.join(HOSTS)}.")
        elif _is_of_another_page(scope) or (scope["method"] == "POST" and not _is_from_here(scope)):
            await answer(send, 403, "Only these pages themselves may ask for this.")
        elif (
            scope["method"] == "GET"
            and scope["path"] == "/"
            and (token := parse_qs(scope["query_string"]).get(b"token"))
        ):
            if len(token) == 1 and secrets.compare_digest(token[0], self.token.encode()):
                cookie = f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict"
                await answer(send, 303, "", location="/", set_cookie=cookie)
            else:
                await answer(send, 403, "The token is not that of this server. Open the address that it printed.")
        elif not self._has_cookie(scope):
            await answer(send, 403, "Open the address that kstore ui printed: its token lets this browser in.")
        else:
            await self._app(scope, receive, _with_headers(send))

    def _has_cookie(self, scope: Scope) -> bool:
        wanted = f"{self._cookie}={self._session}".encode()
        cookies = [cookie.strip() for header in _values(scope, b"cookie") for cookie in header.split(b";")]
        return any(secrets.compare_digest(cookie, wanted) for cookie in cookies)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key.lower() == name]


def _is_of_this_machine(hosts: list[bytes]) -> bool:
    return len(hosts) == 1 and HOST.fullmatch(hosts[0].lower()) is not None


def _is_of_another_page(scope: Scope) -> bool:
    """Whether a page of another server loads this as a part of its own. A link may lead here from anywhere."""
    site, mode = _values(scope, b"sec-fetch-site"), _values(scope, b"sec-fetch-mode")
    return site not in ([], [b"same-origin"], [b"none"]) and mode != [b"navigate"]


def _is_from_here(scope: Scope) -> bool:
    """Whether a page of this very server sent a request with one valid ``Host``."""
    (host,) = _values(scope, b"host")
    sites = _values(scope, b"sec-fetch-site")
    return _values(scope, b"origin") == [b"http://" + host.lower()] and sites in ([], [b"same-origin"])


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [(name, value) for name, value in message.get("headers", ()) if name.decode("latin-1") not in HEADERS]
            message = {**message, "headers": own + [(name.encode(), value.encode()) for name, value in HEADERS.items()]}
        await send(message)

    return sent


async def answer(send: Send, status: int, text: str, **headers: str) -> None:
    body = f"{text}\n".encode() if text else b""
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    lines += [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    start = {"type": "http.response.start", "status": status, "headers": lines}
    await _with_headers(send)(start)
    await send({"type": "http.response.body", "body": body})
