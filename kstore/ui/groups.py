"""Consumer groups for pages: each with its lag in all, and its position in each partition. Pure.

A group's address is its name if that is plain, and otherwise a hash, as of topics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kstore.ui.places import Place, Places, key_of
from kstore.ui.survey import Counted

Model = dict[str, Any]


def positions(stores: Sequence[Model], places: Places, counted: Mapping[Place, Counted]) -> list[Model]:
    """The position and the lag of each group in each partition, the largest lag first, unknown ones last."""
    ends = {
        (str(place.root), place.topic, place.partition): (place.url, known.document.get("end"))
        for place, known in counted.items()
    }
    numbers = {str(root): number for number, root in enumerate(places.roots)}
    rows = []
    for store in stores:
        root = store["paths"][0]
        for position in store["groups"]:
            url, end = ends.get((root, position["topic"], position["partition"]), (None, None))
            lag = None if end is None else max(end - position["committed"], 0)
            address = f"/groups/{numbers[root]}/{key_of(position['group'])}" if root in numbers else None
            row = {"group_url": address, "url": url, "end": end, "lag": lag, "directory": root}
            rows.append({**position, **row, "read_at": store["created"]})
    return sorted(rows, key=lambda row: -1 if row["lag"] is None else row["lag"], reverse=True)


def summaries(rows: Sequence[Model]) -> list[Model]:
    """One row for each group of ``positions``, the largest lag first.

    ``unknown`` is the number of its partitions whose end is not known.
    """
    return sorted(_summaries(rows), key=lambda row: (-row["lag"], row["group"]))


def _summaries(rows: Sequence[Model]) -> Iterator[Model]:
    members: dict[tuple[str, str], list[Model]] = {}
    for row in rows:
        members.setdefault((row["directory"], row["group"]), []).append(row)
    for (directory, group), some in members.items():
        lags = [row["lag"] for row in some if row["lag"] is not None]
        yield {
            "group": group,
            "directory": directory,
            "url": some[0]["group_url"],
            "topics": len({row["topic"] for row in some}),
            "partitions": len(some),
            "lag": sum(lags),
            "lag_max": max(lags, default=0),
            "unknown": len(some) - len(lags),
            "committed_at": max(row["committed_at"] for row in some),
        }
