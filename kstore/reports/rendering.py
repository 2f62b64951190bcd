"""Jinja2's environment for pages about logs: its filters, its escaping, and the parts that several pages have.

Jinja2 escapes everything that is not one of our own pictures; ``visible`` first replaces what escaping leaves alone,
such as characters that reverse text.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from html import escape
from typing import Any

from kstore.errors import MissingExtraError
from kstore.reports import drawing
from kstore.rules.notebook import visible
from kstore.upkeep.numbers import count_text, duration_text, size_text, time_text
from kstore.upkeep.observed.timeline import Bucket
from kstore.upkeep.verify.findings import ADVICE, advice_group

# For each log.
PRODUCERS_MAX = 10
HEX_ROW_BYTES = 16
NO_ADVICE = "-"


def templates() -> tuple[Any, Any]:
    """Jinja2's environment, and the type of a text that is not to be escaped.

    Raises: MissingExtraError if Jinja2 is not installed.
    """
    try:
        import jinja2  # noqa: F401  # what `_environment` needs
        import markupsafe
    except ModuleNotFoundError as error:
        raise MissingExtraError("a report as a page needs Jinja2: pip install 'kstore[report]'") from error
    return _environment(), markupsafe.Markup


@cache
def _environment() -> Any:
    """Compiles each template once in a process."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("kstore.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=False,
        finalize=partial(_finalized, markupsafe.Markup),
    )
    environment.filters |= {
        "amount": lambda value, in_bytes: size_text(value) if in_bytes else count_text(value),
        "count": count_text,
        "duration": duration_text,
        "file_name": lambda path: path.rpartition("/")[2],
        "in_directory": lambda path: "/".join(path.split("/")[-2:]),
        "minute": partial(time_text, form="%Y-%m-%d %H:%M"),
        "percent": lambda share: f"{100 * share:.1f} %",
        "shortened": _shortened,
        "size": size_text,
        "time": time_text,
    }
    return environment


def parts(environment: Any) -> Any:
    """The macros of ``parts.html.j2`` as functions: ``finding``, ``hex_view``, ``producers`` and so on."""
    import markupsafe

    markup = markupsafe.Markup
    return environment.get_template("parts.html.j2").make_module(
        {
            "advice": lambda found: (
                ADVICE.get(advice_group(found["kind"]), NO_ADVICE) if "repair" in found else NO_ADVICE
            ),
            "hex_lines": lambda view: markup(_hex_lines(view)),
            "timeline": lambda fields, titled: markup(drawing.timeline(fields, titled=titled)),
            "ends": lambda fields: markup(drawing.transactions(fields)),
            "busiest_of": lambda fields: max(map(Bucket._make, fields["buckets"]), key=lambda each: each.size),
            "producers_max": PRODUCERS_MAX,
            "histogram": lambda bars, title, in_bytes: markup(drawing.histogram(bars, title, in_bytes=in_bytes)),
        }
    )


def _finalized(markup: type, value: object) -> object:
    """What is printed for ``value``, before it is escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, markup) else value


def _shortened(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


# --- bytes ------------------------------------------------------------------------------------------------------------


def _hex_lines(view: dict[str, Any]) -> str:
    """Rows of bytes with their position, fields in turn with and without a background."""
    data = bytes.fromhex(view["bytes"])
    css = [""] * len(data)
    for number, field in enumerate(view["fields"]):
        start = field["position"] - view["position"]
        kind = "wrong" if field["wrong"] else "even" if number % 2 == 0 else ""
        css[start : start + field["size"]] = [kind] * field["size"]
    return "".join(f"{line}\n" for line in _rows(data, css, view["position"]))


def _rows(data: bytes, css: list[str], position: int) -> Iterator[str]:
    for at in range(0, len(data), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        cells = []
        for number, byte in enumerate(row):
            gap = "" if number == 0 else " "
            kind, before = css[at + number], css[at + number - 1] if number else ""
            # The gap belongs to the field if its neighbour does too.
            cell = f'<b class="{kind}">{byte:02x}</b>' if kind else f"{byte:02x}"
            cells.append(f'<b class="{kind}"> {byte:02x}</b>' if gap and kind and kind == before else gap + cell)
        text = "".join([chr(byte) if 32 <= byte < 127 else "·" for byte in row])
        padding = "   " * (HEX_ROW_BYTES - len(row))
        yield f'<span class="soft">{position + at:>10}</span>  {"".join(cells)}{padding}  {escape(text)}'
