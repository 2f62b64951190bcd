"""Settings on a command line: ``--config NAME=VALUE``, in Kafka's spelling or in kstore's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

import click

from kstore.cli.names import complete_settings
from kstore.cli.renamed import renamed_option

Command = TypeVar("Command", bound=Callable[..., Any])

WORDS = {"true": True, "false": False}


def config_option(whose: str, example: str, *, formerly: str | None = None) -> Callable[[Command], Command]:
    """``--config NAME=VALUE``, repeatable, as ``configs``: settings of ``whose``.

    Args:
        example: one of them, in kstore's spelling and in Kafka's.
        formerly: the option's name in an earlier release.
    """
    attributes: dict[str, Any] = {
        "multiple": True,
        "metavar": "NAME=VALUE",
        "help": f"A setting of the {whose}, as {example}. Repeatable.",
    }
    if whose not in ("producer", "door"):
        attributes["shell_complete"] = complete_settings
    if formerly is None:
        return click.option("--config", "configs", **attributes)
    return renamed_option(formerly, "--config", "configs", **attributes)


def parse_settings(configs: Iterable[str], *, texts: Collection[str] = ()) -> dict[str, object]:
    """The settings given with ``--config``; values of ``texts`` stay text.

    Raises: click.UsageError for anything but NAME=VALUE.
    """
    settings: dict[str, object] = {}
    for text in configs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--config {text}: expected NAME=VALUE")
        name = name.strip().replace(".", "_")
        settings[name] = value.strip() if name in texts else _value(value.strip())
    return settings


def _value(text: str) -> object:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            pass
    return WORDS.get(text.lower(), text)
