"""The contents of a report as a dictionary: what the JSON form prints, and all that the page is drawn from.

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
from kstore.reports.names import Names, topic_of
from kstore.reports.readers import QueueState, Readers
from kstore.types import NO_OFFSET, RecoveryReport
from kstore.upkeep.observed.keys import KeySummary
from kstore.upkeep.observed.timeline import Timeline
from kstore.upkeep.observed.transactions import LONGEST_MAX, Transactions
from kstore.upkeep.stat_fields import stat_fields
from kstore.upkeep.stats import Stats, total
from kstore.upkeep.verify.findings import Finding, consequence

Document = dict[str, Any]

# Raised when a field changes its meaning or goes; new fields do not count.
FORMAT = 1


def document_of(gathered: Gathered, *, version: str, created_ms: int, hash_names: bool) -> Document:
    """The report on ``gathered``; ``version`` is kstore's."""
    logs = gathered.logs
    names = Names(hashed=hash_names)
    every = stat_fields(total(log.stats for log in logs))
    every["damage"] = every["damage_count"] = sum(log.damage_count for log in logs) + len(gathered.found)
    every["notes"] = every["note_count"] = sum(log.note_count for log in logs)
    timeline = Timeline()
    for log in logs:
        timeline.merge(log.timeline)
    every["timeline"] = timeline.fields()
    every["transactions"] = _transactions(logs, names)
    if savings := _savings(logs):
        every["savings"] = savings
    every["topics"] = len({topic_of(log.path) for log in logs})
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
        "topics": _topics(logs, names, gathered.with_payload),
        "partitions": [_log(log, names, gathered.with_payload) for log in logs],
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


def _transactions(logs: list[GatheredLog], names: Names) -> Document:
    """Those of all logs together; the longest with their partitions."""
    together = Transactions()
    for log in logs:
        together.merge(log.transactions)
    longest = sorted(((ended, log.path) for log in logs for ended in log.transactions.longest), reverse=True)
    return together.fields() | {
        "open": sum(len(log.transactions.opened) for log in logs),
        "longest": [{"partition": names.log(path), **one.fields()} for (_, one), path in longest[:LONGEST_MAX]],
    }


def _savings(logs: list[GatheredLog]) -> Document:
    """What the sampled partitions would take by codec, from the shares of their samples; {} without any."""
    sampled = [(log, log.savings) for log in logs if log.savings is not None]
    if not sampled:
        return {}
    # How many bytes of its log stand for one of a sample.
    weighted = [(log.stats.size / found.size, found) for log, found in sampled]
    codecs = {
        codec: {
            "bytes": round(sum(weight * found.sizes[codec] for weight, found in weighted)),
            "larger_bytes": round(sum(weight * found.larger_sizes[codec] for weight, found in weighted)),
        }
        for codec in weighted[0][1].sizes
    }
    return {"partitions": len(sampled), "bytes": sum(log.stats.size for log, _ in sampled), "codecs": codecs}


def _topics(logs: list[GatheredLog], names: Names, with_payload: bool) -> list[Document]:
    by_topic: dict[str, list[GatheredLog]] = defaultdict(list)
    for log in logs:
        by_topic[topic_of(log.path)].append(log)
    return [_topic_fields(members, names, with_payload) for _, members in sorted(by_topic.items())]


def _topic_fields(logs: list[GatheredLog], names: Names, with_payload: bool) -> Document:
    fields: Document = {
        "topic": names.topic(logs[0].path),
        "partitions": len(logs),
        "bytes": sum(log.stats.size for log in logs),
        "records": sum(log.stats.record_count for log in logs),
        "damage": sum(log.damage_count for log in logs),
    }
    keys = [log.keys for log in logs if log.keys is not None]
    if keys:
        together = KeySummary()
        for each in keys:
            together.merge(each)
        decoded = [log.stats.records for log in logs if log.stats.records is not None]
        fields["key_sketch"] = together.fields(with_keys=with_payload)
        fields["keyless"] = sum(records.record_count - records.keyed_count for records in decoded)
        fields["tombstones"] = sum(records.tombstone_count for records in decoded)
    compacted = [log for log in logs if log.is_compacted]
    if compacted:
        fields["compaction"] = _compaction(compacted)
    return fields


def _compaction(logs: list[GatheredLog]) -> Document:
    """``would_free`` is an estimate, from the sample of keys; None without it."""
    dirts = [log.dirt for log in logs if log.dirt is not None]
    clean, dirty = sum(dirt.clean_bytes for dirt in dirts), sum(dirt.cleanable_bytes for dirt in dirts)
    freed = [_superseded(log) for log in logs]
    return {
        "clean_bytes": clean,
        "dirty_bytes": dirty,
        "dirty_ratio": round(dirty / (clean + dirty), 4) if clean + dirty else 0.0,
        "would_free": None if None in freed else sum(size or 0 for size in freed),
    }


def _superseded(log: GatheredLog) -> int | None:
    """About how many bytes of the log belong to records that a later one replaces, in sealed segments."""
    if log.keys is None or log.stats.records is None:
        return None
    sealed = sum(segment.size for segment in log.stats.segments[:-1])
    records = log.stats.records
    keyed = records.keyed_count / records.record_count if records.record_count else 0.0
    return round(sealed * keyed * (log.keys.superseded_share or 0.0))


def _positions(readers: Readers, logs: list[GatheredLog], names: Names, with_payload: bool) -> Iterator[Document]:
    ends = {log.path.name: log.end_offset for log in logs if log.path.parent == readers.path}
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


def _log(log: GatheredLog, names: Names, with_payload: bool) -> Document:
    owner = topic_partition(log.path.name)
    fields: Document = {
        "name": names.log(log.path),
        "path": names.path(log.path),
        "topic": names.topic(log.path),
        "partition": None if owner is None else owner.partition,
        **stat_fields(log.stats),
        "damage": log.damage_count,
        "damage_count": log.damage_count,
        "notes": log.note_count,
        "note_count": log.note_count,
        "timeline": log.timeline.fields(),
        "transactions": log.transactions.fields(),
        "producers": [producer._asdict() for producer in log.producers],
        "segment_list": [_segment(segment) for segment in log.stats.segments],
        "findings": [
            _found(each, names, log.path, is_dense=log.verification is not None and log.verification.is_dense)
            for each in log.found
        ],
    }
    if log.end_offset != NO_OFFSET:
        fields["end"] = fields["end_offset"] = log.end_offset
    if log.keys is not None:
        fields["key_sketch"] = log.keys.fields(with_keys=with_payload)
    if log.savings is not None:
        fields["savings"] = log.savings.fields()
    if log.is_compacted:
        fields["compaction"] = _compaction([log])
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


def _found(found: Found, names: Names, path: Path, *, is_dense: bool = False) -> Document:
    fields = names.finding(found.finding, path).fields()
    if means := consequence(found.finding, is_dense=is_dense):
        fields["consequence"] = means
    if found.view is not None:
        fields["view"] = view_fields(found.view)
    return fields


def finding_fields(found: Found, path: Path) -> Document:
    """A finding about the log in ``path``, with its names, and the bytes of its view."""
    return _found(found, Names(hashed=False), path)


def as_finding(fields: Document) -> Finding:
    """The finding that a document shows as ``fields``."""
    return Finding(**{name: fields[name] for name in Finding._fields if name in fields})


def view_fields(view: HexView) -> Document:
    """The bytes of a view in hex, and its fields."""
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
