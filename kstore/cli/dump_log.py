"""``kstore dump-log``: the contents of a log's files, in the lines of Kafka's kafka-dump-log, or as JSON."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from kstore import __version__
from kstore.cli.command import DAMAGED, FAILED, OK, KstoreCommand
from kstore.cli.decoders import (
    BYTES_DECODERS,
    DEFAULT_CLASS,
    CoordinatorDecoder,
    Decoder,
    OffsetsDecoder,
    PlainDecoder,
    TransactionLogDecoder,
    bytes_decoder,
    cluster_metadata_decoder,
    remote_log_metadata_decoder,
)
from kstore.cli.dump.index_file import (
    dump_offset_index,
    dump_producer_snapshot,
    dump_time_index,
    dump_transaction_index,
)
from kstore.cli.dump.job import MAX_BYTES, MAX_MESSAGE_SIZE, DumpJob, DumpOptions, FileProblem, joined
from kstore.cli.dump.json_lines import JsonPrinter
from kstore.cli.dump.log_file import dump_log, dump_metadata_snapshot
from kstore.cli.dump.printer import Output, Printer, Shown
from kstore.cli.dump.text import TextPrinter
from kstore.cli.options import RAW, format_option
from kstore.cli.terminal import shown_line
from kstore.errors import CorruptDataError, StorageError
from kstore.files.fs import FileSystem
from kstore.files.paths import INDEX_SUFFIX, LOG_SUFFIX, SNAPSHOT_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX

METADATA_SNAPSHOT_SUFFIX = ".checkpoint"

DUMPERS: dict[str, Callable[[DumpJob, str], None]] = {
    LOG_SUFFIX: dump_log,
    METADATA_SNAPSHOT_SUFFIX: dump_metadata_snapshot,
    INDEX_SUFFIX: dump_offset_index,
    TIME_INDEX_SUFFIX: dump_time_index,
    TXN_INDEX_SUFFIX: dump_transaction_index,
    SNAPSHOT_SUFFIX: dump_producer_snapshot,
}
# The files that the index checks pick from a directory.
CHECKED_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)

# In the order in which Kafka's tool checks them: the first one given wins.
RECORD_DECODERS: dict[str, Callable[[], Decoder]] = {
    "offsets_decoder": OffsetsDecoder,
    "transaction_log_decoder": TransactionLogDecoder,
    "cluster_metadata_decoder": cluster_metadata_decoder,
    "remote_log_metadata_decoder": remote_log_metadata_decoder,
    "share_group_state_decoder": partial(CoordinatorDecoder, "share"),
}

EXAMPLES = """
\b
Examples:
  kstore dump-log --files data/orders-0/00000000000000000000.log
  kstore dump-log --print-data-log data/orders-0/00000000000000000000.log
  kstore dump-log --verify-index-only data/
  kstore dump-log --format json data/orders-0 | jq 'select(.type == "damage")'
  kstore dump-log --offsets-decoder --files __consumer_offsets-7/00000000000000000000.log
  kstore dump-log s3://bucket/backups/orders-0      the last backup; needs s3fs

\b
Exit status:
  0  no problem was found
  1  damage, an index that contradicts its log, or a file that cannot be opened; standard error describes it
  2  bad usage
