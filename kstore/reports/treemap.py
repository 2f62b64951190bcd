"""Squarified treemaps: rectangles whose areas are in proportion to sizes, as close to squares as they come.

From Bruls, Huizing, van Wijk: Squarified Treemaps (2000).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle; ``x`` and ``y`` are its upper left corner."""

    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """A rectangle in ``box`` for each of ``sizes``, which decrease and are above 0."""
    boxes: list[Box] = []
    left = sum(sizes)
    at = 0
    while at < len(sizes):
        area = box.width * box.height / left
        side = min(box.width, box.height)
        count = 1
        while at + count < len(sizes) and _worst(sizes[at : at + count + 1], area, side) <= _worst(
            sizes[at : at + count], area, side
        ):
            count += 1
        row = sizes[at : at + count]
        box = _lay(row, sum(row) / left, box, boxes)
        left -= sum(row)
        at += count
    return boxes


def _worst(row: Sequence[float], area: float, side: float) -> float:
    """The largest ratio of sides in a row along ``side``."""
    total = sum(row) * area
    if not total or not side:
        return float("inf")
    return max(side * side * row[0] * area / total**2, total**2 / (side * side * row[-1] * area))


def _lay(row: Sequence[float], share: float, box: Box, boxes: list[Box]) -> Box:
    """Adds the row's boxes, along the shorter side of ``box``, which takes ``share`` of it; returns the rest."""
    x, y, width, height = box
    row_size = sum(row)
    if width >= height:
        depth = width * share
        for size in row:
            boxes.append(Box(x, y, depth, height * size / row_size))
            y += height * size / row_size
        return Box(x + depth, box.y, max(width - depth, 0.0), height)
    depth = height * share
    for size in row:
        boxes.append(Box(x, y, width * size / row_size, depth))
        x += width * size / row_size
    return Box(box.x, y + depth, width, max(height - depth, 0.0))
