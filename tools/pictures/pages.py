"""The pictures of ``kstore ui``: docs/images/ui-*.png, pages about the same small store as in those of a report."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from kstore.ui.app import guarded_app
from kstore.ui.checking import Checks
from kstore.ui.survey import Survey
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.ui_parts import LetIn, Site, served
from tools.pictures.reports import BROWSERS, make_store

NOW_MS = 1_768_176_000_000  # 2026-01-12
SECONDS = 120


class Picture(NamedTuple):
    """A file, the page, and the size of the window; ``awaited`` is what appears last."""

    name: str
    url: str
    width: int = 1180
    height: int = 900
    awaited: str = "main"


PICTURES = (
    Picture("ui-log", "/logs/0/orders/2", height=760),
    Picture("ui-segment", "/logs/0/orders/2/0", height=760),
    Picture("ui-search", "/search?q=invoice-7&in=0/payments", height=560, awaited="#state:has-text('Everything')"),
)


def main(images: Path) -> int:
    """Draws them in a headless browser, if there is one."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print(f"none of {', '.join(BROWSERS)} is installed", file=sys.stderr)
        return 1
    # The pages show the path as it was given.
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        make_store(Path("data"))
        for path in _drawn(browser, Path("data"), images):
            print(path)
    return 0


def _drawn(program: str, root: Path, images: Path) -> list[Path]:
    """Draws pages about the store in ``root`` after every byte of it was checked; returns the files."""
    from playwright.sync_api import sync_playwright

    clock = ManualClock(NOW_MS)
    survey, checks = Survey([root], clock=clock), Checks(bytes_per_second=None, clock=clock)
    app = guarded_app(survey, checks, port=0, is_stopping=lambda: False)
    survey.start()
    try:
        assert survey.wait(SECONDS)
        checks.ask(survey.places.by_key.values())
        assert checks.wait(SECONDS)
        pages = Site(app, survey, checks)
        with served(LetIn(pages)) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=program,
                args=["--no-sandbox", "--disable-quic"],
                env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
            )
            try:
                return [_shoot(browser, address, picture, images) for picture in PICTURES]
            finally:
                browser.close()
    finally:
        checks.stop()
        survey.stop()


def _shoot(browser: Any, address: str, picture: Picture, images: Path) -> Path:
    target = images / f"{picture.name}.png"
    page = browser.new_page(viewport={"width": picture.width, "height": picture.height})
    page.goto(address + picture.url)
    page.wait_for_selector(picture.awaited)
    page.screenshot(path=target)
    page.close()
    return target
