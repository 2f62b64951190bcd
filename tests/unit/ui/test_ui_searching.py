"""``kstore ui`` searches records: what it finds comes as events, and no search outlives its reader or its limits."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import kstore
from kstore.ui.places import Place
from kstore.ui.search_pages import Limits
from kstore.ui.searching import searched
from kstore.upkeep.search import Pattern
from tests.support.lives.report_parts import hidden_characters
from tests.support.lives.ui_parts import Site, site
from tests.unit.ui.test_ui_following import events
from tests.unit.ui.test_ui_pages import assert_harmless

HOSTILE = '<script>alert("x")</script>\u202e'
# Takes longer than the world has existed.
ENDLESS = quote("(a+)+$")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("searched")
    for partition in range(2):
        with kstore.Log(path / f"orders-{partition}") as log:
            log.append_many([b"order %d of customer-%d" % (number, number % 3) for number in range(30)])
    with kstore.Log(path / "clicks-0") as log:
        log.append(HOSTILE.encode(), key=b"customer-1")
        log.append(b"a" * 60 + b"!")
    with kstore.Log(path / "__consumer_offsets-0") as log:
        log.append(b"customer-1")
    return path


@pytest.fixture(scope="module")
def pages(root: Path) -> Iterator[Site]:
    with site([root]) as made:
        yield made


def places(root: Path) -> list[Place]:
    return [
        Place(path, root, 0, *parts)
        for path, parts in ((root / "orders-0", ("orders", 0)), (root / "orders-1", ("orders", 1)))
    ]


async def ended(blocks: AsyncIterator[str]) -> list[dict[str, Any]]:
    """All events, up to the one that ends the search."""
    found = []
    async for block in blocks:
        for line in block.splitlines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
    assert [event["ended"] for event in found] == [False] * (len(found) - 1) + [True]
    return found


def search(pages: Site, query: str) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        async with asyncio.timeout(60), aclosing(events(pages, f"/search/events?{query}")) as blocks:
            return await ended(blocks)

    return asyncio.run(run())


def records(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(record["log"], record["offset"]) for event in found for record in event["records"]]


# --- what is found ----------------------------------------------------------------------------------------------------


def test_what_is_found_leads_to_its_record(pages: Site) -> None:
    found = search(pages, "q=customer-1")
    expected = [(f"orders-{partition}", number) for partition in range(2) for number in range(1, 30, 3)]
    assert sorted(records(found)) == sorted([("clicks-0", 0), *expected])
    assert "21 records found" in found[-1]["text"]
    assert "Everything was searched." in found[-1]["text"]
    answer = pages.get(found[0]["records"][0]["url"])
    assert answer.status == 303
    pages.page(answer.headers["location"])


@pytest.mark.parametrize(
    ("within", "scope", "count"),
    [
        ("", "all logs", 3),
        ("0/orders", "topic orders", 2),
        ("0/clicks/0", "clicks-0", 1),
        ("0/__consumer_offsets", "topic __consumer_offsets", 1),
    ],
)
def test_a_search_stays_in_its_topic_or_log(pages: Site, within: str, scope: str, count: int) -> None:
    found = pages.json(f"/search.json?q=customer-1&in={within}")
    assert (found["scope"], found["logs"]) == (scope, count)


def test_the_engine_is_that_of_grep(root: Path) -> None:
    for pattern, count in (
        (Pattern(b"ORDER 1 "), 0),
        (Pattern(b"ORDER 1 ", ignore_case=True), 2),
        (Pattern(rb"order 1?7 ", is_regex=True), 4),
        (Pattern(b"customer", fields=("key",)), 0),
    ):
        assert len(records(list(searched(pattern, places(root), 0, Limits())))) == count, pattern


def test_hostile_records_and_patterns_disturb_no_event_and_no_page(pages: Site, root: Path) -> None:
    clicks = Place(root / "clicks-0", root, 0, "clicks", 0)
    found = list(searched(Pattern(HOSTILE[:8].encode()), [clicks], 0, Limits()))
    (value,) = (record["value"] for event in found for record in event["records"])
    assert value.startswith("<script>")
    assert hidden_characters(value) == set()
    for text in (HOSTILE, '"><img src=x onerror=alert(1)>', "{{7*7}}", "\x00", "\ud800", "é" * 300):
        query = quote(text.encode("utf-8", "surrogatepass"))
        seen = assert_harmless(pages.page(f"/search?q={query}"))
        assert "49" not in seen.text


# --- what ends it -----------------------------------------------------------------------------------------------------


def test_a_search_ends_after_so_many_records_or_bytes(root: Path) -> None:
    *_, last = searched(Pattern(b"order"), places(root), 0, Limits(records=7))
    assert (last["found"], "ends after 7 records" in last["text"]) == (7, True)
    *_, last = searched(Pattern(b"order"), places(root), 0, Limits(size=1))
    assert (last["found"], "ends after" in last["text"]) == (30, True)


def test_a_regular_expression_that_would_never_end_is_ended(root: Path) -> None:
    with site([root], limits=Limits(seconds=0.3)) as pages:
        (last,) = search(pages, f"q={ENDLESS}&mode=regex&in=0/clicks")
        assert "The search ends after 0.3 seconds." in last["text"]
    assert multiprocessing.active_children() == []


def test_a_new_search_ends_the_one_before(pages: Site) -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            first = asyncio.create_task(ended(events(pages, f"/search/events?q={ENDLESS}&mode=regex&in=0/clicks")))
            while not multiprocessing.active_children():
                await asyncio.sleep(0.001)
            second = await ended(events(pages, "/search/events?q=customer-1"))
            assert second[-1]["found"] == 21
            assert "Another search has begun." in (await first)[-1]["text"]

    asyncio.run(run())
    assert multiprocessing.active_children() == []


def test_a_search_ends_when_its_browser_leaves(pages: Site) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), aclosing(events(pages, f"/search/events?q={ENDLESS}&mode=regex")) as blocks:
            async for block in blocks:
                if "nothing new" in block:
                    break
            assert multiprocessing.active_children()

    asyncio.run(run())
    assert multiprocessing.active_children() == []


def test_a_process_that_the_system_ends_ends_the_search(pages: Site) -> None:
    async def run() -> list[dict[str, Any]]:
        async with asyncio.timeout(60):
            asked = asyncio.create_task(ended(events(pages, f"/search/events?q={ENDLESS}&mode=regex")))
            while not (children := multiprocessing.active_children()):
                await asyncio.sleep(0.001)
            children[0].kill()
            return await asked

    assert "ended early" in asyncio.run(run())[-1]["text"]


# --- what happens to logs meanwhile -----------------------------------------------------------------------------------


def test_damage_is_left_out_and_counted_and_a_log_that_is_gone_is_named(tmp_path: Path) -> None:
    for partition in range(2):
        with kstore.Log(tmp_path / f"orders-{partition}") as log:
            for _ in range(3):
                log.append(b"order")
    path = tmp_path / "orders-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    some = [*places(tmp_path), Place(tmp_path / "gone-0", tmp_path, 0, "gone", 0)]
    *_, last = searched(Pattern(b"order"), some, 0, Limits())
    assert (last["found"], "1 damaged places were left out" in last["text"]) == (5, True)
    assert "Not searched: " in last["text"]
    assert "gone-0" in last["text"]


def test_records_that_are_deleted_while_they_are_searched_are_left_out(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "orders-0", segment_bytes=2000, file_delete_delay_ms=0) as log:
        for _ in range(200):
            log.append(b"order" * 20)
        running = searched(Pattern(b"order"), places(tmp_path)[:1], 0, Limits())
        first = next(running)
        assert first["records"][0]["offset"] == 0
        log.delete_records(150)
        found = records([first, *running])
    assert found == sorted(set(found))
    assert found[-1] == ("orders-0", 199)


# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("q=(&mode=regex", "regular expression"),
        ("q=" + quote("a{99999999999999999999}") + "&mode=regex", "regular expression"),
        ("q=" + "(" * 900 + "&mode=regex", "regular expression"),
        ("q=xyz&mode=hex", "hexadecimal"),
        ("q=" + "x" * 1001, "1001 characters, expected at most 1000"),
    ],
)
def test_what_cannot_be_searched_for_is_said(pages: Site, query: str, problem: str) -> None:
    found = pages.json(f"/search.json?{query}")
    assert problem in found["problem"]
    assert found["events"] is None
    assert "data-search" not in pages.page(f"/search?{query}")
    assert pages.get(f"/search/events?{query}").status == 404


@pytest.mark.parametrize("within", ["0", "0/nothing", "9/orders", "0/orders/9", "0/orders/0/0", "../orders", "/", "//"])
def test_an_unknown_place_is_not_searched(pages: Site, within: str) -> None:
    for url in ("/search", "/search.json", "/search/events"):
        assert pages.get(f"{url}?q=x&in={quote(within)}").status == 404


def test_an_empty_form_searches_nothing_and_unknown_choices_are_the_first(pages: Site) -> None:
    assert pages.json("/search.json")["events"] is None
    found = pages.json("/search.json?q=x&mode=sql&field=passwords&case=1")
    assert (found["mode"], found["field"], found["case"]) == ("text", "", "1")
    assert found["events"]


@pytest.mark.parametrize("url", ["/", "/logs/0/orders", "/logs/0/orders/0"])
def test_a_page_has_a_box_for_what_it_shows(pages: Site, url: str) -> None:
    assert f'name="in" value="{url.removeprefix("/logs/").strip("/")}"' in pages.page(url)
