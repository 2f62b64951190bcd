"""All metrics, one row each, grouped by the object that reports them; ``docs/metrics.md`` shows them as tables."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """One metric. If the unit is bytes, seconds or a ratio, the name ends with it, as Prometheus expects.

    ``label`` is the name of its one label, "" if it has none.

    ``is_summed``: whether a sum over several logs means something.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    meaning: str
    label: str = ""
    is_summed: bool = True


class Histogram(NamedTuple):
    """``counts[i]`` values were above ``bounds[i - 1]`` and at most ``bounds[i]``; the last count is above all
    bounds."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


MetricValue = int | float | dict[str, float] | Histogram

METRICS = (
    Metric("appends", "counter", "appends", "Published appends, without a producer's repetitions."),
    Metric("append_batches", "counter", "batches", "Appended batches."),
    Metric("append_records", "counter", "records", "Appended records."),
    Metric("append_bytes", "counter", "bytes", "Bytes of the appended batches, as stored."),
    Metric(
        "append_duplicates",
        "counter",
        "appends",
        "Appends that repeated batches already in the log and changed nothing.",
    ),
    Metric("append_errors", "counter", "appends", "Failed appends, by the type of error.", label="error"),
    Metric("group_appends", "histogram", "appends", "Appends that shared one write and sync (group commit)."),
    Metric(
        "sync_seconds", "histogram", "seconds", "Time of one sync of a .log, including its write if both are one step."
    ),
    Metric("rolls", "counter", "segments", "Segments created by a roll."),
    Metric("truncations", "counter", "truncations", "Truncations, partial or full."),
    Metric("segments_deleted", "counter", "segments", "Segments deleted by retention, delete_records or a truncation."),
    Metric("retention_segments", "counter", "segments", "Segments deleted by retention, by time or size."),
    Metric("retention_deleted_bytes", "counter", "bytes", "Bytes of .log files that retention deleted."),
    Metric("compactions", "counter", "compactions", "Compactions that had work to do."),
    Metric("compaction_seconds", "counter", "seconds", "Total time of compactions."),
    Metric("compaction_records_read", "counter", "records", "Records that compactions have read."),
    Metric("compaction_records_removed", "counter", "records", "Records that compactions have removed."),
    Metric("compaction_damaged", "counter", "segments", "Segments that a compaction left unchanged because of damage."),
    Metric("segments_compacted", "counter", "segments", "Segments that compaction has replaced."),
    Metric("index_failures", "counter", "segments", "Indexes that could not be written and were abandoned."),
    Metric("reads", "counter", "reads", "Iterators and fetches requested."),
    Metric("read_batches", "counter", "batches", "Batches returned by iterators."),
    Metric(
        "read_records",
        "counter",
        "records",
        "Records in them within the requested offsets; an upper bound for a partly requested compacted batch.",
    ),
    Metric("read_bytes", "counter", "bytes", "Bytes of the returned batches and of fetched slices."),
    Metric("corrupt_ranges", "counter", "ranges", "Damaged ranges that reads have met, whether raised or skipped."),
    Metric("recoveries", "counter", "recoveries", "1 if opening had to check the log, else 0."),
    Metric("recovery_seconds", "gauge", "seconds", "Time that opening the log took."),
    Metric("recovery_cut_bytes", "gauge", "bytes", "Bytes that opening cut from the end, whether set aside or not."),
    Metric("fenced_ranges", "gauge", "ranges", "Damaged ranges that opening found; they are never served."),
    Metric("fenced_offsets", "gauge", "offsets", "Offsets in fenced ranges, unless their loss is accepted."),
    Metric("lost_offsets", "gauge", "offsets", "Offsets of durable records that the disk has lost, unless accepted."),
    Metric("accepted_offsets", "gauge", "offsets", "Offsets that reads skip because their loss was accepted."),
    Metric("segments", "gauge", "segments", "Segments of the log."),
    Metric("size_bytes", "gauge", "bytes", "Bytes of their .log files."),
    Metric("start_offset", "gauge", "offset", "The first offset that can be read.", is_summed=False),
    Metric("end_offset", "gauge", "offset", "The offset that the next record gets.", is_summed=False),
    Metric("high_watermark", "gauge", "offset", "Where reads stop.", is_summed=False),
    Metric("last_stable_offset", "gauge", "offset", "Where committed reads stop.", is_summed=False),
    Metric("recovery_point", "gauge", "offset", "The next open checks nothing below it.", is_summed=False),
    Metric("flush_lag_records", "gauge", "records", "Offsets below the end that are not known to be on disk."),
    Metric("dirty_bytes", "gauge", "bytes", "Bytes that the next compaction could read; compacted logs only."),
    Metric("dirty_ratio", "gauge", "ratio", "Dirty bytes as a share of clean and cleanable bytes.", is_summed=False),
    Metric(
        "last_compaction_timestamp_seconds",
        "gauge",
        "seconds",
        "When the last compaction with work to do ended, since the epoch; 0 for never.",
        is_summed=False,
    ),
    Metric("open_handles", "gauge", "files", "Files of sealed segments that are kept open."),
    Metric("followers", "gauge", "readers", "Readers that wait for the next append."),
    Metric("poisoned", "gauge", "logs", "1 if a failure of unknown outcome has ended all writes, else 0."),
)

STORE_METRICS = (
    Metric("topics", "gauge", "topics", "Topics of the store."),
    Metric("partitions", "gauge", "partitions", "Their partitions."),
    Metric("open_logs", "gauge", "logs", "Open logs; metrics about logs cover these."),
    Metric("task_runs", "counter", "runs", "Runs of background work, by task.", label="task"),
    Metric("task_errors", "counter", "runs", "Failed runs of background work.", label="task"),
    Metric("task_last_run_seconds", "gauge", "seconds", "Time of the task's last run.", label="task"),
    Metric(
        "task_last_run_timestamp_seconds",
        "gauge",
        "seconds",
        "When the task's last run began, since the epoch; 0 for never.",
        label="task",
    ),
    Metric(
        "replication_lag_seconds",
        "gauge",
        "seconds",
        "How long a replicator's target has lacked something; 0 if it lacks nothing, as far as known.",
        label="target",
    ),
    Metric("ignored_names", "gauge", "names", "Names in the store's directory that kstore does not own."),
    Metric("notes", "gauge", "notes", "Problems found in the store's directory; its status lists them."),
)

# Averages and maxima cover the producer's life.
PRODUCER_METRICS = (
    Metric("records", "counter", "records", "Written records."),
    Metric("bytes", "counter", "bytes", "Bytes of their batches, as stored."),
    Metric("batches", "counter", "batches", "Their batches."),
    Metric(
        "writes",
        "counter",
        "writes",
        "Appends to logs; each takes up to 1 MiB of a partition's waiting batches (16 MiB if the log syncs).",
    ),
    Metric("records_per_write", "gauge", "records", "Average number of records per write."),
    Metric("batch_avg_bytes", "gauge", "bytes", "Average size of a batch, as stored."),
    Metric("batch_max_bytes", "gauge", "bytes", "Size of the largest batch, as stored."),
    Metric(
        "compression_ratio",
        "gauge",
        "ratio",
        "Stored bytes divided by bytes before compression; 1 without compression.",
    ),
    Metric("queue_seconds", "counter", "seconds", "Total wait of batches, from their first record to their write."),
    Metric("queue_avg_seconds", "gauge", "seconds", "Average wait of a batch."),
    Metric("queue_max_seconds", "gauge", "seconds", "Longest wait of a batch."),
    Metric("append_seconds", "counter", "seconds", "Total time of writes, including their syncs."),
    Metric("append_avg_seconds", "gauge", "seconds", "Average time of a write."),
    Metric("append_max_seconds", "gauge", "seconds", "Longest time of a write."),
    Metric("retries", "counter", "writes", "Failed writes that are retried."),
    Metric("splits", "counter", "batches", "Batches that were split because the log refused their size."),
    Metric("failed_records", "counter", "records", "Failed records, including those that never reached a batch."),
    Metric("flush_seconds", "counter", "seconds", "Total time of calls to flush."),
    Metric("transaction_init_seconds", "counter", "seconds", "Total time of calls to init_transactions."),
    Metric("transaction_begin_seconds", "counter", "seconds", "Total time of calls to begin_transaction."),
    Metric("transaction_send_offsets_seconds", "counter", "seconds", "Total time of calls to send_offsets."),
    Metric(
        "transaction_commit_seconds",
        "counter",
        "seconds",
        "Total time of commits, including the writes they waited for.",
    ),
    Metric("transaction_abort_seconds", "counter", "seconds", "Total time of aborts."),
    Metric(
        "metadata_wait_seconds",
        "counter",
        "seconds",
        "Total time that sends spent looking up topics and waiting for them.",
    ),
    Metric("buffer_total_bytes", "gauge", "bytes", "Bytes of memory that batches may use."),
    Metric("buffer_available_bytes", "gauge", "bytes", "Bytes of that memory that are free."),
    Metric("buffer_waiting_threads", "gauge", "threads", "Threads that wait for buffer memory."),
    Metric(
        "buffer_exhausted", "counter", "records", "Records that failed because no buffer memory became free in time."
    ),
    Metric("buffer_wait_seconds", "counter", "seconds", "Total time that threads waited for buffer memory."),
    Metric("waiting_batches", "gauge", "batches", "Batches that have no result yet."),
)

PRODUCER_TOPIC_METRICS = (
    Metric("records", "counter", "records", "Records written to the topic."),
    Metric("bytes", "counter", "bytes", "Bytes of their batches, as stored."),
    Metric("retries", "counter", "writes", "Failed writes to the topic that are retried."),
    Metric("failed_records", "counter", "records", "Failed records for the topic."),
    Metric(
        "compression_ratio",
        "gauge",
        "ratio",
        "Stored bytes divided by bytes before compression; 1 without compression.",
    ),
)

CONSUMER_METRICS = (
    Metric("records", "counter", "records", "Returned records; an iteration counts them by offsets."),
    Metric(
        "bytes", "counter", "bytes", "Bytes of the batches they came from, as stored; for columns, bytes in memory."
    ),
    Metric("commits", "counter", "commits", "Commits that had offsets to commit."),
    Metric("commit_errors", "counter", "commits", "Failed commits."),
    Metric("commit_seconds", "counter", "seconds", "Total time of commits."),
    Metric("rebalances", "counter", "rebalances", "Changes of its partitions as a member of a group."),
    Metric("partitions", "gauge", "partitions", "Assigned partitions."),
    Metric("lag_records", "gauge", "records", "Offsets still to read, summed over its partitions."),
    Metric("lag_max_records", "gauge", "records", "Offsets still to read in the partition with the most."),
    Metric("last_poll_age_seconds", "gauge", "seconds", "Time since it last requested records."),
)

CONSUMER_PARTITION_METRICS = (
    Metric("position", "gauge", "offset", "The offset of the next record, as last observed."),
    Metric("lag_records", "gauge", "records", "Offsets from the position to the end."),
)

DOOR_METRICS = (
    Metric("requests", "counter", "requests", "Answered requests, by Kafka's name of the API.", label="api"),
    Metric("request_seconds", "counter", "seconds", "Total time of their handling, waits included.", label="api"),
    Metric(
        "errors", "counter", "requests", "Requests that were answered with an error, by Kafka's code.", label="code"
    ),
    Metric("received_bytes", "counter", "bytes", "Bytes of the requests."),
    Metric("sent_bytes", "counter", "bytes", "Bytes of the answers."),
    Metric("refusals", "counter", "connections", "Connections that were refused, or closed for what they sent."),
    Metric("connections", "gauge", "connections", "Open connections."),
    Metric("taken_bytes", "gauge", "bytes", "What requests take of `memory_max` now."),
    Metric("groups", "gauge", "groups", "Groups whose members are clients."),
    Metric("group_members", "gauge", "members", "Their members."),
)
