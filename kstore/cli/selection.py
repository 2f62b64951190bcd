"""Which logs of a directory a command takes: ``--topic``, ``--partition`` and ``--internal``, alike in all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import click

from kstore.cli.places import LogPlace
from kstore.files.paths import topic_partition
from kstore.rules.internal_topics import is_internal


class Selection(NamedTuple):
    """The logs of ``topics`` and ``partitions``; all if there are none, but not those of internal topics."""

    topics: tuple[str, ...]
    partitions: tuple[int, ...]
    internal: bool

    def takes(self, log: LogPlace, path: str) -> bool:
        """Whether it takes ``log``, found at ``path``, which names it if nothing else is there."""
        owner = topic_partition(log.path.name)
        if owner is None:
            return not (self.topics or self.partitions)
        if self.partitions and owner.partition not in self.partitions:
            return False
        if self.topics:
            return owner.topic in self.topics
        return self.internal or not is_internal(owner.topic) or log.text.rstrip("/") == path.rstrip("/")


def selection_options(function: Callable[..., int]) -> Callable[..., int]:
    """The three options, as one argument ``selection``."""

    @wraps(function)
    def bundled(*, topics: tuple[str, ...], partitions: tuple[int, ...], internal: bool, **others: Any) -> int:
        return function(selection=Selection(topics, partitions, internal), **others)

    found: Callable[..., int] = bundled
    for option in (
        click.option("--internal", is_flag=True, help="Also topics that Kafka and kstore use internally."),
        click.option(
            "--partition",
            "-p",
            "partitions",
            type=click.IntRange(0),
            multiple=True,
            metavar="N",
            help="Only this partition. Repeatable.",
        ),
        click.option("--topic", "topics", multiple=True, metavar="NAME", help="Only this topic. Repeatable."),
    ):
        found = option(found)
    return found
