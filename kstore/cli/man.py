"""The commands as man pages, from what ``--help`` shows: ``python -m kstore.cli.man DIRECTORY`` writes them.

Building a wheel does it, so that ``man kstore-verify`` works where kstore is installed.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from kstore import __version__
from kstore.cli.command import TWO_COLUMNS
from kstore.cli.main import SECTIONS, cli

# The names of an option, and the value that it takes.
NAMES = re.compile(r"(?P<names>-[^ ,]+(?:(?:, | / )-[^ ,]+)*)(?P<value>.*)")
# A title over the lines of an epilog.
TITLE = re.compile(r"(.+):")


def pages() -> Iterator[tuple[str, str]]:
    """The name of each page, as ``kstore-queue-put.1``, and its text."""
    yield from _pages_of(click.Context(cli, info_name="kstore", **cli.context_settings))


def write_pages(directory: Path) -> None:
    """Writes all pages to ``directory``, which it creates. Raises: OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (directory / name).write_text(text, encoding="utf-8")


def page(context: click.Context) -> str:
    """The page of the command of ``context``, as roff source."""
    command, name = context.command, _name(context)
    lines = [
        f'.TH "{_text(name.upper())}" "1" "" "kstore {__version__}" "kstore"',
        ".SH NAME",
        _text(f"{name} - {(command.short_help or command.get_short_help_str(200)).rstrip('.')}"),
        ".SH SYNOPSIS",
        f".B {_text(context.command_path)}",
        _text(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
    ]
    records = [
        record for each in command.get_params(context) if (record := each.get_help_record(context)) and record[1]
    ]
    if records:
        lines.append(".SH OPTIONS")
        for option, text in records:
            lines += [".TP", _option(option), _text(text)]
    children = {child.info_name: child for child in _children(context)}
    if children:
        lines.append(".SH COMMANDS")
        for title, names in SECTIONS.items() if command is cli else [("", children)]:
            lines += [f".SS {_text(title)}"] if title else []
            for each in names:
                child = children[each]
                lines += [".TP", _bold(f"{_name(child)}(1)"), _text(child.command.get_short_help_str(200))]
    lines += _epilog(command.epilog or "")
    if context.parent is not None:
        lines += [".SH SEE ALSO", _bold(f"{_name(context.parent)}(1)")]
    return "\n".join(lines) + "\n"


def _pages_of(context: click.Context) -> Iterator[tuple[str, str]]:
    yield f"{_name(context)}.1", page(context)
    for child in _children(context):
        yield from _pages_of(child)


def _children(context: click.Context) -> Iterator[click.Context]:
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield click.Context(command, info_name=name, parent=context)


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; click leaves those that begin with a backspace as they are."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        lines = paragraph.splitlines()
        if lines and lines[0] == "\b":
            yield from (".PP", ".nf", *map(_text, lines[1:]), ".fi")
        else:
            yield from (*([".PP"] if number else []), _text(" ".join(lines)))


def _epilog(text: str) -> Iterator[str]:
    """Examples, exit statuses and the like: a section for each paragraph that has a title."""
    for paragraph in filter(None, inspect.cleandoc(text).split("\n\n")):
        lines = [line for line in paragraph.splitlines() if line != "\b"]
        title = TITLE.fullmatch(lines[0])
        if title is not None and len(lines) > 1:
            yield f".SH {_text(title[1].upper())}"
            del lines[0]
        else:
            yield ".SH NOTES"
        for line in lines:
            columns = TWO_COLUMNS.fullmatch(line)
            if columns is not None:
                yield from (".TP", _bold(columns["name"].strip()), _text(columns["text"]))
            elif line.startswith(" "):
                # A shell's line keeps its breaks and its spaces.
                yield from (".PP", ".nf", _bold(line.strip()), ".fi")
            else:
                yield _text(line)


def _option(names: str) -> str:
    found = NAMES.fullmatch(names)
    if found is None:
        return _bold(names)
    return re.sub(r"(-[^ ,]+)", lambda each: _bold(each[0]), found["names"]) + _text(found["value"])


def _bold(text: str) -> str:
    return rf"\fB{_escaped(text)}\fR"


def _text(text: str) -> str:
    """A line of text: one that begins with a control character of roff would be a request."""
    return (r"\&" if text.startswith((".", "'")) else "") + _escaped(text)


def _escaped(text: str) -> str:
    """Quotes, hyphens and the like as they are: roff would print those of a typesetter."""
    for char, escape in (("\\", r"\(rs"), ("-", r"\-"), ("'", r"\(aq"), ("`", r"\(ga"), ("^", r"\(ha"), ("~", r"\(ti")):
        text = text.replace(char, escape)
    return text


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
