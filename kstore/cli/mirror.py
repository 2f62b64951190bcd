"""``kstore mirror``: copies logs, byte for byte, and brings the copies up to date."""

from __future__ import annotations

import json

import click

from kstore.cli.command import DAMAGED, OK, KstoreCommand
from kstore.cli.json_fields import damage_fields, owner_fields
from kstore.cli.options import STORAGE_OPTION, format_option, tell_lost
from kstore.cli.progress import progress
from kstore.cli.terminal import say
from kstore.files.fs import plain_text
from kstore.upkeep.mirror import MirroredLog, mirror, size_of
from kstore.upkeep.numbers import counted

EXAMPLES = """
\b
Examples:
  kstore mirror data backup                                  every log in data; run it again to update backup
  kstore mirror data/orders-0 /mnt/backup/orders-0
  kstore mirror --delete data hdfs://name-node:8020/kafka    needs kstore[hdfs]
  kstore mirror data s3://bucket/kafka --storage-option profile=backup      needs s3fs
  kstore mirror s3://bucket/kafka restored

SRC is a log, or a directory of <topic>-<partition>; it is only read, and may have a live writer. A local DST gets
everything that can be read; an object store gets only sealed segments, not the active one. Batches are checked once,
while they are copied. An interrupted run continues with the next one. A copy that was opened and closed can be updated,
one that was written to cannot.

\b
Exit status:
  0  DST is up to date
  1  a log could not be mirrored, or damage was found (it is copied unchanged); standard error says which
  2  bad usage
"""


@click.command(
    "mirror", cls=KstoreCommand, epilog=EXAMPLES, short_help="Copy logs byte for byte and update the copies."
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--delete", is_flag=True, help="Remove from DST what retention has removed from SRC.")
@click.option("--force", is_flag=True, help="If DST differs from SRC, remove that data and copy it again.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print the steps.")
@STORAGE_OPTION
@format_option("text: one line a log. json: one object a log.")
def command(
    source: str,
    target: str,
    delete: bool,
    force: bool,
    dry_run: bool,
    storage_options: dict[str, str],
    form: str,
) -> int:
    """Mirror the logs in SRC to DST: the same offsets, the same bytes.

    Either may be a local path, hdfs://..., or a URL that fsspec knows (s3://, gs://, abfs://, webhdfs://, ...).
    """
    status = OK
    with progress("mirror", size_of(source, storage_options=storage_options)) as advance:
        results = mirror(
            source,
            target,
            delete=delete,
            force=force,
            dry_run=dry_run,
            storage_options=storage_options,
            advance=advance,
        )
        for result in results:
            if not result.ok:
                status = DAMAGED
                _complain(result)
            print(_json(result) if form == "json" else _text(result), flush=True)
    return status


def _complain(result: MirroredLog) -> None:
    for lost in result.damage:
        tell_lost(lost)
    if result.error is not None:
        say(plain_text(result.error))


def _text(result: MirroredLog) -> str:
    if result.error is not None:
        return f"{result.name}: failed"
    would = "would be " if result.dry_run else ""
    parts = [f"{counted(result.segments_copied, 'segment')} {would}copied"]
    if result.segments_extended:
        parts.append(f"{result.segments_extended} extended")
    parts.append(f"{result.segments_skipped} already there")
    if result.segments_deleted:
        parts.append(f"{result.segments_deleted} {would}deleted")
    left_out = ", without the active segment" if result.active_left_out else ""
    return (
        f"{result.name}: {', '.join(parts)}, {result.bytes_copied:,} bytes, offsets {result.start_offset} to"
        f" {result.end_offset} (exclusive){left_out}"
    )


def _json(result: MirroredLog) -> str:
    return json.dumps(
        {
            "name": result.name,
            **owner_fields(result.name),
            "source": result.source,
            "target": result.target,
            "start_offset": result.start_offset,
            "end_offset": result.end_offset,
            "segments_copied": result.segments_copied,
            "segments_extended": result.segments_extended,
            "segments_skipped": result.segments_skipped,
            "segments_deleted": result.segments_deleted,
            "bytes_copied": result.bytes_copied,
            "dry_run": result.dry_run,
            "active_left_out": result.active_left_out,
            "damage": damage_fields(result.damage),
            "error": plain_text(result.error) if result.error is not None else None,
        }
    )
