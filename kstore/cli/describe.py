"""``kstore describe``: the contents of a store, partition by partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.names import complete_topics
from kstore.cli.options import format_option
from kstore.cli.record_json import compact
from kstore.cli.table import bar, has_blocks, painted, room, table, wrapped
from kstore.logs.topics import PartitionDescription
from kstore.rules.topics import format_topic_id
from kstore.store import Store, TopicDescription

# From this many on, empty partitions share a row.
ALIKE_MIN = 3
# The columns of a bar, and of the gap before it.
BAR_WIDTH_MIN, BAR_WIDTH_MAX, GAP_WIDTH = 8, 24, 2

EXAMPLES = """
\b
Examples:
  kstore describe data/
  kstore describe data/ orders
  kstore describe data/ orders --format json | jq .partitions

\b
Exit status:
  0  everything requested was printed
  1  the store or one of its logs cannot be opened, or there is no such topic
  2  bad usage
"""


@click.command("describe", cls=KstoreCommand, epilog=EXAMPLES, short_help="Print a store's contents.")
@click.argument("directory", type=click.Path())
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@format_option("text: a table a topic. json: one object a topic, with every setting.")
def command(directory: str, topics: tuple[str, ...], form: str) -> int:
    """Describe the topics of the store in DIRECTORY: offsets, segments and sizes of each partition, and settings.

    Nothing is written, and a writer or a broker may be at work. Names in DIRECTORY that kstore does not own are listed.
    """
    is_damaged = False
    with Store(directory, read_only=True) as store:
        for number, name in enumerate(topics or store.topics(internal=True)):
            topic = store.describe_topic(name)
            is_damaged |= any(partition.error for partition in topic.partitions)
            if form == "json":
                print(compact(_fields(topic)))
                continue
            if number:
                print()
            _print(topic)
        if form == "text" and not topics:
            for note in store.notes:
                print(f"{painted('note', 'yellow')}: {note}")
            for name in store.ignored:
                print(f"ignored: {name}")
    return DAMAGED if is_damaged else OK


def _fields(topic: TopicDescription) -> dict[str, object]:
    return {
        "topic": topic.name,
        "topic_id": None if topic.topic_id is None else format_topic_id(topic.topic_id),
        "durability": topic.durability,
        "settings": topic.settings,
        "config": asdict(topic.config),
        "partitions": [partition._asdict() for partition in topic.partitions],
    }


def _print(topic: TopicDescription) -> None:
    own = " ".join(f"{name}={value}" for name, value in topic.settings.items())
    topic_id = "no id" if topic.topic_id is None else f"id {format_topic_id(topic.topic_id)}"
    for line in wrapped(f"{topic.name}: {topic_id}{', ' if own else ''}{own}"):
        print(line)
    columns = ("partition", "start", "high watermark", "end", "segments", "bytes")
    rows = list(_rows(topic.partitions))
    title, *lines = table(columns, rows)
    print(title)
    for line, drawn in zip(lines, _bars(lines, rows), strict=True):
        print(f"{line}  {drawn}".rstrip())
    for row in topic.partitions:
        if row.error:
            print(f"{row.partition}: {painted('cannot be opened', 'red')}: {row.error}")
        if row.elsewhere:
            print(f"{row.partition}: {painted('note', 'yellow')}: {row.elsewhere}")


def _bars(lines: Sequence[str], rows: Sequence[tuple[object, ...]]) -> list[str]:
    """The bytes of each row, next to its line on a terminal where that has space; one partition has no need of it."""
    sizes = [size for *_, size in rows if isinstance(size, int)]
    columns = (room() or 0) - max(map(len, lines), default=0) - GAP_WIDTH
    if len(sizes) < 2 or len(lines) != len(sizes) or not has_blocks() or columns < BAR_WIDTH_MIN:
        return [""] * len(lines)
    return [bar(size, max(sizes), min(columns, BAR_WIDTH_MAX)) for size in sizes]


def _rows(partitions: Sequence[PartitionDescription]) -> Iterator[tuple[object, ...]]:
    """A row for each partition, but one for several in succession that never held a record."""
    for (*numbers, error, _), found in groupby(partitions, lambda row: row[1:]):
        names = [str(row.partition) for row in found]
        if error:
            continue
        end_offset = numbers[2]
        if len(names) >= ALIKE_MIN and not end_offset:
            names = [f"{names[0]}-{names[-1]}"]
        yield from ((name, *numbers) for name in names)
