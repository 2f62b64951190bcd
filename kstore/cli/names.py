"""Names of topics and groups on the command line: suggestions for misspelt ones, and completion."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from kstore.config import LogConfig
from kstore.errors import KstoreError
from kstore.files.paths import topic_partition

# The parameters of commands that name a topic, a queue, or a partition by its directory.
TOPIC_PARAMETERS = ("topics", "topic", "alter", "delete", "name", "owner")


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that names the known one most like ``name``; empty if none is."""
    found = get_close_matches(name, list(known), 1)
    return f"; did you mean {found[0]}?" if found else ""


def topics_in(directory: str) -> list[str]:
    """The topics of the store in ``directory``, by the names in it; none if it cannot be listed."""
    try:
        owners = [topic_partition(path.name) for path in Path(directory).iterdir()]
    except OSError:
        return []
    return sorted({owner.topic for owner in owners if owner is not None})


def topic_hint(context: click.Context) -> str:
    """What the user may have meant by a topic of a command that does not exist; may be empty."""
    known = topics_in(str(context.params.get("directory")))
    for parameter in TOPIC_PARAMETERS:
        value = context.params.get(parameter) or ()
        for name in (value,) if isinstance(value, str) else value:
            if name in known:
                continue
            owner = topic_partition(name)
            if parameter == "owner" and owner is not None:
                return nearest(name, [f"{topic}-{owner.partition}" for topic in known])
            if owner is not None and owner.topic in known:
                return f"; did you mean topic {owner.topic}, partition {owner.partition}?"
            return nearest(name, known)
    return ""


def _directory(context: click.Context) -> str:
    # Before an option that waits for its value, click has not assigned the arguments.
    return str(context.params.get("directory") or next(iter(context.args), ""))


def complete_topics(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    known = topics_in(_directory(context))
    return [CompletionItem(name) for name in known if name.startswith(incomplete)]


def complete_partitions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        names = sorted(path.name for path in Path(_directory(context)).iterdir() if topic_partition(path.name))
    except OSError:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def complete_groups(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from kstore.store import Store

    try:
        with Store(_directory(context), read_only=True, create=False) as store:
            return [CompletionItem(name) for name in store.consumer_offsets.groups() if name.startswith(incomplete)]
    except KstoreError:
        return []


def complete_settings(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    # A "=" follows the name where a value does.
    end = "=" if parameter.name == "configs" else ""
    return [CompletionItem(f"{each.name}{end}") for each in fields(LogConfig) if each.name.startswith(incomplete)]
