"""``kstore groups``: the consumer groups of a store, their offsets, and resets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.group_admin import GroupOffset, Reset, describe_group, planned_reset, reset_offsets, target_offset
from kstore.cli.json_fields import old_names
from kstore.cli.names import complete_groups, nearest
from kstore.cli.options import format_option
from kstore.cli.record_json import compact
from kstore.cli.renamed import renamed_option
from kstore.cli.table import print_table
from kstore.cli.terminal import say
from kstore.cli.time_type import TIME_EXAMPLES, TimeType
from kstore.engine.read.times import TimePoint
from kstore.log import Log
from kstore.store import Store

NONE = "-"

EXAMPLES = """
\b
Examples:
  kstore groups data                                          the names of all groups
  kstore groups data --describe billing                       its offsets and its lag
  kstore groups /var/kafka-logs --describe billing    of a broker's directory
  kstore groups data --reset-offsets billing --to-earliest    shows what would change
  kstore groups data --reset-offsets billing --topic orders:0,1 --to-datetime 2026-01-31T09:00:00Z --execute

Nothing is changed without --execute, which needs the store for itself: stop its other users first.

\b
Exit status:
  0  done
  1  the store cannot be opened, or is in use; standard error says why
  2  bad usage
"""


@click.command("groups", cls=KstoreCommand, epilog=EXAMPLES, short_help="List groups, show their lag, reset offsets.")
@click.argument("directory", type=click.Path())
@click.option(
    "--describe",
    "described",
    multiple=True,
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Show this group's offsets and lag.",
)
@click.option(
    "--reset-offsets",
    "reset",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Set the committed offsets of this group.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:N,...]",
    help="Reset this topic, or these partitions of it. Default: everything the group has committed.",
)
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="To the end, after the last record.")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="To this offset.")
@click.option("--to-datetime", type=TimeType(), help=f"To the first record at or after this time: {TIME_EXAMPLES}.")
@click.option(
    "--shift-by", type=int, metavar="N", help="Move the committed offset N forward, or back if N is negative."
)
@click.option("--execute", is_flag=True, help="Make the change. Without this it is only shown.")
@renamed_option("--read-only", "--dry-run", is_flag=True, help="Only show it; the default.")
@format_option()
def command(
    directory: str,
    described: tuple[str, ...],
    reset: str | None,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: int | None,
    shift_by: int | None,
    execute: bool,
    dry_run: bool,
    form: str,
) -> int:
    """List the groups that have committed offsets in the store, or broker's directory, DIRECTORY.

    Listing takes no lock and writes nothing; processes that have the store open are not disturbed. If the directory is
    one of several disks of a broker, standard error says that groups may be on another one.
    """
    if execute and dry_run:
        raise click.UsageError("--execute contradicts --dry-run")
    if reset is None:
        if execute or topics or to_earliest or to_latest or (to_offset, to_datetime, shift_by) != (None, None, None):
            raise click.UsageError("which group? --reset-offsets names it")
        with Store(directory, read_only=True) as store:
            if described:
                for group in described:
                    _print_offsets(group, describe_group(store, group), form, store.consumer_offsets.groups)
            else:
                for group in store.consumer_offsets.groups():
                    click.echo(compact({"group": group}) if form == "json" else group)
            if unseen := store.consumer_offsets.unseen():
                say(unseen)
        return OK
    if described:
        raise click.UsageError("--describe or --reset-offsets: give one of them")
    target = _target(to_earliest, to_latest, to_offset, to_datetime, shift_by)
    with Store(directory, read_only=not execute, create=False) as store:
        planned = planned_reset(store, reset, _topics(topics), target)
        if execute:
            reset_offsets(store, reset, planned)
        _print_resets(reset, planned, form, execute)
    return OK


def _target(
    to_earliest: bool, to_latest: bool, offset: int | None, time_ms: int | None, shift: int | None
) -> Callable[[Log, int | None], int]:
    times: list[TimePoint] = []
    if to_earliest:
        times.append("earliest")
    if to_latest:
        times.append("latest")
    if time_ms is not None:
        times.append(time_ms)
    if len(times) + (offset is not None) + (shift is not None) != 1:
        raise click.UsageError("give one target: --to-earliest, --to-latest, --to-offset, --to-datetime or --shift-by")
    return target_offset(offset=offset, when=times[0] if times else None, shift=shift)


def _topics(texts: Sequence[str]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for text in texts:
        name, colon, numbers = text.partition(":")
        parts = numbers.split(",") if colon else []
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise click.UsageError(f"--topic {text!r}: expected TOPIC, or TOPIC:N,... with partition numbers")
        topics.setdefault(name, []).extend(map(int, parts))
    return topics


def _print_offsets(group: str, found: Sequence[GroupOffset], form: str, groups: Callable[[], Iterable[str]]) -> None:
    if form == "json":
        for one in found:
            fields = {
                "group": group,
                "topic": one.owner.topic,
                "partition": one.owner.partition,
                "committed": one.committed,
                "start_offset": one.start_offset,
                "high_watermark": one.end_offset,
                "lag": one.lag,
                "metadata": one.metadata,
                "member": one.member,
            }
            click.echo(compact(old_names("groups", fields)))
        return
    if not found:
        say(f"group {group!r} has committed nothing{nearest(group, groups())}")
        return
    rows = [
        (
            group,
            one.owner.topic,
            one.owner.partition,
            *(NONE if number is None else number for number in (one.committed, one.end_offset, one.lag)),
            one.member or NONE,
        )
        for one in found
    ]
    print_table(("group", "topic", "partition", "committed", "end", "lag", "member"), rows, left=(0, 1))


def _print_resets(group: str, planned: Sequence[Reset], form: str, execute: bool) -> None:
    if form == "json":
        for one in planned:
            fields = {
                "group": group,
                "topic": one.owner.topic,
                "partition": one.owner.partition,
                "before": one.before,
                "after": one.after,
                "is_done": execute,
            }
            click.echo(compact(fields))
        return
    rows = [
        (group, one.owner.topic, one.owner.partition, NONE if one.before is None else one.before, one.after)
        for one in planned
    ]
    print_table(("group", "topic", "partition", "before", "after"), rows, left=(0, 1))
    if not execute:
        say("nothing was changed: --execute makes the change")
