"""Committed offsets over the wire: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable

from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.errors import code_of
from kstore.errors import KstoreError, TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.transactions.group_offsets import METADATA_BYTES_MAX
from kstore.transactions.group_records import OffsetAndMetadata

# From these versions on: a group that does not exist has a code of its own; several groups are asked for together.
GROUP_NOT_FOUND_VERSION = 9
BATCHED_FETCH_VERSION = 8
NOTHING = OffsetAndMetadata(-1)


def offset_commit(call: Call) -> Message:
    """Commits what can be committed, in one batch, and answers for each partition."""
    body = call.body
    places = _Places(call)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    codes: list[tuple[str, list[tuple[int, int]]]] = []
    for topic in body["topics"]:
        found = []
        for part in topic["partitions"]:
            owner = TopicPartition(topic["name"], part["partitionIndex"])
            metadata = part["committedMetadata"] or ""
            code = errors.NONE
            if not places.exists(owner):
                code = errors.UNKNOWN_TOPIC_OR_PARTITION
            elif len(metadata.encode()) > METADATA_BYTES_MAX:
                code = errors.OFFSET_METADATA_TOO_LARGE
            elif part["committedOffset"] < 0:
                # A broker keeps it, and a consumer that gets it begins where its settings say.
                code = errors.INVALID_REQUEST
            else:
                offsets[owner] = OffsetAndMetadata(part["committedOffset"], metadata, part["committedLeaderEpoch"])
            found.append((owner.partition, code))
        codes.append((topic["name"], found))
    try:
        error = call.door.groups.commit(
            body["groupId"], body["memberId"], body["groupInstanceId"], body["generationIdOrMemberEpoch"], offsets
        )
        if error == errors.GROUP_ID_NOT_FOUND and call.version < GROUP_NOT_FOUND_VERSION:
            error = errors.ILLEGAL_GENERATION
        is_for_all = error != errors.NONE
    except KstoreError as failure:
        error, is_for_all = code_of(failure), False
    topics = [
        {
            "name": name,
            "partitions": [
                {"partitionIndex": number, "errorCode": error if is_for_all or code == errors.NONE else code}
                for number, code in found
            ],
        }
        for name, found in codes
    ]
    return {"topics": topics}


def offset_fetch(call: Call) -> Message:
    """What groups have committed; -1 for a partition without an offset."""
    body = call.body
    if call.version < BATCHED_FETCH_VERSION:
        return _committed(call, body["groupId"], body["topics"])
    # Each once, so that the answer is not larger than what is committed.
    asked = {group["groupId"]: group["topics"] for group in body["groups"]}
    return {"groups": [{"groupId": name, **_committed(call, name, topics)} for name, topics in asked.items()]}


def _committed(call: Call, group: str, asked: list[Message] | None) -> Message:
    try:
        committed = call.door.groups.committed(group)
        unstable = call.door.groups.unstable(group) if call.body["requireStable"] else set()
    except KstoreError:
        # Clients ask again.
        return {"errorCode": errors.COORDINATOR_NOT_AVAILABLE, "topics": []}
    owners: Iterable[TopicPartition] = sorted(committed)
    if asked is not None:
        owners = [TopicPartition(topic["name"], number) for topic in asked for number in topic["partitionIndexes"]]
    topics: dict[str, list[Message]] = {} if asked is None else {topic["name"]: [] for topic in asked}
    for owner in owners:
        is_unstable = owner in unstable
        found = NOTHING if is_unstable else committed.get(owner, NOTHING)
        topics.setdefault(owner.topic, []).append(
            {
                "partitionIndex": owner.partition,
                "committedOffset": found.offset,
                "committedLeaderEpoch": found.leader_epoch,
                "metadata": found.metadata,
                "errorCode": errors.UNSTABLE_OFFSET_COMMIT if is_unstable else errors.NONE,
            }
        )
    return {"topics": [{"name": name, "partitions": found} for name, found in topics.items()]}


def offset_delete(call: Call) -> Message:
    """Removes committed offsets of topics that no member reads."""
    body = call.body
    if not body["groupId"]:
        return {"errorCode": errors.INVALID_GROUP_ID}
    places = _Places(call)
    owners = [
        TopicPartition(topic["name"], part["partitionIndex"])
        for topic in body["topics"]
        for part in topic["partitions"]
    ]
    there = {owner for owner in owners if places.exists(owner)}
    try:
        error, read = call.door.groups.forget(body["groupId"], there)
    except KstoreError as failure:
        return {"errorCode": code_of(failure)}
    if error:
        return {"errorCode": error}

    def code(owner: TopicPartition) -> int:
        if owner not in there:
            return errors.UNKNOWN_TOPIC_OR_PARTITION
        return errors.GROUP_SUBSCRIBED_TO_TOPIC if owner.topic in read else errors.NONE

    topics: dict[str, list[Message]] = {}
    for owner in owners:
        found = {"partitionIndex": owner.partition, "errorCode": code(owner)}
        topics.setdefault(owner.topic, []).append(found)
    return {"topics": [{"name": name, "partitions": found} for name, found in topics.items()]}


class _Places:
    """Which partitions exist; each topic is looked up once for a request."""

    def __init__(self, call: Call) -> None:
        self._store = call.door.store
        self._numbers: dict[str, set[int]] = {}

    def exists(self, owner: TopicPartition) -> bool:
        if owner.topic not in self._numbers:
            try:
                self._numbers[owner.topic] = set(self._store.partitions(owner.topic))
            except TopicNotFoundError:
                self._numbers[owner.topic] = set()
        return owner.partition in self._numbers[owner.topic]
