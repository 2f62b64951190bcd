"""``kstore ui`` in a real browser: it gets access, and hostile records and names neither run nor request anything."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import kstore
from tests.support.harness.browser_parts import audited, empty_page, opened
from tests.support.harness.golden_data import golden_root
from tests.support.lives.report_parts import Elements, hidden_characters, hostile_text
from tests.support.lives.ui_parts import LetIn, Site, served, site

RECORDS_OF_A_BATCH = 100
BATCHES = 6

pytestmark = pytest.mark.long


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
                    await send({**message, "body": message["body"].replace(b"<main ", b"<main data-pending ")})

            is_changed = scope["path"] == "/" and bool(incomplete)
            if is_changed:
                incomplete.pop()
            await LetIn(pages)(scope, receive, send_changed if is_changed else send)

        with served(app) as address:
            seen = opened(address, tmp_path)
    assert incomplete == []
    assert seen.logged == []
    assert "<main " in seen.dom
    assert "data-pending" not in seen.dom


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
def test_pages_about_a_brokers_data_have_no_dangling_link(tree: str, tmp_path: Path) -> None:
    with site([golden_root() / tree]) as pages, served(LetIn(pages)) as address:
        topic = pages.json("/overview.json")["topics"][0]
        partition = pages.json(topic["url"] + ".json")["partitions"][0]
        segment = pages.json(partition["url"] + ".json")["segments"][0]
        batch = pages.json(segment["url"] + ".json")["batches"][0]
        for url in ("/", topic["url"], partition["url"], segment["url"], batch["url"]):
            seen = opened(address + url, tmp_path)
            assert seen.logged == [], url
            assert seen.dangling == [], url


def addresses(pages: Site, topic: str) -> list[str]:
    """One page of each kind about a topic."""
    partition = pages.json(topic + ".json")["partitions"][0]["url"]
    segment = pages.json(partition + ".json")["segments"][0]["url"]
    found = pages.json(segment + ".json")
    batches = [each["url"] for each in found["batches"][:1]]
    records = [each["url"] for batch in batches for each in pages.json(batch + ".json")["records"][:1]]
    damages = [each["url"] for each in found["damages"][:1]]
    offset = found["batches"][0]["first"]
    listed = [topic, partition, f"{partition}/live", f"{partition}/explain?to={offset}", segment]
    return [*listed, *batches, *damages, *records]


def make_store(root: Path) -> None:
    """Long names and values, a group, a queue, and a transaction."""
    topic = "orders-with-a-name.that-is-longer-than.a-telephone-is-wide"
    with kstore.open(root) as store:
        store.create_topic(topic)
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(120):
                producer.send(topic, b"x" * 300, key=b"k%d" % number, headers=[("h" * 60, b"v" * 60)])
            producer.commit_transaction()
        store.consumer_offsets.commit("billing-" * 9, {kstore.TopicPartition(topic, 0): 3})
        store.queue("jobs").put(b"job")


def test_no_page_is_wider_than_a_telephone_and_axe_finds_nothing(tmp_path: Path) -> None:
    for tree, name in (("damaged", "flipped-crc-0"), ("clean", "txn-open-0")):
        shutil.copytree(golden_root() / tree / name, tmp_path / "broker" / name)
    make_store(tmp_path / "store")
    with site([tmp_path / "broker", tmp_path / "store"], deep=True) as pages, served(LetIn(pages)) as address:
        document = pages.json("/overview.json")
        wanted = ["/", "/nothing", "/search?q=x", "/search?q=(&mode=regex", document["group_list"][0]["url"]]
        topics = [row["url"] for row in document["topics"] if not row["topic"].startswith(("__", "jobs"))]
        wanted += [url for topic in topics for url in addresses(pages, topic)]
        assert audited(address + url for url in dict.fromkeys(wanted)) == []


# --- the keyboard, forms and scripts ----------------------------------------------------------------------------------


def logged_by(page: Any) -> list[str]:
    """What the page will write to the console, and the errors of its scripts."""
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    return logged


def test_the_keyboard_skips_to_the_content_reaches_every_link_and_is_never_caught(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "data" / "orders-0", index_interval_bytes=0) as log:
        for _ in range(20):
            log.append(b"x" * 100)
    with site([tmp_path / "data"]) as pages, served(LetIn(pages)) as address, empty_page() as page:
        for url in ("/", "/logs/0/orders/0", "/logs/0/orders/0/0", "/logs/0/orders/0/0/0", "/logs/0/orders/0/0/0/0"):
            page.goto(address + url)
            page.wait_for_selector("[data-pending]", state="detached")
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.className") == "skip"
            assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
            page.keyboard.press("Enter")
            assert page.evaluate("document.activeElement.tagName") == "MAIN"
            page.evaluate("document.activeElement.blur()")
            page.goto(address + url)
            wanted = page.evaluate(
                "new Set([...document.querySelectorAll('a, button, input')]"
                ".filter(each => each.tabIndex >= 0 && each.checkVisibility() && each.type !== 'hidden')).size"
            )
            reached = 0
            for _ in range(wanted + 20):
                page.keyboard.press("Tab")
                tag = page.evaluate("document.activeElement.tagName")
                if tag == "BODY":
                    break
                reached += tag.upper() in ("A", "BUTTON", "INPUT")
                assert page.evaluate("document.activeElement.matches(':focus-visible')"), url
            else:
                pytest.fail(f"{url}: the keyboard does not leave the page")
            assert reached == wanted, url


def test_a_form_of_a_page_begins_a_check_and_the_page_shows_what_it_finds(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "data" / "orders-0") as log:
        log.append(b"one" * 100)
    segment = tmp_path / "data" / "orders-0" / f"{0:020}.log"
    segment.write_bytes(segment.read_bytes().replace(b"oneone", b"oneOne", 1))
    with site([tmp_path / "data"]) as pages, served(LetIn(pages)) as address, empty_page() as page:
        logged = logged_by(page)
        page.goto(f"{address}/logs/0/orders/0")
        assert "payloads not" in page.text_content("#checked")
        page.click("text=Check every byte")
        page.wait_for_selector("#checked.bytes")
        assert page.url == f"{address}/logs/0/orders/0"
        assert "damage: 1" in page.text_content("main")
    assert logged == []


def test_a_search_shows_what_it_finds_and_stops_when_it_is_told_to(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "data" / "orders-0") as log:
        log.append_many([b"<b>one</b>", b"two", b"a" * 60 + b"!"])
    with site([tmp_path / "data"]) as pages, served(LetIn(pages)) as address, empty_page() as page:
        logged = logged_by(page)
        page.goto(f"{address}/logs/0/orders/0")
        page.fill("input[name=q]", "<b>")
        page.click("text=Search >> nth=-1")
        page.wait_for_selector("#state:has-text('Everything was searched')")
        assert page.locator("#records tr").count() == 1
        assert "<b>one</b>" in page.text_content("#records")
        page.click("#records a")
        assert page.url == f"{address}/logs/0/orders/0/0/0/0"
        page.goto(f"{address}/search?q=%28a%2B%29%2B%24&mode=regex")
        page.click("#stop")
        assert "The search was stopped." in page.text_content("#state")
        assert not page.is_visible("#stop")
    assert logged == []
