"""``kstore queue``: inspects queues, and puts, drains and retries items."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import click

from kstore.cli.command import OK, KstoreCommand, KstoreGroup
from kstore.cli.interrupts import held_interrupts
from kstore.cli.names import complete_topics
from kstore.cli.options import RAW, SHARED_OPTION, format_option
from kstore.cli.record_json import add_bytes, compact, header_fields
from kstore.cli.record_lines import line_batches
from kstore.cli.terminal import shown_bytes
from kstore.cli.value_types import UnitType, timestamp_text
from kstore.errors import Empty, TopicNotFoundError
from kstore.files.paths import validate_topic
from kstore.log import Log
from kstore.queue.config import SECONDS_MAX
from kstore.queue.items import Shown
from kstore.queue.queue import Queue
from kstore.queue.view import QueueView
from kstore.rules.internal_topics import journal_of
from kstore.setting_rules import TIME_UNITS_MS
from kstore.store import Store
from kstore.upkeep.numbers import counted

CHUNK = 500
# Earlier releases took seconds.
DELAY = UnitType("duration", TIME_UNITS_MS, "5s or 500ms", bare="s", maximum=int(SECONDS_MAX) * 1000)

EXAMPLES = """
\b
Examples:
  kstore queue stats data/ jobs                      another process may be using it
  kstore queue peek --count 3 data/ jobs
  seq 10 | kstore queue put --delay 60s data/ jobs    an item a line
  kstore queue drain data/ jobs > items.txt          each item is done once printed
  kstore queue retry-dead data/ jobs                 puts items again that were delivered too many times

\b
Exit status:
  0  done
  1  no such queue, it cannot be read or written, or another process has the store
  2  bad usage
"""

FORMAT = format_option("json: one object a line.")
COUNT = click.option("--count", type=click.IntRange(1), metavar="N", help="At most N items.")
ADOPT = click.option("--adopt", is_flag=True, help="Let a topic with records that was no queue become one.")


@click.group("queue", cls=KstoreGroup, epilog=EXAMPLES, short_help="Inspect queues; put, drain and retry items.")
def command() -> None:
    """Inspect the queues of a store, and put, drain and retry their items."""


def _sub(name: str, help_line: str) -> Callable[[Callable[..., int]], click.Command]:
    def decorate(function: Callable[..., int]) -> click.Command:
        with_arguments = click.argument("directory", type=click.Path())(
            click.argument("name", metavar="QUEUE", shell_complete=complete_topics)(function)
        )
        return command.command(name, cls=KstoreCommand, short_help=help_line)(with_arguments)

    return decorate


def _view(store: Store, name: str) -> QueueView:
    items = store.log(name)
    journal: Log | None
    try:
        journal = store.log(journal_of(name))
    except TopicNotFoundError:
        journal = None
    return QueueView(items, journal)


@_sub("stats", "Print a queue's state.")
@FORMAT
def _stats(directory: str, name: str, form: str) -> int:
    """Print how many items QUEUE of the store in DIRECTORY holds. Nothing is written.

    Leases are known if processes share the queue; a process that has it alone keeps them in memory.
    """
    with Store(directory, read_only=True) as store:
        counts = _view(store, name).counts()
        try:
            dead = _view(store, name + ".dead").counts().pending
        except TopicNotFoundError:
            dead = 0
    found = {"queue": name, **counts._asdict(), "dead_letters": dead}
    if form == "json":
        print(compact(found))
    else:
        oldest_ms = found.pop("oldest_ms")
        for key, value in found.items():
            print(f"{key:13} {value:,}" if isinstance(value, int) else f"{key:13} {value}")
        print(f"{'oldest':13} {'-' if oldest_ms is None else timestamp_text(oldest_ms)}")
    return OK


@_sub("peek", "Print the oldest items.")
@click.option("--count", type=click.IntRange(1), default=10, show_default=True, metavar="N", help="At most N items.")
@FORMAT
@RAW
def _peek(directory: str, name: str, count: int, form: str) -> int:
    """Print the oldest items of QUEUE that are not done. Nothing is written, and nothing leased.

    In JSON, bytes that are not UTF-8 are in base64, under key_base64 or value_base64.
    """
    with Store(directory, read_only=True) as store:
        for number, shown in enumerate(_view(store, name).pending()):
            if number == count:
                break
            _print(shown, form)
    return OK


def _print(shown: Shown, form: str) -> None:
    if form == "json":
        print(compact(_fields(shown)))
    else:
        _write(shown.value)


def _write(value: bytes | None) -> None:
    shown = shown_bytes() or bytes
    sys.stdout.buffer.write(shown(value or b"") + b"\n")


def _fields(shown: Shown) -> dict[str, Any]:
    fields: dict[str, Any] = {"offset": shown.offset, "timestamp": shown.timestamp}
    add_bytes(fields, "key", shown.key)
    add_bytes(fields, "value", shown.value)
    return fields | {
        "headers": header_fields(shown.headers),
        "delivery_count": shown.delivery_count,
        "due_ms": shown.due_ms or None,
        "is_leased": shown.is_leased,
    }


def _opened(store: Store, name: str, *, adopt: bool) -> Queue:
    """``Store.queue``, whose warning becomes a line that names the option."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        try:
            return store.queue(name, adopt=adopt)
        except FutureWarning:  # nothing has changed yet
            print(
                f"warning: topic {name} was no queue, and what is drained is deleted for all its readers: give --adopt "
                "if that is meant. The next minor release requires it",
                file=sys.stderr,
            )
    return store.queue(name, adopt=True)


