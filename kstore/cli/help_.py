"""``kstore help``: how a command, or a command of a command, is used; as ``--help`` after it."""

from __future__ import annotations

import click

from kstore.cli.command import KstoreCommand
from kstore.cli.names import nearest

EXAMPLES = """
\b
Examples:
  kstore help
  kstore help dump-log
  kstore help queue put

\b
Exit status:
  0  it was shown
  2  there is no such command
"""


@click.command("help", cls=KstoreCommand, epilog=EXAMPLES, short_help="Show how a command is used.")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show how COMMAND is used, as `kstore COMMAND --help` does; without one, all commands."""
    assert ctx.parent is not None, "a command of the group"
    shown = ctx.parent
    for name in names:
        group = shown.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{shown.command_path} has no commands of its own, such as {name!r}", ctx)
        found = group.get_command(shown, name)
        if found is None:
            known = group.list_commands(shown)
            raise click.UsageError(f"No such command {name!r}{nearest(name, known)}", ctx)
        shown = click.Context(found, info_name=name, parent=shown)
    click.echo(shown.get_help())
