"""The contents of a report as a dictionary: what the JSON form prints, and the only thing that the page is drawn from.

Sizes are bytes, times ms since the epoch, end offsets exclusive. Names of counts are those of ``kstore stats``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kstore.files.paths import TopicPartition, topic_partition
from kstore.reports.gathering import Found, Gathered, GatheredLog
from kstore.reports.hexview import HexView
from kstore.reports.names import Names
from kstore.reports.readers import QueueState, Readers
from kstore.reports.timeline import Timeline
from kstore.types import NO_OFFSET, RecoveryReport
from kstore.upkeep.stat_fields import stat_fields
from kstore.upkeep.stats import Stats, total

__all__ = ["Document", "document_of"]

Document = dict[str, Any]

# Raised when a field changes its meaning or goes; new fields do not count.
FORMAT = 1


def document_of(gathered: Gathered, *, version: str, created_ms: int, hash_names: bool) -> Document:
    """The report on ``gathered``; ``version`` is kstore's."""
    logs = gathered.logs
    names = Names(hashed=hash_names)
    every = stat_fields(total(log.stats for log in logs))
    every["damage"] = sum(log.damage_count for log in logs) + len(gathered.found)
    every["notes"] = sum(log.note_count for log in logs)
    timeline = Timeline()
    for log in logs:
        timeline.merge(log.timeline)
    every["timeline"] = timeline.fields()
    every["topics"] = len({_topic(log.path) for log in logs})
    every["partitions"] = len(logs)
    return {
        "format": FORMAT,
        "kstore": version,
        "created": created_ms,
        "deep": gathered.deep,
        "with_payload": gathered.with_payload,
        "names_hashed": hash_names,
        "paths": [names.root(path) for path in gathered.paths],
        "total": every,
        "topics": _topics(logs, names),
        "partitions": [_log(log, names) for log in logs],
        "findings": [_found(each, names, path) for path, each in gathered.found],
        "groups": [
            position
            for readers in gathered.readers
            for position in _positions(readers, logs, names, gathered.with_payload)
        ],
        "queues": [_queue(readers.path, queue, names) for readers in gathered.readers for queue in readers.queues],
        "readers_problems": [
            names.text(readers.problem, readers.path) for readers in gathered.readers if readers.problem
        ],
    }


def _topic(log: Path) -> str:
    owner = topic_partition(log.name)
    return log.name if owner is None else owner.topic


def _topics(logs: list[GatheredLog], names: Names) -> list[Document]:
    by_topic: dict[str, list[GatheredLog]] = defaultdict(list)
    for log in logs:
        by_topic[_topic(log.path)].append(log)
    return [
        {
            "topic": names.topic(members[0].path),
            "partitions": len(members),
            "bytes": sum(log.stats.size for log in members),
            "records": sum(log.stats.record_count for log in members),
            "damage": sum(log.damage_count for log in members),
        }
        for _, members in sorted(by_topic.items())
    ]


def _positions(readers: Readers, logs: list[GatheredLog], names: Names, with_payload: bool) -> Iterator[Document]:
    ends = {log.path.name: log.stats.end_offset for log in logs if log.path.parent == readers.path}
    for position in readers.positions:
        end = ends.get(str(position.owner), NO_OFFSET)
        yield {
            # Clients choose the names of their groups.
            "group": names.client("group", position.group, shown=with_payload),
            "topic": names.topic(readers.path / str(position.owner)),
            "partition": position.owner.partition,
            "committed": position.committed,
            "committed_at": position.commit_timestamp,
            "end": None if end == NO_OFFSET else end,
            "lag": None if end == NO_OFFSET else max(end - position.committed, 0),
        }


def _queue(path: Path, queue: QueueState, names: Names) -> Document:
    return {
        "queue": names.topic(path / str(TopicPartition(queue.name, 0))),
        **queue.counts._asdict(),
        "dead_letters": queue.dead_count,
    }


def _log(log: GatheredLog, names: Names) -> Document:
    owner = topic_partition(log.path.name)
    fields: Document = {
        "name": names.log(log.path),
        "path": names.path(log.path),
        "topic": names.topic(log.path),
        "partition": None if owner is None else owner.partition,
        **stat_fields(log.stats),
        "damage": log.damage_count,
        "notes": log.note_count,
        "timeline": log.timeline.fields(),
        "producers": [producer._asdict() for producer in log.producers],
        "segment_list": [_segment(segment) for segment in log.stats.segments],
        "findings": [_found(each, names, log.path) for each in log.found],
    }
    if log.verification is not None:
        fields["verified"] = {
            "batches": log.verification.batch_count,
            "records": log.verification.record_count,
            "start": log.verification.start_offset,
            "stable": log.verification.last_stable_offset,
            "end": log.verification.end_offset,
        }
    if log.recovery is not None:
        fields["recovery"] = _recovery(log.recovery, names, log.path)
    if log.recovery_problem:
        fields["recovery_problem"] = names.text(log.recovery_problem, log.path)
    return fields


def _segment(segment: Stats) -> Document:
    return {
        "base": int(Path(segment.path).stem),
        "bytes": segment.size,
        "batches": segment.batch_count,
        "records": segment.record_count,
        "start": segment.start_offset,
        "end": segment.end_offset,
        "first_timestamp": segment.first_timestamp,
        "last_timestamp": segment.last_timestamp,
        "codecs": sorted(segment.codecs),
        "damage": segment.damage_count,
    }


def _found(found: Found, names: Names, path: Path) -> Document:
    fields = names.finding(found.finding, path).fields()
    if found.view is not None:
        fields["view"] = _view(found.view)
    return fields


def _view(view: HexView) -> Document:
    return {
        "position": view.position,
        "bytes": view.data.hex(),
        "hidden": view.hidden_count,
        "fields": [
            {
                "name": each.name,
                "position": view.position + each.start,
                "size": each.stop - each.start,
                "value": each.value,
                "remark": each.remark,
                "wrong": each.is_wrong,
            }
            for each in view.fields
        ],
    }


def _recovery(report: RecoveryReport, names: Names, log: Path) -> Document:
    return {
        "fenced": [
            {"first": gone.first, "last": gone.last, "path": names.text(gone.path, log), "position": gone.position}
            for gone in report.corrupt
        ],
        "cut": [
            {"path": names.text(cut.path, log), "position": cut.position, "bytes": cut.size, "reason": cut.reason}
            for cut in report.cut
        ],
        "rebuilt": [names.text(path, log) for path in report.rebuilt],
    }
