"""Options that several commands share, each with one name and one meaning; and old spellings of options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from click.core import ParameterSource

from kstore.cli.names import complete_settings
from kstore.cli.terminal import say, show_raw
from kstore.config import LogConfig
from kstore.errors import ConfigError
from kstore.setting_rules import value_of
from kstore.types import CorruptRange, Durability, IsolationLevel

Command = TypeVar("Command", bound=Callable[..., Any])

ISOLATION_LEVEL = click.option(
    "--isolation-level",
    type=click.Choice(list(get_args(IsolationLevel))),
    default="read_uncommitted",
    show_default=True,
    help="read_committed: skip records of aborted and open transactions.",
)
ON_CORRUPT = click.option(
    "--on-corrupt",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="At a damaged batch: stop, or continue after it.",
)
JOBS_MAX = 1024
JOBS = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(1, JOBS_MAX),
    metavar="N",
    help="Work with N processes. Default: one a core, if there is much to read.",
)


def durability_option(help_line: str) -> Callable[[Command], Command]:
    return click.option(
        "--durability",
        type=click.Choice(list(get_args(Durability))),
        default="sync",
        show_default=True,
        help=help_line,
    )


DURABILITY = durability_option("When a batch counts as appended: on disk (sync), or written (interval, os).")


def _pairs(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    options = {}
    for value in values:
        name, found, text = value.partition("=")
        if not name or not found:
            raise click.BadParameter(f"{value!r}, expected KEY=VALUE")
        options[name] = text
    return options


SHARED_OPTION = click.option("--shared", is_flag=True, help="Open the store alongside other processes that share it.")
STORAGE_OPTION = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_pairs,
    help="An option for the store's library (fsspec, HDFS); may be given more than once.",
)


def _show_raw(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        show_raw()


RAW = click.option(
    "--raw",
    is_flag=True,
    expose_value=False,
    callback=_show_raw,
    help="Send control characters to a terminal as they are. Default: show them as escapes; a pipe gets every byte.",
)

# What an old spelling, which is not shown and has no default, does not share with the new one.
OWN = ("default", "help", "show_default")
# The kinds of file that ``kstore export`` writes and ``kstore import`` reads.
FORMS = ("parquet", "csv", "jsonl")
SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_option(help_line: str | None = None) -> Callable[[Command], Command]:
    """``--format text|json``, with a description of each."""
    return click.option(
        "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help=help_line
    )


def tell_lost(lost: CorruptRange) -> None:
    """Says on standard error that damage was skipped."""
    offsets = f"offsets {lost.first} to {lost.last} are damaged at position {lost.position}"
    say(f"{lost.path}: {offsets}: {lost.reason}")


def form_of(file: str) -> str | None:
    """The form that the name of ``file`` indicates, or None."""
    return SUFFIXES.get(Path(file).suffix.lower())


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


def parse_log_settings(configs: Iterable[str]) -> dict[str, Any]:
    """The settings of a log, checked. Raises: click.UsageError."""
    settings: dict[str, Any] = parse_settings(configs)
    try:
        LogConfig.from_settings(**settings)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return settings


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
        settings[name] = value.strip() if name in texts else value_of(value.strip())
    return settings


# --- options with a new spelling: the old one works for one more release, hidden from help, with a warning ------------


class _OldOption(click.Option):
    """An old spelling; ``take_renamed`` gives its value to the option that has the new one."""

    def __init__(self, names: Sequence[str], *, new: str, **attributes: Any) -> None:
        super().__init__(names, **{**attributes, "hidden": True})
        self.new = new


def renamed_option(
    old: str, *names: str, old_attributes: Mapping[str, Any] | None = None, **attributes: Any
) -> Callable[[Command], Command]:
    """As ``click.option(*names, **attributes)``, with ``old`` as the spelling of an earlier release.

    Args:
        old_attributes: what differs for the old spelling, for instance its type.

    An option cannot be ``required``: its command says what is missing.
    """
    long = next(name for name in names if name.startswith("--"))
    shared = {name: value for name, value in attributes.items() if name not in OWN} | dict(old_attributes or {})

    def add(function: Command) -> Command:
        hidden = click.option(old, f"old_{old.strip('-').replace('-', '_')}", cls=_OldOption, new=long, **shared)
        return click.option(*names, **attributes)(hidden(function))

    return add


def take_renamed(command: click.Command, context: click.Context) -> None:
    """Moves what was given with old spellings to the new ones, with a warning for each.

    Raises: click.UsageError if both were given.
    """
    for option in command.params:
        if not isinstance(option, _OldOption):
            continue
        assert option.name is not None
        value = context.params.pop(option.name, None)
        # A shell that completes a command gets no warning.
        if context.resilient_parsing or not _is_given(context, option.name):
            continue
        old, new = option.opts[0], option.new
        (name,) = (each.name for each in command.params if new in each.opts)
        assert name is not None
        if _is_given(context, name):
            raise click.UsageError(f"{old} and {new} are the same: give only {new}", context)
        context.params[name] = value
        say(f"{old} is now {new}; the next release knows only {new}")


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) == ParameterSource.COMMANDLINE
