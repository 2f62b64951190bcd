"""``rebuild-indexes``: rebuilds missing or damaged indexes from the batches; a segment a task.

They get the bytes that appending writes. Only on local disks: an index is written in place. The job holds the logs'
locks, so it refuses a log that another process writes to. The last segment of a log that was not closed cleanly is left
to the next writer, which rebuilds its indexes anyway.
"""

from __future__ import annotations

import argparse
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kstore.clock import SYSTEM_CLOCK
from kstore.config import LogConfig
from kstore.engine.open.transaction_rebuild import TransactionRebuild
from kstore.engine.producers import LogProducers
from kstore.engine.segments import LogSegments
from kstore.errors import ConfigError, FileMissingError, KstoreError, StorageError
from kstore.files.fs import read_file
from kstore.files.local import SYSTEM_FS
from kstore.files.log_lock import lock_log
from kstore.files.paths import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    classify,
    segment_name,
    topic_partition,
)
from kstore.files.remote import is_remote
from kstore.rules.deprecated import deprecated
from kstore.scan.visits import visit
from kstore.segment import LogSegment, SegmentContext
from kstore.segments.places import START
from kstore.spark.jobs.command import DAMAGED, OK, Work, instead, job_parser, note_deprecated, run, summary
from kstore.spark.jobs.logs import find_all_logs, local_or_url, segments_of
from kstore.spark.jobs.spread import TASK_BYTES, grouped, spread_objects
from kstore.upkeep.handover.partition import Partition
from kstore.upkeep.recover import topic_index_interval
from kstore.upkeep.verify.partition import verify_head
from kstore.upkeep.verify.pieces import SegmentToVerify, pieces_of, verify_piece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Rebuilt", "main", "rebuild_indexes"]

# Their names in a verification.
SUFFIXES = {"index": INDEX_SUFFIX, "timeindex": TIME_INDEX_SUFFIX, "txnindex": TXN_INDEX_SUFFIX}
SCHEMA = "log string, segment bigint, file string, before bigint, after bigint, changed boolean, problem string"

OPEN_FILES_MAX = 8

# In docs/spark.md.
RECIPE = "Indexes"

EXAMPLES = """
examples:
  kstore spark rebuild-indexes data/
  kstore spark rebuild-indexes --all data/orders-0
  spark-submit --master 'local[8]' kstore/spark/jobs/rebuild_indexes.py data/

exit status:
  0  the indexes are in order
  1  some could not be rebuilt
  2  bad usage, also for a URL
"""


class Rebuilt(NamedTuple):
    """A rebuilt index file: its size ``before``, -1 if it was missing, and ``after``.

    ``problem`` says why it was not rebuilt; usually "".
    """

    log: str
    segment: int
    file: str
    before: int
    after: int
    changed: bool
    problem: str = ""


class _Wanted(NamedTuple):
    """The indexes of one segment to rebuild, by suffix."""

    directory: str
    base_offset: int
    suffixes: tuple[str, ...]
    size: int
    index_interval_bytes: int
    mode: int