"""


def _decoder_class(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and bytes_decoder(value) is None:
        raise click.BadParameter(f"{value!r}, expected one of {', '.join(BYTES_DECODERS)}", context, parameter)
    return value


@click.command("dump-log", cls=KstoreCommand, epilog=EXAMPLES, short_help="Show the contents of a log's files.")
@click.argument("paths", nargs=-1, type=click.Path())
@click.option("--files", multiple=True, metavar="FILE[,FILE...]", help="The files to dump, separated by commas.")
@click.option("--print-data-log", is_flag=True, help="Print keys and values; a line for each record.")
@click.option("--deep-iteration", is_flag=True, help="A line for each record, not only for each batch.")
@click.option("--verify-index-only", is_flag=True, help="Check index entries against the log without printing them.")
@click.option(
    "--index-sanity-check", is_flag=True, help="Make only the check by which a broker decides to rebuild an index."
)
@click.option(
    "--max-message-size",
    type=click.IntRange(1, MAX_BYTES),
    default=MAX_MESSAGE_SIZE,
    show_default=True,
    metavar="BYTES",
    help="The largest batch to expect where an index points.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(0, MAX_BYTES),
    default=MAX_BYTES,
    metavar="BYTES",
    help="Dump only the whole batches among the first BYTES of each .log.",
)
@click.option(
    "--value-decoder-class",
    is_flag=False,
    flag_value=DEFAULT_CLASS,
    metavar="[CLASS]",
    callback=_decoder_class,
    help=f"How to print values: {', '.join(BYTES_DECODERS)} (hex), alone or with their Java package.",
)
@click.option(
    "--key-decoder-class",
    is_flag=False,
    flag_value=DEFAULT_CLASS,
    metavar="[CLASS]",
    callback=_decoder_class,
    help="How to print keys.",
)
@click.option("--offsets-decoder", is_flag=True, help="Records of __consumer_offsets.")
@click.option("--transaction-log-decoder", is_flag=True, help="Records of __transaction_state.")
@click.option("--cluster-metadata-decoder", is_flag=True, help="Records of __cluster_metadata.")
@click.option("--remote-log-metadata-decoder", is_flag=True, help="Records of __remote_log_metadata.")
@click.option("--share-group-state-decoder", is_flag=True, help="Records of __share_group_state.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only the key and value of each record.")
@format_option("text: Kafka's lines. json: one object a line, damage and mismatches too.")
@RAW
@click.option(
    "--kafka-status", is_flag=True, help="Exit as Kafka's tool does: 0 if a file of no known kind does not exist."
)
@click.option("--past-damage", is_flag=True, help="Continue after damage in the same file, at the next whole batch.")
@click.version_option(__version__, prog_name="kstore", message="%(prog)s %(version)s, the options of Kafka 4.4's tool")
def command(
    paths: tuple[str, ...],
    files: tuple[str, ...],
    print_data_log: bool,
    deep_iteration: bool,
    verify_index_only: bool,
    index_sanity_check: bool,
    max_message_size: int,
    max_bytes: int,
    value_decoder_class: str | None,
    key_decoder_class: str | None,
    skip_record_metadata: bool,
    form: str,
    kafka_status: bool,
    past_damage: bool,
    **decoders: bool,
) -> int:
    """Show the contents of .log, .index, .timeindex, .txnindex, .snapshot and .checkpoint files.

    PATHS are such files, or directories, which stand for all their files in name order. They may be in a place of
    backups, under the names that they have in the store, or in an object store or on HDFS. The options and the lines
    are those of kafka-dump-log in Kafka 4.4. The dumped files are never written to.

    The decoders know the records of Kafka 4.4; an unknown record is printed as Kafka's tool prints what it cannot
    decode.
    """
    named = [name for names in files for name in names.split(",") if name] + list(paths)
    if not named:
        raise click.UsageError("no files: give PATHS or --files")
    chosen = [name for name in RECORD_DECODERS if decoders[name]]
    has_class = value_decoder_class is not None or key_decoder_class is not None
    decoder: Decoder | None = None
    if chosen:
        decoder = RECORD_DECODERS[chosen[0]]()
    elif print_data_log or has_class:
        decoder = _plain_decoder(key_decoder_class, value_decoder_class)
    options = DumpOptions(
        deep_iteration=deep_iteration or decoder is not None,
        verify_index_only=verify_index_only,
        index_sanity_check=index_sanity_check,
        max_message_size=max_message_size,
        max_bytes=max_bytes,
        past_damage=past_damage,
        kafka_status=kafka_status,
        shown=Shown(metadata=not skip_record_metadata, decoder=decoder),
    )
    output = Output(sys.stdout.buffer, sys.stderr, shown_line())
    printer: Printer = (
        TextPrinter(output) if form == "text" else JsonPrinter(output, plain=not chosen and not has_class)
    )
    suffixes = CHECKED_SUFFIXES if verify_index_only or index_sanity_check else tuple(DUMPERS)
    return _dump(DumpJob(options, printer), named, suffixes)


def _plain_decoder(key_class: str | None, value_class: str | None) -> Decoder:
    key, value = bytes_decoder(key_class or DEFAULT_CLASS), bytes_decoder(value_class or DEFAULT_CLASS)
    assert key is not None
    assert value is not None
    return PlainDecoder(key, value)


def _dump(job: DumpJob, named: Sequence[str], suffixes: tuple[str, ...]) -> int:
    """Dumps file by file; returns the exit status."""
    has_failed = False
    try:
        for name in named:
            paths = _paths(job, name, suffixes)
            has_failed |= not paths
            for path in paths:
                has_failed |= not _dump_file(job, path)
        job.printer.reports(job.reports)
    finally:
        job.printer.flush()
    if job.is_damaged:
        return DAMAGED
    return FAILED if has_failed else OK


def _paths(job: DumpJob, name: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files that ``name`` stands for; reports if there are none."""
    try:
        fs, place = job.place_of_directory(name)
        paths = list(_expand(fs, place, name, suffixes))
    except CorruptDataError as error:
        job.damage(name, error.reason, error.position)
        return []
    except StorageError as error:
        job.printer.note(name, error.strerror or str(error))
        return []
    if not paths:
        job.printer.note(name, f"no {', '.join(suffixes)} in it")
    return paths


def _dump_file(job: DumpJob, path: str) -> bool:
    """Dumps one file; returns False for one that cannot be opened."""
    job.printer.file(path)
    dumper = DUMPERS.get(Path(path).suffix)
    if dumper is None:
        job.printer.ignored(path)
        return job.options.kafka_status or job.exists(path)
    try:
        dumper(job, path)
    except (FileProblem, CorruptDataError) as error:
        job.damage(path, error.reason, error.position)
    except StorageError as error:
        job.printer.note(path, error.strerror or str(error))
        # A read error of the disk is damage; a path that leads nowhere is the user's error.
        job.is_damaged |= error.errno == errno.EIO
        return False
    return True


def _expand(
    fs: FileSystem, place: Path, path: str, suffixes: tuple[str, ...], *, follows: bool = True
) -> Iterator[str]:
    """``path`` itself, which is at ``place``, or, for a directory, its files of these kinds and those of its
    subdirectories, by name. ``follows``: also of directories that are links, whose own links are not followed."""
    if not _is_directory(fs, place, follow_symlinks=True):
        yield path
        return
    for name in sorted(fs.list(place)):
        inner = place / name
        is_own = _is_directory(fs, inner)
        if inner.suffix in suffixes or is_own or (follows and _is_directory(fs, inner, follow_symlinks=True)):
            yield from _expand(fs, inner, joined(path, name), suffixes, follows=follows and is_own)


def _is_directory(fs: FileSystem, path: Path, *, follow_symlinks: bool = False) -> bool:
    try:
        return fs.stat(path, follow_symlinks=follow_symlinks).is_dir
    except StorageError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR}:
            return False  # it is in a backup, or disappeared since the listing
        raise