@_sub("put", "Put lines of standard input.")
@click.option("--delay", "delay_ms", type=DELAY, default=0, help="Deliver this much later, as 5s.")
@ADOPT
@SHARED_OPTION
def _put(directory: str, name: str, delay_ms: int, adopt: bool, shared: bool) -> int:
    """Put each line of standard input into QUEUE, which is created if it does not exist.

    Lines are put as they arrive: a slow writer's at once, a fast one's many at a time.
    """
    validate_topic(name)  # before there is a store: a mistyped name creates none
    count = 0
    with Store(directory, background=False, shared=shared) as store, held_interrupts() as interrupts:
        queue = _opened(store, name, adopt=adopt)
        try:
            for lines in line_batches(sys.stdin.buffer, interrupts, CHUNK):
                queue.put_many(lines, delay=delay_ms / 1000)
                count += len(lines)
        finally:
            print(f"put {counted(count, 'item')} into {name}", file=sys.stderr)
    return OK


@_sub("drain", "Print and remove items.")
@COUNT
@ADOPT
@SHARED_OPTION
@RAW
def _drain(directory: str, name: str, count: int | None, adopt: bool, shared: bool) -> int:
    """Print the items of QUEUE that may be delivered now, one a line; each is done once printed."""
    drained = 0
    with Store(directory, create=False, background=False, shared=shared) as store:
        store.partitions(name)
        queue = _opened(store, name, adopt=adopt)
        while count is None or drained < count:
            try:
                jobs = queue.get_many(CHUNK if count is None else min(CHUNK, count - drained), block=False)
            except Empty:
                break
            for job in jobs:
                _write(job.value)
            sys.stdout.buffer.flush()
            queue.ack_many(jobs)
            drained += len(jobs)
    print(f"drained {counted(drained, 'item')} from {name}", file=sys.stderr)
    return OK


@_sub("retry-dead", "Put dead letters again.")
@COUNT
@ADOPT
@SHARED_OPTION
def _retry_dead(directory: str, name: str, count: int | None, adopt: bool, shared: bool) -> int:
    """Put items that were delivered too many times into QUEUE again, as if they were new."""
    with Store(directory, create=False, background=False, shared=shared) as store:
        store.partitions(name)
        moved = _opened(store, name, adopt=adopt).retry_dead(count)
    print(f"put {counted(moved, 'dead letter')} of {name} again", file=sys.stderr)
    return OK