def _rebuild_indexes(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    every: bool = False,
    index_interval_bytes: int | None = None,
    task_bytes: int = TASK_BYTES,
) -> list[Rebuilt]:
    """Deprecated. Rebuilds the indexes of the logs at ``paths``: missing and damaged ones, or with ``every`` all.

    ``index_interval_bytes`` is the setting with which the logs were written; by default that of their topic in the
    store, and else Kafka's 4096.

    Raises: ConfigError for a URL; LockedError for a log that another process writes to, before any is changed;
    StorageError.
    """
    check_local(paths)
    logs = [Path(at.url) for at in find_all_logs([local_or_url(path) for path in paths], {})]
    with ExitStack() as held:
        wanted: list[_Wanted] = []
        for log in logs:
            held.enter_context(lock_log(log, kind="rebuild-indexes"))
        pieces = [(log, piece, size) for log in logs for piece, size in _pieces(log)]
        kinds = spread_objects(spark, grouped(pieces, lambda each: each[2], task_bytes), _damaged)
        if every:
            # Correct transaction indexes stay: they may list what compaction has removed.
            kinds = [tuple(sorted({"index", "timeindex", *found})) for found in kinds]
        rebuilt: list[Rebuilt] = []
        for (log, piece, size), found in zip(pieces, kinds, strict=True):
            suffixes = tuple(SUFFIXES[kind] for kind in found)
            if not suffixes:
                continue
            if piece.is_last and not _is_closed(log):
                problem = "the log was not closed cleanly: its next writer rebuilds this"
                for suffix in suffixes:
                    name = segment_name(piece.base_offset, suffix)
                    rebuilt.append(Rebuilt(str(log), piece.base_offset, name, -1, -1, False, problem))
                continue
            interval = index_interval_bytes or topic_index_interval(log)
            mode = stat.S_IMODE((log / segment_name(piece.base_offset, LOG_SUFFIX)).stat().st_mode)
            wanted.append(_Wanted(str(log), piece.base_offset, suffixes, size, interval, mode))
        for done in spread_objects(spark, grouped(wanted, lambda each: each.size, task_bytes), _rebuild):
            rebuilt += done
        for log in logs:
            SYSTEM_FS.sync_dir(log)
    return rebuilt


rebuild_indexes = deprecated("kstore.spark.jobs.rebuild_indexes.rebuild_indexes", instead(RECIPE), _rebuild_indexes)


def report(spark: SparkSession, rebuilt: Sequence[Rebuilt]) -> DataFrame:
    """The rebuilt indexes, as a DataFrame."""
    return spark.createDataFrame([tuple(each) for each in rebuilt], SCHEMA)


def check_local(paths: Sequence[str]) -> None:
    """Raises: ConfigError."""
    for path in paths:
        if is_remote(path):
            raise ConfigError(f"{path} is not a local path: an index is written in place, which only disks support")


def _pieces(log: Path) -> list[tuple[SegmentToVerify, int]]:
    sizes = {segment.base_offset: segment.size for segment in segments_of(find_all_logs([str(log)], {})[0].location)}
    return [(piece, sizes.get(piece.base_offset, 0)) for piece in pieces_of(verify_head(log))]


def _is_closed(log: Path) -> bool:
    owner = topic_partition(log.name) or TopicPartition(log.name, 0)
    return Partition(SYSTEM_FS, SYSTEM_CLOCK, owner, log, LogConfig().file_mode).is_closed()


# --- in a task --------------------------------------------------------------------------------------------------------


def _damaged(item: tuple[Path, SegmentToVerify, int]) -> tuple[str, ...]:
    """The indexes of a segment that are wrong, missing, or empty although they should not be."""
    log, piece, size = item
    verified = verify_piece(piece)
    kinds = {damage.kind for damage in verified.log.damages} & SUFFIXES.keys()
    if verified.unlisted:
        kinds.add("txnindex")  # a surplus entry hides nothing
    # An empty one is not wrong, but useless. The last time of a segment is always in its index.
    for kind, size_max in (("index", topic_index_interval(log)), ("timeindex", 0)):
        path = log / segment_name(piece.base_offset, SUFFIXES[kind])
        if size > size_max and path.exists() and not path.stat().st_size:
            kinds.add(kind)
    return tuple(sorted(kinds))


