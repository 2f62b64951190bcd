"""Opens pages in a real browser, if the machine has one, and returns the result."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
SCHEMES = ("light", "dark")
# A telephone's and a desk's, in pixels.
WIDTHS = (390, 1280)
# axe-core's names for grave faults.
GRAVE = ("serious", "critical")


@dataclass(slots=True)
class Opened:
    """A page after its scripts ran."""

    # Its elements, as HTML.
    dom: str
    # What it wrote to the console, and the errors of its scripts.
    logged: list[str]
    # Links of the page itself (``#...``) that lead nowhere.
    dangling: list[str]
    # The grave faults that axe-core finds, for each scheme of colours.
    faults: list[str]
    # The addresses on this machine that the browser requested, answered or not.
    asked: list[str] = field(default_factory=list)


def opened(address: str, tmp_path: Path, *, audited: bool = False) -> Opened:
    """The page as a browser shows it. Without a browser, or without playwright, the test is skipped.

    ``audited``: look for faults with axe-core, which is slow on a long page.
    """
    traffic = tmp_path / "traffic.json"
    with empty_page(f"--log-net-log={traffic}") as page:
        seen = _seen(page, address, audited=audited)
    events = json.loads(traffic.read_text(encoding="utf-8"))["events"]
    asked = {event.get("params", {}).get("url", "") for event in events}
    seen.asked = sorted(url for url in asked if "127.0.0.1" in url or "leak" in url)
    return seen


def audited(addresses: Iterable[str]) -> list[str]:
    """Every fault that axe-core finds on the pages, grave or not, and pages that are wider than the screen: at each of
    WIDTHS, in each of SCHEMES. Without a browser the test is skipped."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    found = []
    with empty_page() as page:
        for address in addresses:
            page.goto(address, wait_until="load")
            page.wait_for_selector("[data-pending]", state="detached")
            for width, scheme in product(WIDTHS, SCHEMES):
                page.set_viewport_size({"width": width, "height": 900})
                page.emulate_media(color_scheme=scheme)
                place = f"{address} at {width}, {scheme}"
                wide = page.evaluate("document.scrollingElement.scrollWidth")
                if wide > width:
                    found.append(f"{place}: {wide} pixels wide")
                for fault in axe.run(page).response["violations"]:
                    node = fault["nodes"][0]
                    found.append(f"{place}: {fault['id']}: {node['html']}: {node['failureSummary']}")
    return found


@contextmanager
def empty_page(*arguments: str) -> Iterator[Any]:
    """An empty page of a browser; without one the test is skipped."""
    api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-quic", *arguments],
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        try:
            yield browser.new_page()
        finally:
            browser.close()


def _seen(page: Any, address: str, *, audited: bool) -> Opened:
    logged: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.goto(address, wait_until="load")
    # A page of ``kstore ui`` that is not complete fills itself in.
    page.wait_for_selector("[data-pending]", state="detached")
    dom = page.content()
    dangling = page.eval_on_selector_all(
        "a[href^='#']",
        "links => links.map(link => link.getAttribute('href')).filter(to => !document.getElementById(to.slice(1)))",
    )
    faults: list[str] = []
    if audited:
        axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            faults += [
                f"{scheme}: {fault['nodes'][0]['html']}: {fault['nodes'][0]['failureSummary']}"
                for fault in axe.run(page).response["violations"]
                if fault["impact"] in GRAVE
            ]
    return Opened(dom, logged, dangling, faults)
