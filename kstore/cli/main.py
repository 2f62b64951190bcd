"""The ``kstore`` command: a group that loads its members when they are called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module

try:
    import click
    from click.shell_completion import CompletionItem
except ModuleNotFoundError:
    sys.exit("kstore's commands need click: pip install 'kstore[cli]'")

from kstore import __version__
from kstore.cli.command import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE, KstoreGroup, ReaderGoneError, UserInterrupt
from kstore.cli.names import nearest
from kstore.cli.terminal import guarded_output, say
from kstore.errors import KstoreError
from kstore.files.descriptors import raise_soft_limit
from kstore.files.fs import FULL_ERRNOS, plain_text

# What the list of commands shows, by section and name: the module that has the ``command``, and its ``short_help``.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Look": {
        "checkpoints": ("kstore.cli.checkpoints", "Print the checkpoints of a store."),
        "describe": ("kstore.cli.describe", "Print a store's contents."),
        "dump-log": ("kstore.cli.dump_log", "Show the contents of a log's files."),
        "explain": ("kstore.cli.explain", "Show how an offset or a time is looked up."),
        "groups": ("kstore.cli.groups", "List groups, show their lag, reset offsets."),
        "producers": ("kstore.cli.producers", "List a log's idempotent producers."),
        "report": ("kstore.cli.report", "Draw logs on a page: sizes, segments, damage."),
        "stats": ("kstore.cli.stats", "Count what logs contain."),
        "transactions": ("kstore.cli.transactions", "List open transactions, or abort one."),
    },
    "Read and search": {
        "consume": ("kstore.cli.consume", "Print the records of topics."),
        "grep": ("kstore.cli.grep", "Search the records of logs."),
        "read": ("kstore.cli.read", "Print the records of a log."),
    },
    "Write and change": {
        "append": ("kstore.cli.append", "Append lines to a log."),
        "compact": ("kstore.cli.compact", "Keep the last record of each key."),
        "delete-records": ("kstore.cli.delete_records", "Delete the oldest records of a log."),
        "import": ("kstore.cli.import_", "Append the rows of Parquet, CSV, JSON."),
        "produce": ("kstore.cli.produce", "Send lines to a topic."),
        "queue": ("kstore.cli.queue", "Inspect queues; put, drain and retry items."),
        "topics": ("kstore.cli.topics", "List, create, change and delete topics."),
    },
    "Check and repair": {
        "recover": ("kstore.cli.recover", "Recover logs after an unclean end."),
        "verify": ("kstore.cli.verify", "Check every batch, index entry and snapshot."),
    },
    "Copy and move": {
        "backup": ("kstore.cli.backup", "Back up a store, or check its backups."),
        "export": ("kstore.cli.export", "Write a log's records as Parquet, CSV, JSON."),
        "handover": ("kstore.cli.handover", "Hand logs to a Kafka broker, or back."),
        "mirror": ("kstore.cli.mirror", "Copy logs byte for byte and update the copies."),
        "replicate": ("kstore.cli.replicate", "Back up a store continuously."),
        "restore": ("kstore.cli.restore", "Make a new store from a backup."),
        "spark": ("kstore.cli.spark", "Jobs on logs with Spark."),
    },
    "Serve and measure": {
        "perf": ("kstore.cli.perf.producer", "Measure how fast producers and consumers are."),
        "serve": ("kstore.cli.serve", "Let Kafka's clients in to a store."),
        "ui": ("kstore.cli.ui", "Browse logs: segments, batches, records, damage."),
    },
    "Help": {
        "help": ("kstore.cli.help_", "Show how a command is used."),
    },
}
COMMANDS = {name: where for section in SECTIONS.values() for name, where in section.items()}

STANDARD_ERROR = 2

EPILOG = """
\b
Shell completion of commands and names (bash; zsh and fish work too):
  eval "$(_KSTORE_COMPLETE=bash_source kstore)"
"""


class _LazyGroup(KstoreGroup):
    """Imports a command's module when the command is called, and none to list or to complete their names."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}{nearest(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in section.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        named = [
            CompletionItem(name, help=summary)
            for name, (_, summary) in sorted(COMMANDS.items())
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)


@click.group("kstore", cls=_LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kstore")
def cli() -> None:
    """Append to, read and inspect durable logs in Kafka's file format."""


def main(arguments: Sequence[str] | None = None, command: click.Command = cli) -> int:
    """Runs ``kstore``, or one of its commands, with ``arguments`` (default: the process's own); returns the exit
    status.

    Errors are one line on standard error. A reader that went away, as in ``kstore ... | head``, is not an error.
    """
    _open_closed_streams()
    raise_soft_limit()
    with guarded_output():
        return _run(arguments, command)


def _run(arguments: Sequence[str] | None, command: click.Command) -> int:
    try:
        status = command.main(arguments, prog_name=_program(command), standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else OK
    except click.ClickException as error:
        error.show()
        return error.exit_code if isinstance(error, click.UsageError) else FAILED
    except KstoreError as error:
        say(plain_text(error))
        return FAILED
    except (ReaderGoneError, BrokenPipeError):
        _drop_output()
        return BROKEN_PIPE
    except (UserInterrupt, KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except OSError as error:
        # Those of logs are typed, and those of other files name them.
        name = error.filename
        if name is None:
            if error.errno not in FULL_ERRNOS | {errno.EIO}:
                raise
            _drop_output()
        say(f"{'standard output' if name is None else os.fsdecode(name)}: {error.strerror}")
        return FAILED


def _open_closed_streams() -> None:
    """Puts the null device in place of closed standard streams. Otherwise a log's file would get the number of one, and
    what a library prints would be written to it."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        pass
    os.close(descriptor)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _drop_output() -> None:
    """The interpreter flushes standard output once more at its end; that must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _program(command: click.Command) -> str:
    return "kstore" if command is cli else f"kstore {command.name}"


assert click.UsageError.exit_code == USAGE

if __name__ == "__main__":
    sys.exit(main())
