"""Settings on a command line: ``--config NAME=VALUE``, in Kafka's spelling or in kstore's."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import click

from kstore.cli.names import complete_settings

__all__ = ["config_option", "parse_settings"]

WORDS = {"true": True, "false": False}

config_option = click.option(
    "--config",
    "configs",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_settings,
    help="A setting of the topic, as retention_ms=7d or retention.ms=604800000; may be given several times.",
)


def parse_settings(
    configs: Iterable[str], *, option: str = "--config", texts: Collection[str] = ()
) -> dict[str, object]:
    """The settings given with ``option``; values of ``texts`` stay text.

    Raises: click.UsageError for anything but NAME=VALUE.
    """
    settings: dict[str, object] = {}
    for text in configs:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{option} {text}: expected NAME=VALUE")
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
