"""Options that have a new spelling: the old one works for one more release, hidden from help, with a warning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from kstore.cli.terminal import say

Command = TypeVar("Command", bound=Callable[..., Any])

# What the old spelling, which is not shown and has no default, does not share with the new one.
OWN = ("default", "help", "show_default")


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
