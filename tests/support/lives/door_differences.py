"""Where a door answers otherwise than a broker, on purpose. ``docs/door.md`` has each reason in the same words.

``interop/test_door_differential.py`` asks both: any other difference is a defect, and so is one here that is gone.
"""

from __future__ import annotations

from typing import NamedTuple

# A longer list would mean that a door is not a broker to its clients.
COUNT_MAX = 15


class Difference(NamedTuple):
    """``where``: a pattern for the whole of "row: request vN, fields"; ``reason`` in plain words."""

    where: str
    reason: str


DIFFERENCES = (
    Difference(
        r".*(errorMessage|ErrorMessage)",
        "Many errors come with words that say what is wrong, where a broker sends the code alone.",
    ),
    Difference(
        r"listed_versions: .*",
        "ApiVersions lists the requests and versions above, and no features: clients then use what both sides know.",
    ),
    Difference(
        r"a_large_request_without_records: .*",
        "Only Produce may be larger than 1 MiB, so that no request of names takes a hundred times its size.",
    ),
    Difference(
        r"metadata_of_a_topic_that_it_makes: .*",
        "Metadata that creates a topic describes it in the same answer, or says why it was not created; a broker first"
        " answers that the topic does not exist.",
    ),
    Difference(
        r".* three replicas: .*",
        "Any replication factor is accepted, since scripts ask for three, and there is one copy.",
    ),
    Difference(
        r".*\.configs#",
        "Topics show the settings that kstore has: none for replicas and tiers, and its own beside Kafka's.",
    ),
    Difference(
        r".*\.configs\[(retention\.ms|flush\.ms)\]\.(value|configSource)",
        "Two defaults differ: records are kept for ever (`retention.ms`), and `flush.ms` is one second.",
    ),
    Difference(
        r".*\.synonyms#",
        "A setting has no synonyms among the settings of a broker, which kstore does not have.",
    ),
    Difference(
        r".*errorCode broker -1",
        "What a broker calls an unknown error has a code of its own: an unknown codec, records that do not unpack, an"
        " unknown operation on a setting, a topic without name and id.",
    ),
    Difference(
        r"produce_other_than_one_batch: .* with bytes after it: .*",
        "Bytes after a batch that are no batch refuse it; a broker drops them without a word.",
    ),
    Difference(
        r"produce_a_changed_batch: .* append time: .*",
        "A batch that says it carries the log's own time is refused; a broker takes it, and keeps the client's time.",
    ),
    Difference(
        r"produce_with_sequences: .*\.logAppendTimeMs",
        "A repeated batch has an append time only where the log stamps it; a broker sends the batch's own.",
    ),
    Difference(
        r"fetch_with_.*session.*: .*\.sessionId",
        "Fetch sessions are not kept: each answer says so, and clients send whole requests.",
    ),
    Difference(
        r"describe_groups: .*\.groups#",
        "A group that is named twice is described once, so that a small request gets no answer of any size.",
    ),
    Difference(
        r"a_negative_commit: .*",
        "A negative offset is not committed (INVALID_REQUEST); a broker keeps it.",
    ),
)
assert len(DIFFERENCES) <= COUNT_MAX
