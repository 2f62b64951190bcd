"""``kstore grep``: searches the records of logs, on all cores."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import click

from kstore.cli.command import NOT_ALL_READ, NOTHING_FOUND, OK, KstoreCommand
from kstore.cli.extent import Extent, extent_options
from kstore.cli.grep_run import Found, Job, Task, Want, searched
from kstore.cli.json_fields import log_fields
from kstore.cli.options import ISOLATION_LEVEL, JOBS, RAW, format_option, tell_lost
from kstore.cli.places import LogPlace, Selection, log_bytes, log_places, selection_options
from kstore.cli.progress import progress
from kstore.cli.spread import BYTES_MIN
from kstore.cli.terminal import say, shown_bytes
from kstore.errors import ConfigError, KstoreError
from kstore.files.fs import plain_text
from kstore.types import IsolationLevel
from kstore.upkeep.search import FIELDS, Pattern

# "-" of a range is not part of an offset, so context lines differ from matches as in grep.
GROUP_BORDER = b"--\n"

EXAMPLES = """
\b
Examples:
  kstore grep customer-7 data/                          every record of every log that holds the text
  kstore grep -E 'time(d )?out after [0-9]{4,} ms' data/orders-0
  kstore grep --json-field user.name Ann data/orders-0  values that are JSON, only in this field
  kstore grep --hex 00ff12 --keys data/orders-0
  kstore grep --since 2026-01-31T09:00:00 --until 2026-01-31T10:00:00 --count error data/
  kstore grep -v --json-field status ok data/orders-0   the records without it
  kstore grep --context 2 --max-count 5 error data/orders-0
  kstore grep -l customer-7 --topic orders --topic payments data/     only the logs that hold it
  kstore grep --format json error data/ | jq .value

A line of text is LOG:OFFSET:VALUE. A match in the key or a header is shown before the value, as key=KEY or header
NAME=VALUE. A line of context has "-" in place of ":", and "--" stands between groups.

\b
Exit status:
  0  a record was found
  1  no record was found
  2  not everything could be read, as standard error says; or bad usage
