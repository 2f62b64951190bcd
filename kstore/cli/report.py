"""``kstore report``: one page about logs, to send or to keep."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.options import JOBS
from kstore.cli.places import LogPlace, log_bytes
from kstore.cli.progress import progress
from kstore.cli.spread import each_log
from kstore.files.local import SYSTEM_FS
from kstore.reports.gathering import GatheredLog, examined, gathered_from, largest, logs_of
from kstore.reports.report import report_on
from kstore.scan.visits import Advance

# About how many times faster a log is examined by its headers alone, in batches of some 16 KiB.
HEADERS_SPEED = 4

EXAMPLES = """
\b
Examples:
  kstore report /var/lib/kafka/data -o page.html
  kstore report --deep data/orders-0 -o page.html     every record counted, every byte checked
  kstore report --hash-names data/ -o page.html       to send to others
  kstore report --format json data/ | jq '.total.bytes, .topics'

\b
Exit status:
  0  no damage was found
  1  damage, or the report could not be made
  2  bad usage
"""


@click.command("report", cls=KstoreCommand, epilog=EXAMPLES, short_help="Draw logs on a page: sizes, segments, damage.")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@click.option("--output", "-o", type=click.Path(), help="Write the page to this file. Default: standard output.")
@click.option("--deep", is_flag=True, help="Check every byte and count every record; otherwise only headers are read.")
@click.option(
    "--with-payload", is_flag=True, help="Show bytes of records at damaged places, frequent keys, and names of groups."
)
@click.option("--hash-names", is_flag=True, help="Replace the names of directories and topics by hashes.")
@JOBS
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "json"]),
    default="html",
    show_default=True,
    help="html: a page. json: one object with the same numbers.",
)
def command(
    directories: tuple[str, ...],
    output: str | None,
    deep: bool,
    with_payload: bool,
    hash_names: bool,
    jobs: int | None,
    form: str,
) -> int:
    """Draw the logs in DIRECTORIES, kstore's or a Kafka broker's, on one self-contained HTML page.

    A directory is one partition, or holds partitions. The page shows where the bytes are, the segments of each
    partition, batches, codecs and records, and each damaged place with its bytes and the fields of its header.

    It has no key, value, header or client name unless --with-payload is given.

    Several logs are examined on all cores. Nothing is written to DIRECTORIES, no lock is taken, and a writer may be at
    work.
    """
    if form == "html" and output is None and sys.stdout.isatty():
        raise click.UsageError("a page is not for a terminal: give -o FILE, or --format json")
    if form == "json" and output is not None:
        raise click.UsageError("--format json goes to standard output")
    paths = [Path(directory) for directory in directories]
    places = [LogPlace(log, SYSTEM_FS, str(log)) for log in logs_of(paths)]
    sizes = [(2 if deep else 1) * log_bytes(place) for place in places]
    sampled = largest([place.path for place in places], sizes)
    look = partial(_examined, deep, with_payload, frozenset(map(str, sampled)))
    with progress("report", sum(sizes)) as advance:
        costs = sizes if deep else [size // HEADERS_SPEED for size in sizes]
        with closing(each_log(look, places, costs, advance, jobs)) as logs:
            gathered = gathered_from(logs, paths, deep=deep, with_payload=with_payload)
    made = report_on(gathered, hash_names=hash_names)
    if output is not None:
        try:
            made.save(output)
        except OSError as error:
            raise click.ClickException(f"{output}: {error.strerror}") from None
    else:
        sys.stdout.write(f"{made.json()}\n" if form == "json" else made.html())
        sys.stdout.flush()
    return OK if made.is_sound else DAMAGED


def _examined(
    deep: bool, with_payload: bool, sampled: frozenset[str], place: LogPlace, advance: Advance
) -> GatheredLog:
    return examined(
        place.path,
        deep=deep,
        with_payload=with_payload,
        with_savings=str(place.path) in sampled,
        fs=place.fs,
        advance=advance,
    )
