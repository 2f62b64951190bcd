"""``_repr_html_`` of logs, stores and queues: small, escaped, cheap, and never an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

import kstore
from kstore.rules.notebook import PIECES_MAX, TEXT_MAX, DrawnSegment, html_table

HOSTILE = "<script>alert(1)<|\"'&\u202e\x1b"


class Elements(HTMLParser):
    """Reads a fragment, and refuses one that is not well-formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_log_shows_its_offsets_and_segments(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os", segment_bytes=1024) as log:
        for _ in range(4):
            log.append(b"v" * 800)
        page = Elements(log._repr_html_())
        assert page.seen.count("rect") == 4
        assert {"0 to 4", "4"} < set(page.texts)
    closed = Elements(log._repr_html_())
    assert "closed" in closed.texts
    assert "svg" not in closed.seen
    with kstore.Log(tmp_path / "t-0", read_only=True) as reader:
        assert Elements(reader._repr_html_()).seen.count("rect") == 4


def test_a_log_whose_segment_is_gone_has_a_table_without_a_map(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os") as log:
        log.append(b"v")
    with kstore.Log(tmp_path / "t-0", read_only=True) as reader:
        for path in (tmp_path / "t-0").glob("*.log"):
            path.unlink()
        assert "table" in Elements(reader._repr_html_()).seen


def test_a_log_that_could_not_be_opened_shows_that_it_is_closed(tmp_path: Path) -> None:
    log = kstore.Log.__new__(kstore.Log)
    with pytest.raises(kstore.LogNotFoundError):
        log.__init__(tmp_path / "none", read_only=True)  # type: ignore[misc]  # what a debugger may hold
    assert "closed" in Elements(log._repr_html_()).texts


def test_a_store_shows_its_topics_and_opens_no_log(tmp_path: Path) -> None:
    with kstore.open(tmp_path / HOSTILE, durability="os", background=False) as store:
        for number in range(25):
            store.create_topic(f"t{number:02}", partitions=2)
        assert "not open" in Elements(store._repr_html_()).texts
        store.log("t00").append(b"v")
        assert len(store.status().open_logs) == 1
        page = Elements(store._repr_html_())
        assert len(store.status().open_logs) == 1
        assert page.seen.count("rect") == 1
        assert {"t00", "t19", "5 more"} <= set(page.texts)
        assert "script" not in page.seen
    assert "closed" in Elements(store._repr_html_()).texts


def test_a_queue_shows_its_items_and_waits_for_no_lock(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        queue = store.queue("jobs")
        for _ in range(3):
            queue.put(b"v")
        with queue.get():
            texts = Elements(queue._repr_html_()).texts
            assert texts[texts.index("leased") + 1] == "1"
            assert "0 to 3" in texts
            assert repr(queue) == "Queue('jobs', 1 leased)"
        with ThreadPoolExecutor(1) as pool, queue._of_process.lock:
            assert "leased" not in Elements(pool.submit(queue._repr_html_).result(timeout=60)).texts
    assert "closed" in Elements(queue._repr_html_()).texts
    assert repr(queue) == "Queue('jobs', closed)"


def test_texts_are_escaped_and_cut() -> None:
    text = html_table(HOSTILE, [(HOSTILE, "x" * 5000)])
    page = Elements(text)
    assert "script" not in page.seen
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert len(text) < 5000
    assert "x" * TEXT_MAX in text


def test_a_map_stays_small_whatever_the_number_of_segments() -> None:
    text = html_table("log", [], [DrawnSegment(number, 10, number == 9999) for number in range(10_000)])
    assert Elements(text).seen.count("rect") <= PIECES_MAX
    assert 'aria-label="10000 segments"' in text
