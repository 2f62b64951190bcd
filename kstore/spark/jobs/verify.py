"""``verify``: every CRC, offset, index entry and snapshot of whole directories of logs, a segment a task.

It finds what ``kstore verify`` finds, except for producers in segments without a snapshot at their start
(``kstore.upkeep.verify.pieces``). Nothing is written, and no lock is taken.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kstore.files.local import SYSTEM_FS
from kstore.files.remote import open_remote
from kstore.spark.jobs.command import DAMAGED, OK, Work, job_parser, run, storage_options, summary
from kstore.spark.jobs.logs import LogAt, find_all_logs, segments_of, writer_at_work
from kstore.spark.jobs.spread import TASK_BYTES, grouped, spread_objects
from kstore.types import NO_OFFSET
from kstore.upkeep.verify import Finding, LogVerification, verify_store_files
from kstore.upkeep.verify.findings import NO_POSITION
from kstore.upkeep.verify.partition import verify_head
from kstore.upkeep.verify.pieces import PieceVerification, SegmentToVerify, join, pieces_of, verify_piece

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Verification", "main", "verify"]

# Per log: the rest is usually damage of the same kind.
FINDINGS_SHOWN = 100

SEGMENTS_SCHEMA = (
    "log string, segment long, end_offset long, size long, batches long, records long, damages int, notes int"
)
FINDINGS_SCHEMA = (
    "log string, severity string, kind string, path string, position long, first_offset long, last_offset long,"
    " reason string"
)

EXAMPLES = """
examples:
  kstore spark verify data/ /var/lib/kafka/data
  kstore spark verify --report report/ hdfs://name-node:8020/kafka
  spark-submit kstore/spark/jobs/verify.py data/

exit status:
  0  everything is as it was written
  1  damage, or unreadable data
  2  bad usage
"""


class _Item(NamedTuple):
    """A piece, with its log and its size."""

    at: LogAt
    piece: SegmentToVerify
    size: int


@dataclass
class Verification:
    """The findings: ``logs`` in order, a store's own first if it has any.

    ``segments`` are DataFrame rows of SEGMENTS_SCHEMA; the two DataFrames are created on demand.
    """

    spark: SparkSession
    logs: list[LogVerification]
    segment_rows: list[tuple[Any, ...]]

    @property
    def is_sound(self) -> bool:
        return all(log.is_sound for log in self.logs)

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """The findings, each with its log."""
        return [(log.path, finding) for log in self.logs for finding in log.findings]

    @cached_property
    def report(self) -> DataFrame:
        """A row for each finding: FINDINGS_SCHEMA. Null: no position, or no offsets."""
        rows = [
            (
                log,
                found.severity,
                found.kind,
                found.path,
                None if found.position == NO_POSITION else found.position,
                None if found.first == NO_OFFSET else found.first,
                None if found.last == NO_OFFSET else found.last,
                found.reason,
            )
            for log, found in self.findings
        ]
        return self.spark.createDataFrame(rows, FINDINGS_SCHEMA)

    @cached_property
    def segments(self) -> DataFrame:
        """A row for each segment: SEGMENTS_SCHEMA."""
        return self.spark.createDataFrame(self.segment_rows, SEGMENTS_SCHEMA)


def verify(
    spark: SparkSession,
    urls: Sequence[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    task_bytes: int = TASK_BYTES,
) -> Verification:
    """Verifies the logs at ``urls``, each a log or a directory of logs, local or remote.

    Raises: NotALogError, StorageError if a directory cannot be listed; unreadable data is a finding.
    """
    options = dict(storage_options or {})
    logs = find_all_logs(urls, options)
    stores = [_store(url, options) for url in urls]
    heads = [verify_head(at.location.path, fs=at.location.reading) for at in logs]
    items: list[_Item] = []
    for at, head in zip(logs, heads, strict=True):
        location = at.location
        sizes = {segment.base_offset: segment.size for segment in segments_of(location)}
        for piece in pieces_of(head, is_live=writer_at_work(location)):
            items.append(_Item(at, piece, sizes.get(piece.base_offset, 0)))
    groups = grouped(items, lambda item: item.size, task_bytes)
    found = spread_objects(spark, groups, _verify_item)
    by_log: dict[str, list[PieceVerification]] = {at.url: [] for at in logs}
    rows = []
    for item, result in zip(items, found, strict=True):
        by_log[item.at.url].append(result)
        log = result.log
        rows.append(
            (
                item.at.shown,
                item.piece.base_offset,
                log.end_offset,
                log.size,
                log.batch_count,
                log.record_count,
                len(log.damages),
                len(log.notes),
            )
        )
    joined = [join(head, by_log[at.url], fs=at.location.reading) for at, head in zip(logs, heads, strict=True)]
    return Verification(spark, [store for store in stores if store.findings] + joined, rows)


def _store(url: str, options: Mapping[str, Any]) -> LogVerification:
    location = open_remote(url, storage_options=options)
    return verify_store_files(location.path, fs=location.reading)


def _verify_item(item: _Item) -> PieceVerification:
    """In a task."""
    location = item.at.location
    return verify_piece(item.piece, fs=SYSTEM_FS if location.local is not None else location.reading)


# --- the command ------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = job_parser("verify", "Read every file of the logs at PATHS, and compare them with each other.", EXAMPLES)
    parser.add_argument(
        "--report",
        metavar="DIR",
        help="Also write findings/ and segments/ there, as Parquet; by Spark, to any file system.",
    )
    return parser


def _prepared(options: argparse.Namespace) -> Work:
    given = storage_options(options)
    find_all_logs(options.paths, given)

    def work(spark: SparkSession) -> int:
        result = verify(spark, options.paths, storage_options=given)
        if options.report is not None:
            result.report.coalesce(1).write.mode("overwrite").parquet(f"{options.report.rstrip('/')}/findings")
            result.segments.coalesce(1).write.mode("overwrite").parquet(f"{options.report.rstrip('/')}/segments")
        for log in result.logs:
            _print_findings(log, options.format)
        fields = {
            "logs": len(result.logs),
            "segments": sum(log.segment_count for log in result.logs),
            "batches": sum(log.batch_count for log in result.logs),
            "records": sum(log.record_count for log in result.logs),
            "bytes": sum(log.size for log in result.logs),
            "notes": sum(len(log.notes) for log in result.logs),
            "damages": sum(len(log.damages) for log in result.logs),
        }
        summary(options.format, "verify", fields)
        return OK if result.is_sound else DAMAGED

    return work


def _print_findings(log: LogVerification, form: str) -> None:
    shown = sorted(log.findings, key=lambda finding: finding.severity)[:FINDINGS_SHOWN]
    for finding in shown:
        print(json.dumps({"type": "finding", **finding._asdict()}) if form == "json" else finding_line(finding))
    if form == "text" and len(shown) < len(log.findings):
        print(f"{log.path}: and {len(log.findings) - len(shown)} more")


def finding_line(finding: Finding) -> str:
    """One line: what, where, which offsets, why."""
    return f"{finding.severity}: {finding.path}{finding.at_position}{finding.at_offsets}: {finding.reason}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; the exit status."""
    return run(_parser(), arguments, _prepared)


if __name__ == "__main__":
    # Imported by name, so that executors find pickled functions by their module.
    from kstore.spark.jobs import verify as job

    sys.exit(job.main())