"""


@click.command("grep", cls=KstoreCommand, epilog=EXAMPLES, short_help="Search the records of logs.")
@click.argument("pattern")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@click.option("--regex", "-E", is_flag=True, help="PATTERN is a regular expression, in Python's syntax, over bytes.")
@click.option("--hex", "is_hex", is_flag=True, help="PATTERN is bytes in hexadecimal.")
@click.option("--ignore-case", "-i", is_flag=True, help="ASCII letters match either case.")
@click.option("--invert-match", "-v", "is_inverted", is_flag=True, help="The records that do not hold PATTERN.")
@click.option("--json-field", metavar="NAME.NAME", help="Search only this field of values that are JSON.")
@click.option("--keys", is_flag=True, help="Search keys. Without this and the next two: everything.")
@click.option("--values", is_flag=True, help="Search values.")
@click.option("--headers", is_flag=True, help="Search headers: names and values.")
@extent_options("Only records at or after this time.", "Only records before this time.")
@click.option(
    "--context",
    "-C",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Print the records at the N offsets before and after each match too.",
)
@selection_options
@click.option("--logs-with-matches", "-l", "names_only", is_flag=True, help="Print only the logs that hold a match.")
@click.option("--count", "-c", is_flag=True, help="Print only the number of matching records of each log.")
@click.option("--max-count", "-m", type=click.IntRange(1), metavar="N", help="Stop after N matching records in all.")
@JOBS
@format_option('text: see below. json: the fields of "kstore read", with "log" and "matched".')
@ISOLATION_LEVEL
@RAW
def command(
    pattern: str,
    paths: tuple[str, ...],
    regex: bool,
    is_hex: bool,
    ignore_case: bool,
    is_inverted: bool,
    json_field: str | None,
    keys: bool,
    values: bool,
    headers: bool,
    extent: Extent,
    selection: Selection,
    names_only: bool,
    context: int,
    count: bool,
    max_count: int | None,
    jobs: int | None,
    form: str,
    isolation_level: IsolationLevel,
) -> int:
    """Print the records of the logs in PATHS, kstore's or a Kafka broker's, that hold PATTERN.

    A path is one partition, or holds partitions, or is a single .log file, or a place of backups or of logs in an
    object store. Nothing is written, and a writer may be at work. Damaged batches are left out and reported. Topics
    that Kafka and kstore use internally are searched if they are named, or asked for.
    """
    wanted = tuple(name for name, is_wanted in zip(FIELDS, (keys, values, headers), strict=True) if is_wanted)
    if json_field is not None and (keys or headers):
        raise click.UsageError("--json-field searches values: it excludes --keys and --headers")
    if count and names_only:
        raise click.UsageError("--count and --logs-with-matches: give one of them")
    if context and (count or names_only):
        raise click.UsageError(
            f"--{'count' if count else 'logs-with-matches'} prints no records: it excludes --context"
        )
    if is_inverted and context and form == "json":
        raise click.UsageError("--invert-match with --context: in JSON nothing would tell matches from context")
    if regex and is_hex:
        raise click.UsageError("--regex and --hex: give one of them")
    field = () if json_field is None else tuple(json_field.split("."))
    looked_for = Pattern(_text(pattern, is_hex), regex, ignore_case, wanted or FIELDS, field, is_inverted)
    try:
        looked_for.check()
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    logs, is_whole = _places(paths, selection)
    want = Want(looked_for, extent, isolation_level, form == "json", shown_bytes() is not None)
    with_lines = not (count or names_only)
    job = Job(logs, want, with_lines=with_lines, context=context, max_count=max_count, jobs=jobs)
    size = sum(map(log_bytes, logs))
    # Less is searched before a bar can be drawn.
    bar = progress("grep", size) if size >= BYTES_MIN else nullcontext(lambda size: None)
    try:
        with bar as advance, searched(job, advance) as results:
            outcome = _print_lines(results) if with_lines else _print_counts(results, logs, form, names_only=names_only)
    except KstoreError as error:
        say(plain_text(error))
        return NOT_ALL_READ
    if outcome.is_damaged or not is_whole:
        return NOT_ALL_READ
    return OK if outcome.count else NOTHING_FOUND


def _places(paths: Sequence[str], selection: Selection) -> tuple[list[LogPlace], bool]:
    """The logs to search, each once, and whether all ``paths`` could be looked at."""
    logs: dict[str, LogPlace] = {}
    is_whole = True
    for path in paths:
        try:
            found = log_places(path)
        except KstoreError as error:
            # As grep, it goes on with the others.
            say(plain_text(error))
            is_whole = False
            continue
        logs |= {log.text: log for log in found if selection.takes(log, path)}
    return list(logs.values()), is_whole


@dataclass(frozen=True, slots=True)
class _Outcome:
    count: int
    is_damaged: bool


def _text(pattern: str, is_hex: bool) -> bytes:
    if not is_hex:
        return pattern.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(pattern)
    except ValueError:
        raise click.UsageError(f"{pattern!r} is not hexadecimal: expected pairs of digits") from None


def _print_lines(results: Iterator[tuple[Task, Found]]) -> _Outcome:
    count, is_damaged, has_group = 0, False, False
    out = sys.stdout.buffer
    for _, found in results:
        if found.groups:
            print(end="")  # The bar gives way.
        for group in found.groups:
            if has_group and found.has_context:
                out.write(GROUP_BORDER)
            out.write(group)
            has_group = True
        out.flush()
        count += found.count
        is_damaged |= _report(found)
    return _Outcome(count, is_damaged)


def _print_counts(
    results: Iterator[tuple[Task, Found]], logs: list[LogPlace], form: str, *, names_only: bool
) -> _Outcome:
    from kstore.cli.record_json import compact

    counts = dict.fromkeys((log.text for log in logs), 0)
    is_damaged = False
    for task, found in results:
        counts[task.log] += found.count
        is_damaged |= _report(found)
    for log, count in counts.items():
        if names_only and not count:
            continue
        text = log if names_only else f"{log}:{count}"
        print(compact({**log_fields(log), "count": count}) if form == "json" else text)
    return _Outcome(sum(counts.values()), is_damaged)


def _report(found: Found) -> bool:
    for lost in found.damage:
        tell_lost(lost)
    return bool(found.damage)
