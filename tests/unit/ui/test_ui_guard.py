"""``kstore ui`` answers only its user: hosts, token and cookie, methods, headers; no address becomes a path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import kstore
from kstore.files.local import SYSTEM_FS
from kstore.ui.guard import HEADERS
from tests.support.lives.ui_parts import HOST, PORT, Site, scope, site


class Watched:
    """The system's files; records every path that is used."""

    def __init__(self) -> None:
        self.paths: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        found = getattr(SYSTEM_FS, name)

        def called(*arguments: Any, **named: Any) -> Any:
            self.paths |= {str(each) for each in arguments[:1]}
            return found(*arguments, **named)

        return called if callable(found) else found


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Watched()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, watched: Watched) -> Iterator[Site]:
    outside = tmp_path_factory.mktemp("guard")
    (outside / "secret.txt").write_text("beside the logs")
    root = outside / "logs"
    with kstore.Log(root / "orders-0") as log:
        log.append_many([b"one", b"two"])
    with site([root], fs=watched) as made:
        yield made


def test_the_token_becomes_a_cookie_and_leaves_the_address(pages: Site) -> None:
    answer = pages.ask(f"/?token={pages.app.token}")
    assert (answer.status, answer.headers["location"], answer.body) == (303, "/", b"")
    cookie, *attributes = answer.headers["set-cookie"].split("; ")
    assert sorted(attributes) == ["HttpOnly", "Path=/", "SameSite=Strict"]
    assert pages.app.token not in cookie
    assert pages.ask("/", headers={"cookie": f"other=1; {cookie}"}).status == 200


def test_tokens_and_cookies_are_never_the_same_twice(pages: Site) -> None:
    with site([]) as other:
        assert other.app.token != pages.app.token
        assert len(other.app.token) >= 40
        assert other.cookie != pages.cookie
        assert other.ask("/", headers={"cookie": pages.cookie}).status == 403


@pytest.mark.parametrize(
    "url", ["/", "/overview.json", "/logs/0/orders", "/static/style.css", "/nothing", "/?token=guess"]
)
def test_nothing_is_shown_to_a_stranger(pages: Site, url: str) -> None:
    for headers in ({}, {"cookie": f"kstore-ui-{PORT}=guess"}, {"cookie": f"kstore-ui-{PORT}={pages.app.token}"}):
        answer = pages.ask(url, headers=headers)
        assert answer.status == 403
        assert "set-cookie" not in answer.headers
        assert "orders" not in answer.text


@pytest.mark.parametrize(
    "host",
    [None, "", "kstore.example", f"kstore.example:{PORT}", "127.0.0.1.kstore.example", "127.0.0.1@kstore.example",
     "localhost.kstore.example", "127.0.0.2", "[::1]", "127.0.0.1:", "127.0.0.1:x", "0.0.0.0"],
)  # fmt: skip
def test_a_name_that_is_not_this_machine_s_is_refused(pages: Site, host: str | None) -> None:
    for url in ("/", f"/?token={pages.app.token}"):
        answer = pages.ask(url, host=host, headers={"cookie": pages.cookie})
        assert answer.status == 403
        assert "set-cookie" not in answer.headers


def test_two_hosts_are_refused(pages: Site) -> None:
    assert pages.ask("/", headers={"host": HOST, "cookie": pages.cookie}).status == 403


@pytest.mark.parametrize("host", [HOST, "127.0.0.1", "localhost", f"LOCALHOST:{PORT}", "localhost:9999"])
def test_this_machine_s_names_are_answered(pages: Site, host: str) -> None:
    assert pages.ask("/", host=host, headers={"cookie": pages.cookie}).status == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "get"])
def test_only_get_and_post_are_answered(pages: Site, method: str) -> None:
    answer = pages.ask("/", method=method, headers={"cookie": pages.cookie, "origin": "http://kstore.example"})
    assert (answer.status, answer.headers["allow"]) == (405, "GET, POST")


CHECKS = ("/check", "/check/cancel", "/logs/0/orders/check", "/logs/0/orders/0/check", "/logs/0/orders/0/check/cancel")


@pytest.mark.parametrize(
    ("origin", "fetched"),
    [
        (None, None), ("null", "same-origin"), ("http://kstore.example", None), (f"https://{HOST}", None),
        ("http://127.0.0.1:1", "same-site"), ("http://localhost:4711", None), (f"http://{HOST}/", None),
        (f"http://{HOST}", "cross-site"), (f"http://{HOST}", "same-site"), (f"http://{HOST}", "none"),
    ],
)  # fmt: skip
def test_a_post_that_is_not_from_these_pages_is_refused(
    pages: Site, origin: str | None, fetched: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages.checks, "ask", pytest.fail)
    named = {"cookie": pages.cookie, "origin": origin, "sec-fetch-site": fetched}
    for url in CHECKS:
        answer = pages.ask(
            url, method="POST", headers={name: value for name, value in named.items() if value is not None}
        )
        assert answer.status == 403, url