def _rebuild(wanted: _Wanted) -> list[Rebuilt]:
    """Rebuilds the indexes of one segment."""
    directory = Path(wanted.directory)
    config = LogConfig(file_mode=wanted.mode, index_interval_bytes=wanted.index_interval_bytes)
    context = SegmentContext.alone(SYSTEM_FS, directory, config, open_files_max=OPEN_FILES_MAX)
    work: list[tuple[tuple[str, ...], Callable[[], object]]] = [
        ((INDEX_SUFFIX, TIME_INDEX_SUFFIX), partial(_rebuild_searched, context, wanted.base_offset)),
        ((TXN_INDEX_SUFFIX,), partial(_rebuild_transactions, context, wanted.base_offset)),
    ]
    done: list[Rebuilt] = []
    for suffixes, rebuild in work:
        if not set(suffixes) & set(wanted.suffixes):
            continue
        before = {suffix: _content(directory, wanted.base_offset, suffix) for suffix in suffixes}
        problem = ""
        try:
            rebuild()
        except KstoreError as error:
            problem = str(error)
        for suffix in suffixes:
            old, new = before[suffix], _content(directory, wanted.base_offset, suffix)
            if old == new and (old is None or suffix not in wanted.suffixes):
                continue
            name = segment_name(wanted.base_offset, suffix)
            sizes = (-1 if old is None else len(old), -1 if new is None else len(new))
            done.append(Rebuilt(wanted.directory, wanted.base_offset, name, *sizes, old != new, problem))
    context.handles.clear()
    return done


def _rebuild_searched(context: SegmentContext, base_offset: int) -> None:
    segment = LogSegment(context, base_offset)
    tail = segment.activate(empty_indexes=True)
    tail.rebuild()
    if tail.index_failed:
        segment.seal()
        raise StorageError(None, "an index could not be written", str(segment.path(INDEX_SUFFIX)))
    segment.seal(sync=True)


def _rebuild_transactions(context: SegmentContext, base_offset: int) -> None:
    names = classify(SYSTEM_FS.list(context.directory))
    segments = LogSegments(LogSegment(context, base) for base in names.bases[LOG_SUFFIX])
    segment = segments.floor(base_offset)
    assert segment is not None, "it was just verified"
    rebuild = TransactionRebuild(LogProducers(context, segments, names.bases[SNAPSHOT_SUFFIX]))
    rebuild.begin(segment)
    visit(segment.walk_from(START, segment.size), rebuild, base_offset=base_offset)
    rebuild.finish()


def _content(directory: Path, base_offset: int, suffix: str) -> bytes | None:
    try:
        return read_file(SYSTEM_FS, directory / segment_name(base_offset, suffix), 1 << 31)
    except FileMissingError:
        return None


# --- the command ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = job_parser(
        "rebuild-indexes",
        "Deprecated: rebuild the missing or damaged indexes of the logs at PATHS.",
        EXAMPLES,
        paths="A log, or a directory of logs, on local disks.",
    )
    add = parser.add_argument
    add("--all", action="store_true", help="All indexes, not only those that are missing or damaged.")
    add(
        "--index-interval-bytes",
        type=int,
        metavar="N",
        help="The value with which the logs were written. Default: that of the store's topics, else 4096.",
    )
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    interval: int | None = options.index_interval_bytes
    if interval is not None:
        LogConfig.from_settings(index_interval_bytes=interval)
    check_local(options.paths)
    find_all_logs(options.paths, {})
    note_deprecated("kstore spark rebuild-indexes", RECIPE)

    def work(spark: SparkSession) -> int:
        rebuilt = _rebuild_indexes(spark, options.paths, every=options.all, index_interval_bytes=interval)
        for each in rebuilt:
            if each.problem:
                print(f"{each.log}/{each.file}: {each.problem}", file=sys.stderr)
            elif each.changed and options.format == "text":
                before = "missing" if each.before < 0 else f"{each.before:,} bytes"
                print(f"{each.log}/{each.file}: {before}, now {max(each.after, 0):,} bytes")
        failed_count = sum(bool(each.problem) for each in rebuilt)
        fields = {
            "rebuilt": sum(each.changed for each in rebuilt),
            "as_they_were": sum(not each.changed and not each.problem for each in rebuilt),
            "failed": failed_count,
        }
        summary(options.format, "rebuild-indexes", fields)
        return DAMAGED if failed_count else OK

    return work


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit status."""
    return run(_parser(), arguments, _prepared)


if __name__ == "__main__":
    # Imported by name, so that executors find pickled functions by their module.
    from kstore.spark.jobs import rebuild_indexes as job

    sys.exit(job.main())
