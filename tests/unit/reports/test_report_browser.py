"""A report in a real browser: no page is wider than the screen or has a fault, and it is sorted without a script."""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore.reports.report import Report
from tests.support.harness.browser_parts import audited, empty_page
from tests.support.harness.golden_data import golden_root
from tests.support.lives.report_parts import FRAGMENTS

pytestmark = pytest.mark.long

PARTITIONS = 63


def saved(report: Report, tmp_path: Path) -> str:
    pytest.importorskip("jinja2")
    report.save(tmp_path / "page.html")
    return (tmp_path / "page.html").as_uri()


def many_logs(root: Path) -> Path:
    """63 logs that differ in size, of which two small ones are damaged."""
    for number in range(PARTITIONS):
        with kstore.Log(root / f"topic-{number}", durability="os") as log:
            log.append_many([b"v" * (100 + number)] * 3)
    for number in (5, 7):
        segment = next((root / f"topic-{number}").glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[70] ^= 1
        segment.write_bytes(data)
    return root


def empty(root: Path) -> Path:
    with kstore.open(root, background=False) as store:
        store.create_topic("empty", partitions=1)
        store.log("empty")
    return root


def unusual_names(root: Path) -> Path:
    names = ["long" * 60, "without-a-break-" * 12, *(f"{text[:40].replace('/', '|')}" for text in FRAGMENTS[:6])]
    for number, name in enumerate(names):
        with kstore.Log(root / f"{name}-{number}", durability="os") as log:
            log.append_many([b"v"] * 3)
        if number % 2:
            segment = next((root / f"{name}-{number}").glob("*.log"))
            segment.write_bytes(segment.read_bytes()[:-1] + b"X")
    return root


@pytest.mark.parametrize("make", [many_logs, empty, unusual_names])
def test_a_page_fits_every_screen_and_has_no_fault(tmp_path: Path, make: object) -> None:
    assert callable(make)
    assert audited([saved(kstore.report(make(tmp_path / "data"), deep=True), tmp_path)]) == []


@pytest.mark.parametrize("tree", ["clean", "damaged"])
def test_a_page_about_a_broker_s_data_fits_every_screen_and_has_no_fault(tmp_path: Path, tree: str) -> None:
    assert audited([saved(kstore.report(golden_root() / tree, deep=True), tmp_path)]) == []


def test_a_page_about_many_partitions_is_short_sorted_and_filtered(tmp_path: Path) -> None:
    address = saved(kstore.report(many_logs(tmp_path / "data"), deep=True), tmp_path)

    def names() -> list[str]:
        rows = tab.locator(".row:visible")
        tops = [
            (rows.nth(at).bounding_box()["y"], rows.nth(at).locator("summary b").inner_text())
            for at in range(rows.count())
        ]
        return [name for _, name in sorted(tops)]

    with empty_page() as tab:
        tab.goto(address)
        assert tab.evaluate("document.scrollingElement.scrollHeight") < 6000
        damaged_first = ["topic-7", "topic-5", *[f"topic-{number}" for number in range(62, 44, -1)]]
        assert names() == damaged_first
        tab.check("#by-size")
        assert names() == [f"topic-{number}" for number in range(62, 42, -1)]
        tab.check("#by-name")
        assert len(names()) == 20
        tab.check("#all")
        assert len(names()) == PARTITIONS
        tab.check("#only-damaged")
        assert sorted(names()) == ["topic-5", "topic-7"]
        # A box of the picture leads to a row that is folded, and not among the first.
        tab.check("#some")
        tab.check("#by-damage")
        tab.goto(f"{address}#{tab.locator('.row', has_text='topic-9').locator('> div').get_attribute('id')}")
        assert "topic-9" in names()
        assert tab.locator(".row", has_text="topic-9").get_attribute("open") is not None


def test_tiles_leave_no_hole_at_any_width(tmp_path: Path) -> None:
    address = saved(kstore.report(many_logs(tmp_path / "data"), deep=True), tmp_path)
    with empty_page() as tab:
        tab.goto(address)
        for width in range(320, 1400, 60):
            tab.set_viewport_size({"width": width, "height": 900})
            rows = tab.evaluate(
                """[...document.querySelectorAll('main > .tiles')].map(tiles => {
                    const right = tiles.getBoundingClientRect().right
                    const rows = {}
                    for (const tile of tiles.children) {
                        const box = tile.getBoundingClientRect()
                        rows[box.top] = Math.max(rows[box.top] || 0, box.right)
                    }
                    return Object.values(rows).map(end => Math.round(right - end))
                }).flat()"""
            )
            assert set(rows) == {0}, width
