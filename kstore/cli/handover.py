"""``kstore handover``: hands a directory of partitions to a Kafka broker, or takes it back."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import asdict
from typing import Any

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.json_fields import owner_fields
from kstore.cli.options import format_option
from kstore.files.paths import KSTORE_STATE
from kstore.rules.handover import parse_topic_id
from kstore.upkeep.handover import HandoverReport, from_broker, to_broker

OCTAL = re.compile(r"(?:0o)?[0-7]{3,4}", re.ASCII)
OWNER_MODE = 0o600
MODE_MAX = 0o777

EXAMPLES = """
\b
Examples:
  kstore handover data --to-broker --dry-run
  kstore handover data --to-broker --topic-id orders=b8tRS7h4TJ2Vt43Dp85v2A --mode 0660
  kstore handover data/orders-0 --to-broker
  kstore handover data --from-broker --format json

To a broker: create the topics in the cluster, stop the broker, put the partitions' directories into its log
directory, hand that over with the topics' ids, and start the broker.

\b
Exit status:
  0  handed over, or with --dry-run: nothing prevents it
  1  refused, or handed over with damage (--force); the output says why
  2  bad usage
"""


class _TopicIdType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """TOPIC=ID, the id as Kafka prints it."""

    name = "topic=id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, uuid.UUID]:
        topic, separator, text = str(value).rpartition("=")
        if not separator or not topic:
            self.fail(f"{value!r}, expected TOPIC=ID", param, ctx)
        try:
            return topic, parse_topic_id(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _ModeType(click.ParamType):  # type: ignore[type-arg]  # not generic in click 8.1
    """A mode in octal digits that lets the owner read and write."""

    name = "mode"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        mode = int(text.removeprefix("0o"), 8) if OCTAL.fullmatch(text) else 0
        if mode & OWNER_MODE != OWNER_MODE or mode > MODE_MAX:
            self.fail(f"{value!r}, expected octal digits from 0600 to 0777", param, ctx)
        return mode


@click.command("handover", cls=KstoreCommand, epilog=EXAMPLES, short_help="Hand logs to a Kafka broker, or back.")
@click.argument("directory", type=click.Path())
@click.option("--to-broker", "hands_over", is_flag=True, help="Prepare DIRECTORY for a broker to serve.")
@click.option("--from-broker", "takes_back", is_flag=True, help="Take DIRECTORY over from a stopped broker.")
@click.option("--dry-run", is_flag=True, help="Print the steps; change nothing and lock nothing.")
@click.option(
    "--topic-id",
    "topic_ids",
    type=_TopicIdType(),
    multiple=True,
    metavar="TOPIC=ID",
    help="The cluster's id of a topic, as kafka-topics --describe prints it. Repeatable. Default: the id in the"
    " existing partition.metadata.",
)
@click.option(
    "--mode", type=_ModeType(), metavar="MODE", help="Give every file this mode, as 0660. Default: unchanged."
)
@click.option("--force", is_flag=True, help="Hand over damaged logs too.")
@format_option("text: a line for each item. json: one object.")
def command(
    directory: str,
    hands_over: bool,
    takes_back: bool,
    dry_run: bool,
    topic_ids: tuple[tuple[str, uuid.UUID], ...],
    mode: int | None,
    force: bool,
    form: str,
) -> int:
    """Hand the logs in DIRECTORY to a Kafka broker (KRaft, 4.x), or take them back from one.

    DIRECTORY holds directories named <topic>-<partition>, or is one of them. Refused while a writer or a broker uses
    it. On the way to a broker every log is recovered if necessary, read whole, and closed cleanly; damage is refused.
    """
    if hands_over == takes_back:
        raise click.UsageError("give one direction: --to-broker or --from-broker")
    if takes_back:
        if topic_ids or mode is not None or force:
            raise click.UsageError("--topic-id, --mode and --force need --to-broker")
        report = from_broker(directory, dry_run=dry_run)
    else:
        given = dict(topic_ids)
        if len(given) < len(topic_ids):
            raise click.UsageError("--topic-id names a topic twice")
        report = to_broker(directory, topic_ids=given, mode=mode, force=force, dry_run=dry_run)
    click.echo(json.dumps(_fields(report), indent=2) if form == "json" else "\n".join(_lines(report)))
    return OK if report.is_whole else DAMAGED


def _fields(report: HandoverReport) -> dict[str, Any]:
    fields = asdict(report)
    for name in ("damage", "cut", "losses", "steps", "partitions"):
        fields[name] = [item._asdict() for item in getattr(report, name)]
    fields["partitions"] = [{**item, **owner_fields(item["name"])} for item in fields["partitions"]]
    return {**fields, "ok": report.is_whole}


def _lines(report: HandoverReport) -> list[str]:
    would = "would " if report.dry_run else ""
    lines = [f"{would}{step.kind} {step.path}: {step.detail}" for step in report.steps]
    lines += [
        f"partition {one.name}: offsets {one.start_offset} to {one.end_offset} (exclusive)"
        + (f", topic id {one.topic_id}" if one.topic_id else "")
        for one in report.partitions
    ]
    lines += [
        f"damaged {found.path}: offsets {found.first} to {found.last} at position {found.position}: {found.reason}"
        for found in report.damage
    ]
    lines += [
        f"cut {cut.path}: {cut.size} bytes at position {cut.position}: {cut.reason}"
        + (f"; kept as {cut.saved_as}" if cut.saved_as else "")
        for cut in report.cut
    ]
    lines += [
        f"forgotten {loss.name}: offsets {loss.first} to {loss.last} "
        + ("whose loss was accepted" if loss.is_accepted else "are lost")
        + f", as {KSTORE_STATE} said: a broker passes over them"
        for loss in report.losses
    ]
    lines += [f"left {line}" for line in report.left]
    lines += [f"note: {line}" for line in report.notes]
    lines += [f"refused: {line}" for line in report.refused]
    if report.refused:
        return [*lines, f"{report.directory}: not handed over"]
    done = "nothing prevents the handover" if report.dry_run else "handed over"
    return [*lines, f"{report.directory}: {done} ({report.direction})"]
