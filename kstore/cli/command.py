"""What every command shares: how it ends and with which exit status, the paths in its errors, and its help."""

from __future__ import annotations

import errno
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from kstore.cli.names import topic_hint
from kstore.cli.options import take_renamed
from kstore.cli.table import room, wrapped
from kstore.errors import TopicNotFoundError

# Exit statuses.
OK = 0
# One status for damaged data and for errors of the system: scripts ask only whether all is well.
DAMAGED = FAILED = 1
USAGE = 2
# A search ends with these, as grep does.
NOTHING_FOUND = 1
NOT_ALL_READ = 2
# 128 + the number of the signal, as a shell reports it: SIGINT, SIGPIPE.
INTERRUPTED = 130
BROKEN_PIPE = 141

# The words of the system, and so of ls, cat and grep.
NO_SUCH_FILE = os.strerror(errno.ENOENT)

# A line of an epilog that click leaves as it is: two columns, of which the first is an example or a value.
TWO_COLUMNS = re.compile(r"(?P<name> *\S.*?)(?P<gap> {2,})(?P<text>\S.*)")
EXAMPLE = re.compile(r" *(kstore|spark-submit|echo|tail|seq) ")
DEEPER, MORE = "    ", " \\"


class ReaderGoneError(Exception):
    """No process reads standard output any more."""


class UserInterrupt(Exception):
    """The user pressed Ctrl-C."""


class KstoreCommand(click.Command):
    """Handles a closed pipe and Ctrl-C itself: click would end with status 1, or print an empty line. Its options may
    have old spellings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        take_renamed(self, ctx)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        for parameter in self.params:
            given = ctx.params.get(parameter.name or "")
            if isinstance(parameter.type, click.Path) and (given == "" or (isinstance(given, tuple) and "" in given)):
                # A shell's variable that is not set; Python would take it for the current directory.
                raise click.BadParameter("the path is empty; the current directory is .", ctx, parameter)
        try:
            status = super().invoke(ctx)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(f"{error}{topic_hint(ctx)}") from None
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except KeyboardInterrupt as error:
            raise UserInterrupt from error
        except OSError as error:
            name_as_given(error, ctx.params.values())
            raise
        # Not just returned: a caller that runs the command through click alone gets the status too.
        if status:
            ctx.exit(status)
        return status

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_epilog(self.epilog, formatter)


class KstoreGroup(click.Group):
    """Commands whose epilog fits the terminal."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_epilog(self.epilog, formatter)


def _write_epilog(epilog: str | None, formatter: click.HelpFormatter) -> None:
    if not epilog:
        return
    formatter.write_paragraph()
    with formatter.indentation():
        columns = room()
        for paragraph in inspect.cleandoc(epilog).split("\n\n"):
            lines = paragraph.splitlines()
            if columns is not None and lines[0] == "\b":
                lines[1:] = _fitted(lines[1:], columns - formatter.current_indent)
            formatter.write_text("\n".join(lines))
            formatter.write_paragraph()


def _fitted(lines: list[str], columns: int) -> list[str]:
    """The lines of a paragraph that click leaves as it is, broken where they are too long."""
    # Then what each example does is below it.
    is_narrow = any(len(line) > columns and EXAMPLE.match(line) for line in lines)
    found: list[str] = []
    for line in lines:
        if is_narrow and EXAMPLE.match(line):
            found += _example(line, columns)
        else:
            match = TWO_COLUMNS.fullmatch(line)
            at = match.start("text") if match else columns
            indent = " " * at if at < columns // 2 else _indent(line) + DEEPER
            found += wrapped(line, indent, columns=columns)
    return found


def _example(line: str, columns: int) -> Iterator[str]:
    """A command, which a shell may still run, and below it what it does."""
    match = TWO_COLUMNS.fullmatch(line)
    name, text = (match["name"], match["text"]) if match else (line, "")
    indent = _indent(line) + DEEPER
    *parts, last = [name] if len(name) <= columns else wrapped(name, indent, columns=columns - len(MORE))
    yield from (part + MORE for part in parts)
    yield last
    if text:
        yield from wrapped(indent + text, indent, columns=columns)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def name_as_given(error: OSError, given: Iterable[object]) -> None:
    """Changes ``error`` so that it names a file at or below one of ``given``, a command's arguments, as that one does.

    If an argument leads to nothing, that is the message, whatever was expected there.
    """
    if not isinstance(error.filename, str) or "://" in error.filename:
        return
    name = Path(error.filename)
    for text in sorted(set(_paths(given)), key=len, reverse=True):
        path = Path(text)
        if name in (path, path.absolute()):
            error.filename = text
            if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
                error.strerror = NO_SUCH_FILE
            return
        if name.is_relative_to(path.absolute()):
            error.filename = str(path / name.relative_to(path.absolute()))
            return


def _paths(given: Iterable[object]) -> Iterator[str]:
    for value in given:
        if isinstance(value, tuple):
            yield from _paths(value)
        elif isinstance(value, str | os.PathLike):
            path = os.fsdecode(value)
            # What "~" stands for is shown in full.
            if path and "://" not in path and not path.startswith("~"):
                yield path
