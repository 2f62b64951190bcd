"""The metrics that there are, a row for each, by what tells them; ``docs/metrics.md`` has them as tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = [
    "CONSUMER_METRICS",
    "CONSUMER_PARTITION_METRICS",
    "METRICS",
    "PRODUCER_METRICS",
    "PRODUCER_TOPIC_METRICS",
    "STORE_METRICS",
    "Histogram",
    "Metric",
    "MetricValue",
]


class Metric(NamedTuple):
    """One metric. The unit stands at the name's end, as Prometheus wants it, where it is bytes, seconds or a ratio.

    ``label`` is the name of its one label, "" where it has none.

    ``is_summed``: of many logs the sum means something.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    label: str = ""
    is_summed: bool = True


class Histogram(NamedTuple):
    """How many values were at most ``bounds[i]`` and above the bound before: ``counts[i]``; the last are above all."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


MetricValue = int | float | dict[str, float] | Histogram

METRICS = (
    Metric("appends", "counter", "appends", "Appends that were published; repetitions of a producer are not."),
    Metric("append_batches", "counter", "batches", "Batches that were appended."),
    Metric("append_records", "counter", "records", "Records that were appended."),
    Metric("append_bytes", "counter", "bytes", "Bytes of the batches that were appended, as they are stored."),
    Metric("append_duplicates", "counter", "appends", "Appends that repeated what the log had, and changed nothing."),
    Metric("append_errors", "counter", "appends", "Appends that failed, by the type of their error.", label="error"),
    Metric("group_appends", "histogram", "appends", "Appends that shared one write and sync (group commit)."),
    Metric("sync_seconds", "histogram", "seconds", "What a sync of a .log took; with its write where both are one."),
    Metric("rolls", "counter", "segments", "New segments that were begun."),
    Metric("truncations", "counter", "truncations", "Truncations, partly or fully."),
    Metric("segments_deleted", "counter", "segments", "Segments that retention, delete_records or a truncation took."),
    Metric("retention_segments", "counter", "segments", "Those of them that retention took, by time or size."),
    Metric("retention_deleted_bytes", "counter", "bytes", "Bytes of .log files in those."),
    Metric("compactions", "counter", "compactions", "Compactions that had something to do."),
    Metric("compaction_seconds", "counter", "seconds", "What they took, all together."),
    Metric("compaction_records_read", "counter", "records", "Records that they went through."),
    Metric("compaction_records_removed", "counter", "records", "Records among those that did not stay."),
    Metric("compaction_damaged", "counter", "segments", "Segments that a compaction left as they are, for damage."),
    Metric("segments_compacted", "counter", "segments", "Segments that compaction has replaced."),
    Metric("index_failures", "counter", "segments", "Indexes that could not be written, and were given up."),
    Metric("reads", "counter", "reads", "Iterators and fetches that were asked for."),
    Metric("read_batches", "counter", "batches", "Batches that iterators have handed out."),
    Metric(
        "read_records",
        "counter",
        "records",
        "Records in them, within the offsets asked for; of a compacted batch that was asked for in part, at most.",
    ),
    Metric("read_bytes", "counter", "bytes", "Bytes of the batches that were handed out, and of fetched slices."),
    Metric("corrupt_ranges", "counter", "ranges", "Damaged ranges that reads have met; they were told, or left out."),
    Metric("recoveries", "counter", "recoveries", "1 where opening had to check the log, else 0."),
    Metric("recovery_seconds", "gauge", "seconds", "What opening the log took."),
    Metric("recovery_cut_bytes", "gauge", "bytes", "Bytes that opening has cut from the end, set aside or not."),
    Metric("fenced_ranges", "gauge", "ranges", "Damaged ranges that opening has found, and that are never served."),
    Metric("fenced_offsets", "gauge", "offsets", "Offsets in those, unless their loss is accepted."),
    Metric("lost_offsets", "gauge", "offsets", "Offsets of durable records that the disk has lost, unless accepted."),
    Metric("accepted_offsets", "gauge", "offsets", "Offsets that reads pass over, since their loss was accepted."),
    Metric("segments", "gauge", "segments", "Segments of the log."),
    Metric("size_bytes", "gauge", "bytes", "Bytes of their .log files."),
    Metric("start_offset", "gauge", "offset", "The first offset that can be read.", is_summed=False),
    Metric("end_offset", "gauge", "offset", "The offset that the next record gets.", is_summed=False),
    Metric("high_watermark", "gauge", "offset", "Where reads stop.", is_summed=False),
    Metric("last_stable_offset", "gauge", "offset", "Where committed reads stop.", is_summed=False),
    Metric("recovery_point", "gauge", "offset", "Below it the next open checks nothing.", is_summed=False),
    Metric("flush_lag_records", "gauge", "records", "Offsets below the end that are not known to be on disk."),
    Metric("dirty_bytes", "gauge", "bytes", "Bytes that the next compaction could go through; of compacted logs only."),
    Metric("dirty_ratio", "gauge", "ratio", "Their share in what is clean or could be cleaned.", is_summed=False),
    Metric(
        "last_compaction_timestamp_seconds",
        "gauge",
        "seconds",
        "When the last compaction that had something to do ended, since the epoch; 0 for never.",
        is_summed=False,
    ),
    Metric("open_handles", "gauge", "files", "Files of sealed segments that are kept open."),
    Metric("followers", "gauge", "readers", "Readers that wait for the next append."),
    Metric("poisoned", "gauge", "logs", "1 where a failure of unknown outcome has ended all writes, else 0."),
)

STORE_METRICS = (
    Metric("topics", "gauge", "topics", "Topics of the store."),
    Metric("partitions", "gauge", "partitions", "Their partitions."),
    Metric("open_logs", "gauge", "logs", "Logs that are open; what is said of logs is said of these."),
    Metric("task_runs", "counter", "runs", "Runs of background work, by task.", label="task"),
    Metric("task_errors", "counter", "runs", "Those of them that failed.", label="task"),
    Metric("task_last_run_seconds", "gauge", "seconds", "What the task's last run took.", label="task"),
    Metric(
        "task_last_run_timestamp_seconds",
        "gauge",
        "seconds",
        "When the task's last run began, since the epoch; 0 for never.",
        label="task",
    ),
    Metric("ignored_names", "gauge", "names", "Names in the store's directory that are somebody else's."),
    Metric("notes", "gauge", "notes", "What was found amiss in the store's directory, as its status tells."),
)

# Averages, and what is the greatest, are over the producer's life.
PRODUCER_METRICS = (
    Metric("records", "counter", "records", "Records that were written."),
    Metric("bytes", "counter", "bytes", "Bytes of their batches, as they are stored."),
    Metric("batches", "counter", "batches", "Their batches."),
    Metric("writes", "counter", "writes", "Appends to logs; one takes what waits for a partition, up to 1 MiB."),
    Metric("records_per_write", "gauge", "records", "Records in one of them, on average."),
    Metric("batch_avg_bytes", "gauge", "bytes", "Bytes of a batch, as it is stored, on average."),
    Metric("batch_max_bytes", "gauge", "bytes", "Bytes of the largest."),
    Metric("compression_ratio", "gauge", "ratio", "Stored bytes by bytes before compression; 1 where nothing is."),
    Metric("queue_seconds", "counter", "seconds", "What batches have waited, from their begin to their write."),
    Metric("queue_avg_seconds", "gauge", "seconds", "What a batch has waited, on average."),
    Metric("queue_max_seconds", "gauge", "seconds", "What a batch has waited at most."),
    Metric("append_seconds", "counter", "seconds", "What writes took, with their syncs."),
    Metric("append_avg_seconds", "gauge", "seconds", "What a write took, on average."),
    Metric("append_max_seconds", "gauge", "seconds", "What a write took at most."),
    Metric("retries", "counter", "writes", "Writes that failed, and that are tried again."),
    Metric("splits", "counter", "batches", "Batches that were split, since the log takes none that large."),
    Metric("failed_records", "counter", "records", "Records that failed, those that were never in a batch too."),
    Metric("flush_seconds", "counter", "seconds", "What calls of flush took."),
    Metric("transaction_init_seconds", "counter", "seconds", "What calls of init_transactions took."),
    Metric("transaction_begin_seconds", "counter", "seconds", "What calls of begin_transaction took."),
    Metric("transaction_send_offsets_seconds", "counter", "seconds", "What calls of send_offsets took."),
    Metric("transaction_commit_seconds", "counter", "seconds", "What commits took, with the writes they waited for."),
    Metric("transaction_abort_seconds", "counter", "seconds", "What aborts took."),
    Metric("metadata_wait_seconds", "counter", "seconds", "What sends took to look topics up, and to wait for them."),
    Metric("buffer_total_bytes", "gauge", "bytes", "Bytes of memory that batches may take."),
    Metric("buffer_available_bytes", "gauge", "bytes", "Bytes of it that none has."),
    Metric("buffer_waiting_threads", "gauge", "threads", "Threads that wait for some."),
    Metric("buffer_exhausted", "counter", "records", "Records that failed, since there was none in time."),
    Metric("buffer_wait_seconds", "counter", "seconds", "What threads have waited for it, all together."),
    Metric("waiting_batches", "gauge", "batches", "Batches that have no result yet."),
)

PRODUCER_TOPIC_METRICS = (
    Metric("records", "counter", "records", "Records that were written to the topic."),
    Metric("bytes", "counter", "bytes", "Bytes of their batches, as they are stored."),
    Metric("retries", "counter", "writes", "Writes to it that failed, and that are tried again."),
    Metric("failed_records", "counter", "records", "Records for it that failed."),
    Metric("compression_ratio", "gauge", "ratio", "Stored bytes by bytes before compression; 1 where nothing is."),
)

CONSUMER_METRICS = (
    Metric("records", "counter", "records", "Records that were handed out; in an iteration by their offsets."),
    Metric("bytes", "counter", "bytes", "Bytes of the batches they came from, as stored; of columns, in memory."),
    Metric("commits", "counter", "commits", "Commits that had something to commit."),
    Metric("commit_errors", "counter", "commits", "Those of them that failed."),
    Metric("commit_seconds", "counter", "seconds", "What they took."),
    Metric("rebalances", "counter", "rebalances", "How often its partitions have changed, as one of a group."),
    Metric("partitions", "gauge", "partitions", "Partitions that it has."),
    Metric("lag_records", "gauge", "records", "Offsets that lie before it, in all of them."),
    Metric("lag_max_records", "gauge", "records", "Offsets that lie before it in the one where most do."),
    Metric("last_poll_age_seconds", "gauge", "seconds", "How long ago it has last asked for records."),
)

CONSUMER_PARTITION_METRICS = (
    Metric("position", "gauge", "offset", "The offset of the next record, as of the last look."),
    Metric("lag_records", "gauge", "records", "Offsets between it and the end."),
)
