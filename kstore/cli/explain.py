"""``kstore explain``: the path of a lookup through segments and indexes to a record."""

from __future__ import annotations

from pathlib import Path

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.json_fields import log_fields
from kstore.cli.options import format_option
from kstore.cli.places import log_places, open_place
from kstore.cli.record_json import compact, record_fields
from kstore.cli.table import painted, wrapped
from kstore.cli.value_types import TIME_EXAMPLES, TimeType
from kstore.errors import OffsetOutOfRangeError
from kstore.upkeep.explain import Explanation, explain_offset, explain_time

EXAMPLES = """
\b
Examples:
  kstore explain data/orders-0 --offset 1234567
  kstore explain data/orders-0 --time 2026-01-31T09:00:00+01:00
  kstore explain data/orders-0 --offset 42 --format json | jq .

\b
Exit status:
  0  a record was found
  1  no record was found, or damage prevents the lookup
  2  bad usage
"""


@click.command("explain", cls=KstoreCommand, epilog=EXAMPLES, short_help="Show how an offset or a time is looked up.")
@click.argument("directory", type=click.Path(), metavar="PATH")
@click.option("--offset", type=click.IntRange(0), metavar="OFFSET", help="The record at this offset.")
@click.option("--time", "time_ms", type=TimeType(), help=f"The first record at or after this time: {TIME_EXAMPLES}.")
@format_option("text: a line a step. json: one object with the steps and the record.")
def command(directory: str, offset: int | None, time_ms: int | None, form: str) -> int:
    """Show the path of a lookup in the log in PATH: the segment, the part of the index and its entry, the bytes
    scanned from there, the batch and the record.

    PATH may also hold logs, each of which is examined, or be a single .log file, or a place of backups or of logs
    in an object store.

    Nothing is written to the log, and a writer may be at work on it.
    """
    if (offset is None) == (time_ms is None):
        raise click.UsageError("give --offset or --time")
    is_found, places = False, log_places(directory)
    is_damaged = False
    for place in places:
        with open_place(place) as log:
            try:
                explanation = explain_offset(log, offset) if offset is not None else explain_time(log, time_ms or 0)
            except OffsetOutOfRangeError as error:
                if len(places) == 1:
                    raise
                explanation = Explanation()
                explanation.add("log", f"{place.path}: {error}", path=str(place.path))
        is_damaged |= any(step.what == "damage" for step in explanation.steps)
        is_found |= explanation.record is not None
        _print(place.path, explanation, form)
    return OK if is_found and not is_damaged else DAMAGED


def _print(path: Path, explanation: Explanation, form: str) -> None:
    if form == "json":
        steps = [{"step": step.what, "text": step.text, **step.values} for step in explanation.steps]
        record = record_fields(explanation.record) if explanation.record is not None else None
        print(compact({**log_fields(path), "steps": steps, "record": record}))
        return
    width = max(len(step.what) for step in explanation.steps)
    for step in explanation.steps:
        name = step.what.ljust(width)
        for number, line in enumerate(wrapped(f"{name}  {step.text}", " " * (width + 2))):
            is_red = not number and step.what == "damage"
            print(painted(name, "red") + line[width:] if is_red else line)
