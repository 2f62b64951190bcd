"""``kstore topics``: lists, creates, changes and deletes the topics of a store."""

from __future__ import annotations

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.json_fields import old_names
from kstore.cli.names import complete_settings, complete_topics
from kstore.cli.options import config_option, format_option, parse_settings
from kstore.cli.record_json import compact
from kstore.cli.table import print_table
from kstore.rules.topics import format_topic_id, kept_settings
from kstore.store import Store

EXAMPLES = """
\b
Examples:
  kstore topics data/                                                  list them
  kstore topics data/ --create orders --partitions 4 --config retention_ms=7d
  kstore topics data/ --alter orders --config retention_bytes=10GiB --reset retention_ms
  kstore topics data/ --alter orders --partitions 8                    more partitions
  kstore topics data/ --delete orders
  kstore topics data/ --format json | jq .

\b
Exit status:
  0  done
  1  the store or topic cannot be opened, created or changed; standard error says why
  2  bad usage
"""


@click.command("topics", cls=KstoreCommand, epilog=EXAMPLES, short_help="List, create, change and delete topics.")
@click.argument("directory", type=click.Path())
@click.option("--list", "listing", is_flag=True, help="List the topics; the default.")
@click.option("--create", metavar="NAME", help="Create a topic.")
@click.option(
    "--alter",
    metavar="NAME",
    shell_complete=complete_topics,
    help="Change a topic's settings, or give it more partitions.",
)
@click.option("--delete", metavar="NAME", shell_complete=complete_topics, help="Delete a topic with all its records.")
@click.option("--partitions", type=click.IntRange(1), metavar="N", help="The number of partitions; 1 for a new topic.")
@config_option("topic", "retention_ms=7d or retention.ms=604800000")
@click.option(
    "--reset",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_settings,
    help="Reset this setting to the store's.",
)
@format_option("text: a table. json: one object a topic.")
def command(
    directory: str,
    listing: bool,
    create: str | None,
    alter: str | None,
    delete: str | None,
    partitions: int | None,
    configs: tuple[str, ...],
    reset: tuple[str, ...],
    form: str,
) -> int:
    """Manage the topics of the store in DIRECTORY.

    A list takes no lock: a writer, or a Kafka broker, may be at work. The other options take the store's lock; --create
    also creates the store if it does not exist.
    """
    if sum((listing, create is not None, alter is not None, delete is not None)) > 1:
        raise click.UsageError("--list, --create, --alter and --delete: give one of them")
    settings = kept_settings(parse_settings(configs))  # before a store is opened, or created
    if ((settings or reset or partitions) and not (create or alter)) or (reset and create):
        raise click.UsageError("--config and --partitions need --create or --alter, --reset needs --alter")
    if create is not None:
        with Store(directory, background=False) as store:
            store.create_topic(create, partitions or 1, **settings)
    elif alter is not None:
        if not (settings or reset or partitions):
            raise click.UsageError("--alter needs --config, --reset or --partitions")
        with Store(directory, create=False, background=False) as store:
            if settings or reset:
                store.alter_topic(alter, reset=[name.replace(".", "_") for name in reset], **settings)
            if partitions:
                store.add_partitions(alter, partitions)
    elif delete is not None:
        with Store(directory, create=False, background=False, file_delete_delay_ms=0) as store:
            store.delete_topic(delete)
            store.run_task("removal")
    else:
        _list(directory, form)
    return OK


def _list(directory: str, form: str) -> None:
    with Store(directory, read_only=True) as store:
        rows = [store.summary(name) for name in store.topics(internal=True)]
    if form == "json":
        for row in rows:
            print(
                compact(
                    old_names(
                        "topics",
                        {
                            "topic": row.name,
                            "partition_count": row.partition_count,
                            "topic_id": None if row.topic_id is None else format_topic_id(row.topic_id),
                            "settings": row.settings,
                        },
                    )
                )
            )
        return
    cells = [
        (
            row.name,
            row.partition_count,
            "-" if row.topic_id is None else format_topic_id(row.topic_id),
            " ".join(f"{name}={value}" for name, value in row.settings.items()) or "-",
        )
        for row in rows
    ]
    print_table(("topic", "partitions", "topic id", "settings"), cells, left=(0, 3))
