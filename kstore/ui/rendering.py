"""Makes pages of models: Jinja2 with the filters, escaping, parts and drawings of a report, and the pictures here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kstore.reports import drawing
from kstore.reports.rendering import parts, templates
from kstore.rules.notebook import visible
from kstore.ui import pictures
from kstore.ui.pages import Model

# A template's name and a model -> the page.
Render = Callable[[str, Model], str]

SHARED = ("finding", "hex_view", "distribution", "over_time", "producers", "recovery", "transactions")


def renderer() -> Render:
    """Raises: MissingExtraError without Jinja2."""
    environment, markup = templates()
    import jinja2

    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("kstore.ui"), environment.loader])
    environment = environment.overlay(loader=loader)
    shared = parts(environment)
    drawn: dict[str, Any] = {name: getattr(shared, name) for name in SHARED}
    drawn |= {
        "treemap": lambda page: markup(drawing.treemap(page["logs"], _links(page["logs"]))),
        "strip": lambda log, most: markup(drawing.strip(log, most)),
        "segment_map": lambda log: markup(drawing.segment_map(log, _placed(log))),
        "segment_strip": lambda page: markup(pictures.segment_strip(page)),
        "window_strip": lambda page: markup(pictures.window_strip(page)),
        "path_of_lookup": lambda steps: markup(pictures.path_of_lookup(steps)),
        "lines": lambda text: markup("\n").join([visible(line) for line in text.expandtabs(4).split("\n")]),
    }

    def render(name: str, model: Model) -> str:
        text: str = environment.get_template(f"{name}.html.j2").render(page=model, **drawn)
        return text

    return render


def _links(logs: list[Model]) -> dict[int, str]:
    return {number: log["url"] for number, log in enumerate(logs)}


def _placed(log: Model) -> list[Model]:
    """The damage whose position in a ``.log`` is known."""
    damages = [each for each in log["findings"] if each["severity"] == "damage" and "position" in each]
    return [each for each in damages if each["path"].endswith(".log")]
