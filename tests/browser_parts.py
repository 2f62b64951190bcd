"""Opens pages in a real browser, if the machine has one, and returns the result."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SCHEMES", "Opened", "opened"]

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
SCHEMES = ("light", "dark")
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
    api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed")
    traffic = tmp_path / "traffic.json"
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-quic", f"--log-net-log={traffic}"],
            env={name: value for name, value in os.environ.items() if name != "LD_PRELOAD"},
        )
        try:
            seen = _seen(browser.new_page(), address, audited=audited)
        finally:
            browser.close()
    events = json.loads(traffic.read_text(encoding="utf-8"))["events"]
    asked = {event.get("params", {}).get("url", "") for event in events}
    seen.asked = sorted(url for url in asked if "127.0.0.1" in url or "leak" in url)
    return seen


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