@pytest.mark.parametrize("url", ["/", "/overview.json", "/static/ui.js", "/search/events?q=x"])
@pytest.mark.parametrize("fetched", ["same-site", "cross-site", "x"])
def test_another_page_loads_nothing_from_here_but_may_link_here(pages: Site, url: str, fetched: str) -> None:
    headers = {"cookie": pages.cookie, "sec-fetch-site": fetched, "sec-fetch-mode": "no-cors"}
    assert pages.ask(url, headers=headers).status == 403
    if "events" not in url:
        assert pages.ask(url, headers={**headers, "sec-fetch-mode": "navigate"}).status == 200


def test_a_post_needs_the_cookie_and_a_host_of_this_machine(pages: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.checks, "ask", pytest.fail)
    assert pages.post("/check", cookie="").status == 403
    assert pages.post(f"/check?token={pages.app.token}", cookie="").status == 403
    headers = {"cookie": pages.cookie, "origin": "http://kstore.example:4711"}
    assert pages.ask("/check", method="POST", host="kstore.example:4711", headers=headers).status == 403


def test_a_post_is_answered_where_something_can_be_asked_for_and_nowhere_else(pages: Site) -> None:
    for url in CHECKS:
        answer = pages.post(url)
        assert (answer.status, answer.headers["location"]) == (303, url.partition("/check")[0] or "/")
    assert pages.checks.wait(60)
    for url in ("/", "/overview.json", "/logs/0/orders/0", "/static/ui.js"):
        assert pages.post(url).status == 405
    for url in ("/logs/0/nothing/check", "/logs/0/orders/7/check", "/logs/9/orders/0/check/cancel", "/x/check"):
        assert pages.post(url).status in (404, 405)


def test_every_answer_forbids_what_a_page_does_not_need(pages: Site) -> None:
    answers = [
        pages.get(url) for url in ("/", "/overview.json", "/logs/0/orders/0/jump?to=1", "/nothing", "/static/ui.js")
    ]
    answers += [pages.ask("/"), pages.ask("/", method="POST"), pages.ask("/", host="kstore.example")]
    answers += [pages.ask(f"/?token={pages.app.token}")]
    assert [answer.status for answer in answers] == [200, 200, 303, 404, 200, 403, 403, 403, 303]
    for answer in answers:
        assert HEADERS.items() <= answer.headers.items()
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert "default-src 'self'" in HEADERS["content-security-policy"]
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_a_failure_of_our_own_has_the_same_headers_and_tells_nothing(
    pages: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("kstore.ui.pages.Pages.overview", failing)
    sent: list[Any] = []

    async def ask() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        await pages.app(scope("/", headers={"cookie": pages.cookie}), None, send)  # type: ignore[arg-type]

    with pytest.raises(RuntimeError):  # for the server's log
        asyncio.run(ask())
    start, body = sent
    assert start["status"] == 500
    assert HEADERS.items() <= {name.decode(): value.decode() for name, value in start["headers"]}.items()
    assert b"secret" not in body["body"]


def test_a_web_socket_is_not_answered(pages: Site) -> None:
    sent: list[object] = []

    async def send(message: object) -> None:
        sent.append(message)

    coroutine = pages.app({"type": "websocket"}, None, send)  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        coroutine.send(None)
    assert sent == []


HOSTILE = (
    "..", ".", "../..", "..\\..", "....//", "/etc/passwd", "secret.txt", "orders-0", "\0", "a\0.json", "%00", "~", "~0",
    "C:\\", "*", "-1", "1e9", "9" * 19, "9" * 5000, "\u0661", "0x0", " 0", "0 ", "+0", "é", "\u202e", "<script>", "..;",
    "file:", "{partition}", "{{7*7}}", ".json", "0.json.json", "live.json/",
)  # fmt: skip


@pytest.mark.parametrize("place", range(7))
@pytest.mark.sampled(3)
def test_no_address_leads_to_another_file(pages: Site, watched: Watched, place: int) -> None:
    """Replaces each part of the longest address in turn, plain and escaped."""
    (root,) = pages.survey.paths
    parts = ["logs", "0", "orders", "0", "0", "0", "1"]
    watched.paths.clear()
    for hostile in HOSTILE:
        for text in (hostile, quote(hostile, safe="")):
            answer = pages.get("/" + "/".join([*parts[:place], text, *parts[place + 1 :]]))
            assert answer.status == 404, text
            assert "beside the logs" not in answer.text
    assert {path for path in watched.paths if not Path(path).is_relative_to(root) or ".." in path} == set()


@pytest.mark.parametrize("name", ["../pages.py", "%2e%2e/pages.py", "ui.css", "style.css/..", "", "ui.js%00"])
def test_only_named_files_are_served(pages: Site, name: str) -> None:
    assert pages.get(f"/static/{name}").status == 404


@pytest.mark.parametrize(
    "query", ["position=-1", "position=x", "position=" + "9" * 30, "position=%00", "position=../.."]
)
def test_a_position_is_a_number(pages: Site, query: str) -> None:
    assert pages.get(f"/logs/0/orders/0/0?{query}").status == 404


def test_a_batch_or_record_that_does_not_exist_is_not_found(pages: Site) -> None:
    pages.page("/logs/0/orders/0/0/0/1")
    for url in (
        "/logs/0/orders/0/0/1",
        "/logs/0/orders/0/0/70",
        "/logs/0/orders/0/0/0/2",
        "/logs/0/orders/0/1",
        "/logs/1/orders",
    ):
        assert pages.get(url).status == 404
        assert pages.get(f"{url}.json").json()["problem"]
