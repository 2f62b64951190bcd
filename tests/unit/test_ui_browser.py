"""``kstore ui`` in a real browser: it gets access, and hostile records and names neither run nor request anything."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvicorn

import kstore
from tests.browser_parts import opened
from tests.golden_data import golden_root
from tests.report_parts import Elements, hidden_characters, hostile_text
from tests.ui_parts import Site, site

RECORDS_OF_A_BATCH = 100
BATCHES = 6

pytestmark = pytest.mark.long


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


def test_the_printed_address_lets_a_browser_in(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "data" / "orders-0") as log:
        log.append(b"one")
    with site([tmp_path / "data"]) as pages, served(pages.app) as address:
        seen = opened(f"{address}/?token={pages.app.token}", tmp_path)
    assert seen.logged == []
    assert 'href="/logs/0/orders"' in seen.dom
    assert {url.removeprefix(address).partition("?")[0] for url in seen.asked} >= {
        "/",
        "/static/style.css",
        "/static/ui.js",
    }
    assert [url for url in seen.asked if not url.startswith(address)] == []


def test_a_page_that_is_not_complete_is_filled_in(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "data" / "orders-0") as log:
        log.append(b"one")
    with site([tmp_path / "data"]) as pages:
        incomplete = [1, 2]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async def send_changed(message: Any) -> None:
                if message["type"] == "http.response.start":
                    kept = [(name, value) for name, value in message["headers"] if name != b"content-length"]
                    await send({**message, "headers": kept})
                else:
                    await send({**message, "body": message["body"].replace(b"<main>", b"<main data-pending>")})

            is_changed = scope["path"] == "/" and bool(incomplete)
            if is_changed:
                incomplete.pop()
            await LetIn(pages)(scope, receive, send_changed if is_changed else send)

        with served(app) as address:
            seen = opened(address, tmp_path)
    assert incomplete == []
    assert seen.logged == []
    assert "<main>" in seen.dom


def test_hostile_records_and_names_run_nothing_and_ask_for_nothing(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    root = tmp_path / "data"
    with kstore.Log(root / "hostile-0", durability="os") as log:
        for _ in range(BATCHES):
            texts = [hostile_text(choose).encode("utf-8", "surrogatepass") for _ in range(RECORDS_OF_A_BATCH)]
            headers = [[(text.decode("utf-8", "replace"), text)] for text in texts]
            log.append_many(texts, keys=texts, headers=headers)
    for _ in range(20):
        name = os.fsdecode(hostile_text(choose).replace("/", "|").encode("utf-8", "replace")[:200].strip(b"\0") or b"x")
        kstore.Log(root / name).close()
    with site([root]) as pages, served(LetIn(pages)) as address:
        segment = pages.json("/logs/0/hostile/0/0.json")
        urls = ["/", "/logs/0/hostile/0", segment["url"], *[batch["url"] for batch in segment["batches"]]]
        urls += [f"{segment['batches'][0]['url']}/{offset}" for offset in range(5)]
        urls += [topic["url"] for topic in pages.json("/overview.json")["topics"][:3]]
        for url in urls:
            seen = opened(address + url, tmp_path)
            sent = pages.page(url)
            assert seen.logged == [], url
            assert [asking for asking in seen.asked if not asking.startswith(address)] == [], url
            assert {tag for tag, _ in Elements(seen.dom).kinds} == {tag for tag, _ in Elements(sent).kinds}, url
            assert seen.dom.partition("<title>")[2].partition("</title>")[0].endswith(" · kstore"), url
            assert hidden_characters(seen.dom) == set(), url


@pytest.mark.parametrize("tree", ["clean", "damaged"])
def test_pages_about_a_brokers_data_have_no_grave_fault_and_no_dangling_link(tree: str, tmp_path: Path) -> None:
    with site([golden_root() / tree]) as pages, served(LetIn(pages)) as address:
        topic = pages.json("/overview.json")["topics"][0]
        partition = pages.json(topic["url"] + ".json")["partitions"][0]
        segment = pages.json(partition["url"] + ".json")["segments"][0]
        batch = pages.json(segment["url"] + ".json")["batches"][0]
        for url in ("/", topic["url"], partition["url"], segment["url"], batch["url"]):
            seen = opened(address + url, tmp_path, audited=True)
            assert seen.logged == [], url
            assert seen.dangling == [], url
            assert seen.faults == [], url
