"""SVG that is readable on light and on dark pages: a picture brings its own background.

GitHub and package indexes show a picture by itself, without the page's style or fonts: the browser's setting chooses
the colours.
"""

from __future__ import annotations

from html import escape

STYLE = """
.back { fill: #ffffff; stroke: #d0d7de } .ink { fill: #1f2328 } .soft { fill: #59636e }
.own { fill: #0f766e } .other { fill: #c4ccd4 } .behind { fill: #9a4b00 }
text { font: 13px ui-sans-serif, system-ui, "Segoe UI", "DejaVu Sans", sans-serif } .bold { font-weight: 600 }
.right { text-anchor: end }
@media (prefers-color-scheme: dark) {
  .back { fill: #0d1117; stroke: #3d444d } .ink { fill: #f0f6fc } .soft { fill: #9198a1 }
  .own { fill: #2dd4bf } .other { fill: #4b5563 } .behind { fill: #f0b46c }
}
"""


def text(x: float, y: float, words: str, classes: str = "ink") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{classes}">{escape(words)}</text>'


def picture(width: int, height: int, description: str, parts: list[str], style: str = STYLE) -> str:
    """The file: ``parts`` on a background with a thin border. The description is for those who do not see it."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" aria-labelledby="it">',
            f'<title id="it">{escape(description)}</title>',
            f"<style>{style}</style>",
            f'<rect class="back" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )
