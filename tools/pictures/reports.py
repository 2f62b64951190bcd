"""Draws parts of a report's page, about a small store made for this, in a headless browser: report-*.png.

The store's times, keys and sizes do not depend on the day or the machine; the browser's fonts do.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import kstore
from kstore.reports.document import Document
from kstore.reports.page import page
from tests.support.fakes.fake_clock import ManualClock

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WIDTH = 1180
DAY_MS = 86_400_000
BEGIN_MS = 1_767_225_600_000  # 2026-01-01


class Picture(NamedTuple):
    """A file, the CSS selectors of the parts that it shows, its height, and that of a ``details`` that it opens."""

    name: str
    shown: tuple[str, ...]
    height: int
    opened: str = ""


PICTURES = (
    Picture("report-overview", ("header", "#findings", "main > .tiles", "#bytes", "#times"), 1330),
    Picture("report-finding", ("#findings",), 640, "#findings .finding:first-of-type"),
    Picture("report-keys", ("#savings", "#keys"), 740),
    Picture("report-partition", ("#partitions",), 1150, ".row.damaged"),
)


def make_store(path: Path) -> None:
    """A store of five topics, written over ten days: many keys, a compacted topic, transactions, one damaged batch."""
    choose = random.Random(7)
    clock = ManualClock(BEGIN_MS)
    with kstore.open(path, durability="os", background=False, clock=clock, segment_bytes="256KiB") as store:
        store.create_topic("orders", partitions=4, compression_type="lz4")
        store.create_topic("clicks", partitions=3)
        store.create_topic("accounts", cleanup_policy="compact", segment_bytes="64KiB")
        store.create_topic("payments")
        for day in range(10):
            for hour in range(24):
                clock.advance(DAY_MS // 24)
                busy = 1 + round(9 * max(0, 1 - abs(hour - 15) / 8)) * (day % 7 < 5)
                _hour(store, choose, clock.now_ms(), busy)
            if day == 5:
                store.log("accounts").compact()
        _payments(store, clock)
    _damage(path / "orders-2")


def _hour(store: kstore.Store, choose: random.Random, now_ms: int, busy: int) -> None:
    for partition, size in enumerate((260, 180, 120, 60)):
        values = [b'{"order": %d, "state": "paid"}' % choose.randrange(10**6) * (size // 30) for _ in range(busy)]
        keys = [b"customer-%d" % (partition + 4 * int(choose.paretovariate(0.6)) % 9000) for _ in range(busy)]
        store.log("orders", partition).append_many(values, keys=keys, timestamps=[now_ms] * busy)
    for partition in range(3):
        for _ in range(busy):
            value = b"GET /item/%d %s" % (choose.randrange(500), choose.randbytes(60).hex().encode())
            store.log("clicks", partition).append(value, timestamp=now_ms)
    count = 4 * busy
    keys = [b"account-%d" % choose.randrange(400) for _ in range(count)]
    values = [b'{"balance": %d}' % choose.randrange(10**9) for _ in range(count)]
    store.log("accounts").append_many(values, keys=keys, timestamps=[now_ms] * count)


def _payments(store: kstore.Store, clock: ManualClock) -> None:
    """Transactions; the last one stays open until the store closes."""
    with store.producer(transactional_id="billing") as producer:
        producer.init_transactions()
        for number in range(90):
            clock.advance(40_000 + 90_000 * (number % 5))
            producer.begin_transaction()
            producer.send("payments", b"payment %d" % number, key=b"invoice-%d" % number)
            producer.flush()
            clock.advance(400 + 170 * (number % 13))
            if number % 8 == 5:
                producer.abort_transaction()
            else:
                producer.commit_transaction()


def _damage(log: Path) -> None:
    """Flips a bit of a batch in the middle of the log."""
    segment = sorted(log.glob("*.log"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0x04
    segment.write_bytes(data)


def document(root: Path) -> Document:
    """The report on the store in ``root``, as if made a while after the last record."""
    made = kstore.report(root, deep=True).document
    made["created"] = made["total"]["last_timestamp"] + 3_600_000
    return made


def shoot(browser: str, html: str, picture: Picture, target: Path) -> None:
    """Writes the parts of the page that ``picture`` names to ``target``."""
    rest = "".join(f":not({selector.rpartition('> ')[2]})" for selector in picture.shown)
    opened = (
        f"{picture.opened}::details-content {{ content-visibility: visible; height: auto }}" if picture.opened else ""
    )
    style = f"<style>main > *{rest} {{ display: none }} main {{ padding-top: 16px }} {opened}</style></head>"
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "page.html")
        path.write_text(html.replace("</head>", style), encoding="utf-8")
        subprocess.run(
            [
                browser,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={directory}/profile",
                f"--window-size={WIDTH},{picture.height}",
                f"--screenshot={target}",
                path.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main(images: Path) -> int:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        return 1
    # The page shows the path as it was given.
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        make_store(Path("data"))
        html = page(document(Path("data")))
    for picture in PICTURES:
        shoot(browser, html, picture, images / f"{picture.name}.png")
        print(images / f"{picture.name}.png")
    return 0
