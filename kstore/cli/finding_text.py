"""Findings of a verification as text: what they mean for the log's users, then why, then what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from kstore.cli.table import painted, room, wrapped
from kstore.cli.terminal import Colour
from kstore.cli.value_types import timestamp_text
from kstore.rules.losses import span_size
from kstore.types import NO_OFFSET
from kstore.upkeep.verify import Finding, LogVerification
from kstore.upkeep.verify.findings import ADVICE, advice_group, consequence, is_loss, repair_of, times_around

INDENTS = ("  ", "    ", "      ")
MORE = " \\"
ORDER = list(ADVICE)


def records(count: int) -> str:
    """A count of records, with its noun."""
    return f"{count:,} record" if count == 1 else f"{count:,} records"


def headline(logs: Sequence[LogVerification]) -> str:
    """How much of ``logs``, some of which are damaged, can and cannot be read."""
    lost = sum(span_size(log.unreadable) for log in logs)
    unknown = [found for log in logs for found in log.damages if is_loss(found) and not _is_counted(found, log)]
    if lost:
        is_exact = not unknown and all(log.is_dense for log in logs if log.unreadable)
        what = f"{'' if is_exact else 'at least ' if unknown else 'up to '}{records(lost)} cannot be read"
    elif unknown:
        what = "the end" if all(found.kind == "tail" for found in unknown) else "an unknown number of records"
        what += " cannot be read"
    else:
        what = "no record is lost"
    return f"{what}; {records(sum(log.record_count for log in logs))} can be read"


def findings_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """The damage among ``findings`` of several logs, one log after another, each after its path."""
    for directory, found in groupby(findings, key=lambda one: str(Path(one.path).parent)):
        yield from painted_lines(f"{directory}:", INDENTS[0], "red")
        yield from damage_lines(list(found), directory)


def damage_lines(findings: Sequence[Finding], directory: str, *, is_dense: bool = False) -> Iterator[str]:
    """The damage among ``findings``, those of one log in ``directory``, by kind. ``is_dense``: of the log."""
    found = sorted((one for one in findings if one.severity == "damage"), key=_rank)
    for _, of_kind in groupby(found, key=_rank):
        group = list(of_kind)
        for sentence, items in groupby(group, key=lambda one: consequence(one, is_dense=is_dense)):
            yield from painted_lines(INDENTS[0] + sentence, INDENTS[1], "red")
            for one in items:
                times = times_around(one, timestamp_text)
                if times:
                    yield from wrapped(INDENTS[1] + times, INDENTS[2])
                yield from wrapped(f"{INDENTS[1]}{_where(one, directory)}: {one.reason}", INDENTS[2])
        command = repair_of(group)
        if command:
            yield from wrapped(f"{INDENTS[0]}{ADVICE[advice_group(group[0].kind)]}:", INDENTS[1])
            yield from command_lines(command, INDENTS[1])


def note_line(finding: Finding) -> str:
    """A note, in one line."""
    return f"{painted('note', 'yellow')}: {_where(finding, '')}: {finding.reason}"


def painted_lines(text: str, indent: str, colour: Colour) -> Iterator[str]:
    """``wrapped``, in ``colour``."""
    for line in wrapped(text, indent):
        yield painted(line, colour)


def command_lines(command: str, indent: str) -> Iterator[str]:
    """A command in lines that fit the terminal, and that a shell takes for one."""
    columns = room()
    if columns is None or len(indent) + len(command) <= columns:
        yield indent + command
        return
    line, margin = indent, indent
    for word in map(shlex.quote, shlex.split(command)):
        if line.strip() and len(line) + 1 + len(word) + len(MORE) > columns:
            yield line + MORE
            line = margin = indent + "  "
        line = f"{line}{'' if line == margin else ' '}{word}"
    yield line


def _is_counted(finding: Finding, log: LogVerification) -> bool:
    """Whether it is known how much it concerns: for a damaged end, another finding may say so."""
    return finding.last != NO_OFFSET or any(first <= finding.first <= last for first, last in log.unreadable)


def _rank(finding: Finding) -> tuple[bool, int, str]:
    group = advice_group(finding.kind)
    return not is_loss(finding), ORDER.index(group) if group in ORDER else len(ORDER), group


def _where(finding: Finding, directory: str) -> str:
    """The file, by its name if it is in ``directory``, and the byte in it."""
    path = Path(finding.path)
    name = path.name if directory and str(path.parent) == directory else finding.path
    return f"{name}{finding.at_position}{'' if is_loss(finding) else finding.at_offsets}"
