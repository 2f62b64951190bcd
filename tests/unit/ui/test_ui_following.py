"""``kstore ui``: a log's new records arrive as events, and the server stops on request."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, MutableMapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.errors import StorageError
from kstore.ui import following
from kstore.ui.checking import Checks
from kstore.ui.pages import Pages
from kstore.ui.places import Place
from kstore.ui.server import serve
from kstore.ui.survey import Survey
from tests.support.fakes.meddling_fs import MeddlingFs
from tests.support.lives.ui_parts import Site, scope, site

URL = "/logs/0/live/0/live/events"
SECONDS = 60


@pytest.fixture
def log(tmp_path: Path) -> Iterator[kstore.Log]:
    with kstore.Log(tmp_path / "live-0") as log:
        log.append_many([b"zero", b"one"])
        yield log


@pytest.fixture
def pages(log: kstore.Log) -> Iterator[Site]:
    with site([log.path.parent]) as made:
        yield made


async def events(pages: Site, url: str = URL, **headers: str) -> AsyncGenerator[str, None]:
    """What the server sends, block by block; the browser leaves when the iterator is closed."""
    queue: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
    left = asyncio.Event()

    async def receive() -> MutableMapping[str, Any]:
        await left.wait()
        return {"type": "http.disconnect"}

    asked = scope(url, headers={"cookie": pages.cookie, **headers})
    answering = asyncio.ensure_future(pages.app(asked, receive, queue.put))
    try:
        start = await queue.get()
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-type"] == b"text/event-stream; charset=utf-8"
        while (message := await queue.get()).get("more_body"):
            yield message["body"].decode()
    finally:
        left.set()
        async with asyncio.timeout(SECONDS):
            await answering


def data_of(event: str) -> Any:
    (line,) = [line for line in event.splitlines() if line.startswith("data: ")]
    return json.loads(line.removeprefix("data: "))


async def next_event(blocks: AsyncIterator[str]) -> str:
    async with asyncio.timeout(SECONDS):
        while (block := await anext(blocks)).startswith(":"):
            pass
        return block


def test_a_new_record_comes_as_an_event(pages: Site, log: kstore.Log) -> None:
    async def run() -> None:
        async with aclosing(events(pages)) as blocks:
            assert (await anext(blocks)).startswith(":")  # at once: it is connected
            log.append(b"<b>\x1b\xe2\x80\xaetwo", key=b"k", headers={"h": b"v"}, timestamp=1_700_000_000_000)
            event = await next_event(blocks)
            assert event.startswith("id: 3\n")
            assert event.endswith("\n\n")
            found = data_of(event)
            assert (found["end"], found["left_out"]) == (3, 0)
            (record,) = found["records"]
            assert (record["offset"], record["key"], record["headers"]) == (2, "k", 1)
            assert record["time"] == "2023-11-14 22:13:20"
            assert "\x1b" not in record["value"]
            assert "\u202e" not in record["value"]
            log.append_many([b"three", b"four"])
            found = data_of(await next_event(blocks))
            assert [record["offset"] for record in found["records"]] == [3, 4]
            addresses.append(found["records"][0]["url"])

    addresses: list[str] = []
    asyncio.run(run())
    assert pages.json(pages.get(addresses[0]).headers["location"] + ".json")["value"]["text"] == "three"


@pytest.mark.parametrize("how", ["query", "header"])
def test_a_browser_that_connects_again_misses_nothing(pages: Site, how: str) -> None:
    async def run() -> None:
        asked = events(pages, f"{URL}?from=1") if how == "query" else events(pages, **{"last-event-id": "1"})
        async with aclosing(asked) as blocks:
            assert [record["offset"] for record in data_of(await next_event(blocks))["records"]] == [1]

    asyncio.run(run())


def test_of_many_records_the_last_ones_come(pages: Site, log: kstore.Log) -> None:
    async def run() -> None:
        log.append_many([b"x"] * 1000)
        async with aclosing(events(pages, f"{URL}?from=2")) as blocks:
            found = data_of(await next_event(blocks))
            assert found["end"] == 1002
            assert found["left_out"] == 1000 - len(found["records"])
            assert found["records"][-1]["offset"] == 1001
            assert len(found["records"]) == 50

    asyncio.run(run())


def test_a_log_that_was_cut_is_followed_from_its_end(
    pages: Site, log: kstore.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kstore.ui.following.WAIT_SECONDS", 0.01)  # a cut wakes no follower

    async def run() -> None:
        async with aclosing(events(pages)) as blocks:
            await anext(blocks)
            log.truncate_to(1)
            assert data_of(await next_event(blocks)) == {"end": 1, "left_out": 0, "records": []}
            log.append(b"another")
            (record,) = data_of(await next_event(blocks))["records"]
            assert (record["offset"], record["value"]) == (1, "another")

    asyncio.run(run())


@pytest.mark.parametrize("page", ["live", "events"])
def test_records_that_are_deleted_between_two_reads_are_left_out(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "WAIT_SECONDS", 0)
    for number in itertools.count():
        fs = MeddlingFs()
        place = Place(tmp_path / f"busy-{number}", tmp_path, 0, "busy", number)
        with kstore.Log(place.path, durability="os", segment_bytes=1024, file_delete_delay_ms=0) as log:
            for _ in range(12):
                log.append(b"x" * 200)
            pages = Pages(Survey([tmp_path], fs=fs), Checks(fs=fs))
            with pages.open(place) as view:
                fs.before(number, partial(log.delete_records, 8))
                if page == "live":
                    shown = pages.live(place)
                else:
                    looked = following._look(view, place, 1)
                    assert looked is not None
                    shown = looked
            offsets = [row["offset"] for row in shown["records"]]
            assert shown["end"] == 12
            # Those that were there when it began, or those that are left.
            assert offsets in (list(range(0 if page == "live" else 1, 12)), list(range(8, 12)))
            assert page == "live" or shown["left_out"] == 11 - len(offsets)
        if not fs.is_past():
            assert number
            return


def test_a_browser_that_leaves_frees_its_log(pages: Site) -> None:
    async def run() -> None:
        for _ in range(40):  # more than may follow at once
            async with aclosing(events(pages)) as blocks:
                await anext(blocks)

    asyncio.run(run())


def test_a_position_that_is_no_number_is_the_end(pages: Site, log: kstore.Log) -> None:
    async def run() -> None:
        async with aclosing(events(pages, f"{URL}?from=../..")) as blocks:
            await anext(blocks)
            log.append(b"two")
            assert data_of(await next_event(blocks))["end"] == 3

    asyncio.run(run())


# --- the server -------------------------------------------------------------------------------------------------------


def test_a_port_that_is_in_use_is_an_error(log: kstore.Log) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StorageError, match="in use"):
            serve([log.path], port=port, deep=False, announce=print)


@pytest.mark.long
def test_the_command_serves_its_pages_until_it_is_told_to_end(log: kstore.Log) -> None:
    log.close()
    command = [sys.executable, "-m", "kstore", "ui", str(log.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = re.findall(r"Open (http://127\.0\.0\.1:\d+/\?token=\S+)", process.stdout.readline())[0]
            first = address.partition("?")[0]
            opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with opener.open(address, timeout=SECONDS) as answer:
                assert answer.url == first
                assert "live" in answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="403") as refused:
                urllib.request.urlopen(first, timeout=SECONDS)
            refused.value.close()
            # A browser that follows a log does not keep the server alive.
            with opener.open(first.rstrip("/") + URL, timeout=SECONDS) as following:
                assert following.readline().startswith(b":")
                process.terminate()
                _, errors = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert errors == ""
    assert process.returncode == -signal.SIGTERM
