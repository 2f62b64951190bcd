"""The ``kstore`` command: a group that loads its members when they are called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

try:
    import click
except ModuleNotFoundError:
    sys.exit("kstore's commands need click: pip install 'kstore[cli]'")

from kstore import __version__
from kstore.cli.command import ReaderGoneError, UserInterrupt
from kstore.cli.status import BROKEN_PIPE, FAILED, INTERRUPTED, OK, USAGE
from kstore.errors import KstoreError
from kstore.files.descriptors import raise_soft_limit

__all__ = ["cli", "main"]

# By name: the module that has the ``command``.
COMMANDS = {
    "append": "kstore.cli.append",
    "checkpoints": "kstore.cli.checkpoints",
    "compact": "kstore.cli.compact",
    "consume": "kstore.cli.consume",
    "delete-records": "kstore.cli.delete_records",
    "describe": "kstore.cli.describe",
    "dump-log": "kstore.cli.dump_log",
    "explain": "kstore.cli.explain",
    "export": "kstore.cli.export",
    "groups": "kstore.cli.groups",
    "handover": "kstore.cli.handover",
    "import": "kstore.cli.import_",
    "mirror": "kstore.cli.mirror",
    "perf": "kstore.cli.perf.producer",
    "produce": "kstore.cli.produce",
    "producers": "kstore.cli.producers",
    "queue": "kstore.cli.queue",
    "read": "kstore.cli.read",
    "recover": "kstore.cli.recover",
    "spark": "kstore.cli.spark",
    "stats": "kstore.cli.stats",
    "topics": "kstore.cli.topics",
    "transactions": "kstore.cli.transactions",
    "verify": "kstore.cli.verify",
}

EPILOG = """
\b
Shell completion of commands, options and files (here bash; zsh and fish work too):
  eval "$(_KSTORE_COMPLETE=bash_source kstore)"
"""


class _LazyGroup(click.Group):
    """Imports a command's module when the command is requested, so that no command waits for what it does not need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(COMMANDS[cmd_name]).command
        assert isinstance(command, click.Command)
        return command


@click.group("kstore", cls=_LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kstore")
def cli() -> None:
    """Append to, read and inspect durable logs in Kafka's file format."""


def main(arguments: Sequence[str] | None = None, command: click.Command = cli) -> int:
    """Runs ``kstore``, or one of its commands, with ``arguments`` (default: the process's own); returns the exit
    status.

    Errors are one line on standard error. A reader that went away, as in ``kstore ... | head``, is not an error.
    """
    raise_soft_limit()
    try:
        status = command.main(arguments, prog_name=_program(command), standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else OK
    except click.ClickException as error:
        error.show()
        return error.exit_code if isinstance(error, click.UsageError) else FAILED
    except KstoreError as error:
        print(f"kstore: {_text(error)}", file=sys.stderr)
        return FAILED
    except (ReaderGoneError, BrokenPipeError):
        # The interpreter flushes standard output once more at its end; that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (UserInterrupt, KeyboardInterrupt, click.Abort):
        return INTERRUPTED


def _text(error: KstoreError) -> str:
    """The error's text, without the system's error number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _program(command: click.Command) -> str:
    return "kstore" if command is cli else f"kstore {command.name}"


assert click.UsageError.exit_code == USAGE

if __name__ == "__main__":
    sys.exit(main())
