"""``kstore groups``: the consumer groups of a store, their offsets, and resets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.json_fields import old_names
from kstore.cli.names import complete_groups, nearest
from kstore.cli.options import format_option, renamed_option
from kstore.cli.record_json import compact
from kstore.cli.table import print_table
from kstore.cli.terminal import say
from kstore.cli.value_types import TIME_EXAMPLES, TimeType
from kstore.engine.read.times import TimePoint
from kstore.errors import ConsumerStateError, KstoreError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.log import Log
from kstore.store import Store, coordinator_of

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


# --- groups from outside: committed offsets, lag, resets --------------------------------------------------------------


class GroupOffset(NamedTuple):
    """A group's state in a partition. None: no commit, or no such log; ``member`` is "" if no member reads it."""

    owner: TopicPartition
    committed: int | None
    start_offset: int | None
    end_offset: int | None
    metadata: str = ""
    member: str = ""

    @property
    def lag(self) -> int | None:
        """The number of offsets before it."""
        if self.end_offset is None:
            return None
        begin = self.start_offset or 0 if self.committed is None else self.committed
        return max(self.end_offset - begin, 0)


class Reset(NamedTuple):
    """A committed offset, or None, and its replacement."""

    owner: TopicPartition
    before: int | None
    after: int


def describe_group(store: Store, group: str) -> list[GroupOffset]:
    """The group's state in every partition that it has committed, or that one of its members reads; sorted.

    Raises: StorageError.
    """
    offsets = store.consumer_offsets
    committed = offsets.committed(group)
    if not committed and group in offsets.groups():  # a directory may have a part of a broker's partitions
        committed = offsets.committed(group)
    members = store.group_members(group)
    found = []
    for owner in sorted({*committed, *members}):
        start = end = None
        with suppress(KstoreError):
            log = store.log(*owner)
            start, end = log.start_offset, log.high_watermark
        one = committed.get(owner)
        found.append(
            GroupOffset(
                owner,
                None if one is None else one.offset,
                start,
                end,
                "" if one is None else one.metadata,
                members.get(owner, ""),
            )
        )
    return found


def planned_reset(
    store: Store, group: str, topics: Mapping[str, Collection[int]], target: Callable[[Log, int | None], int]
) -> list[Reset]:
    """What a reset would change: all partitions of ``topics``, or without topics all committed ones.

    ``target`` computes the new offset from the log and the committed one; it is kept within the log. Raises:
    StorageError,
    TopicNotFoundError.
    """
    committed = store.consumer_offsets.committed(group)
    owners = [
        TopicPartition(topic, number)
        for topic, numbers in topics.items()
        for number in numbers or store.partitions(topic)
    ] or sorted(committed)
    planned = []
    for owner in owners:
        try:
            log = store.log(*owner)
        except TopicNotFoundError:
            if topics:
                raise
            continue  # the topic was deleted, so there is no offset to go to
        one = committed.get(owner)
        before = None if one is None else one.offset
        after = min(max(target(log, before), log.start_offset), log.high_watermark)
        planned.append(Reset(owner, before, after))
    return planned


def reset_offsets(store: Store, group: str, planned: Collection[Reset]) -> None:
    """Commits what was planned. Raises: ConsumerStateError while the group has living members; ReadOnlyError,
    StorageError."""
    if members := sorted(set(store.group_members(group).values())):
        raise ConsumerStateError(f"group {group!r} has members: {', '.join(members)}; stop them first")
    if planned:
        coordinator_of(store).commit_offsets(group, {reset.owner: reset.after for reset in planned})


def target_offset(
    *, offset: int | None = None, when: TimePoint | None = None, shift: int | None = None
) -> Callable[[Log, int | None], int]:
    """The function for ``planned_reset``: a number, the offset of a time or an end, or a distance from the
    committed."""

    def target(log: Log, committed: int | None) -> int:
        if offset is not None:
            return offset
        if when is not None:
            found = log.offset_for_time(when)
            return log.high_watermark if found is None else found
        return (log.start_offset if committed is None else committed) + (shift or 0)

    return target
