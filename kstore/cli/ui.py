"""``kstore ui``: logs in a browser, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.value_types import BYTE_RATE
from kstore.ui.checking import BYTES_PER_SECOND
from kstore.ui.server import serve

EXAMPLES = """
\b
Examples:
  kstore ui /var/lib/kafka/data
  kstore ui data/ archive/orders-0 --port 8765
  kstore ui --port 8765 data/     from another machine: ssh -L 8765:127.0.0.1:8765 host

\b
Exit status:
  1  the pages could not be served
  2  bad usage
"""


@click.command("ui", cls=KstoreCommand, epilog=EXAMPLES, short_help="Browse logs: segments, batches, records, damage.")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port on 127.0.0.1. Default: any free one.")
@click.option(
    "--deep", is_flag=True, help="Check every byte and count every record; otherwise only headers are counted."
)
@click.option(
    "--rate",
    type=BYTE_RATE,
    default=f"{BYTES_PER_SECOND // 10**6}MB",
    show_default=True,
    metavar="SIZE",
    help="Check every byte, where a page is asked to, at most this much a second.",
)
def command(directories: tuple[str, ...], port: int, deep: bool, rate: int) -> int:
    """Browse the logs in DIRECTORIES, kstore's or a Kafka broker's, from the topics down to each batch's bytes and each
    record, until Ctrl-C.

    It prints an address with a random token. Only this machine can connect, and only browsers that opened that address
    are answered. Keys, values and headers of records are shown.

    Nothing is written to DIRECTORIES, no lock is taken, and a writer may be at work.
    """
    paths = [Path(directory) for directory in directories]
    serve(paths, port=port, deep=deep, announce=_announce, check_bytes_per_second=rate)
    return OK


def _announce(address: str) -> None:
    print(f"Open {address}\nCtrl-C ends it.", flush=True)
