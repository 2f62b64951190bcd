"""The closed list: a row for each API that a door serves, with its versions and its handler. No I/O here.

``served`` is what a door answers, and ApiVersions lists nothing else. What has no handler yet has no row.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kstore.door import cluster, errors, topics
from kstore.door.call import Call, Handler, Message
from kstore.door.committing import offset_commit, offset_delete, offset_fetch
from kstore.door.describing import describe_configs, describe_log_dirs
from kstore.door.fetching import fetch
from kstore.door.frames import API_VERSIONS, Wire, wire_of
from kstore.door.membership import (
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from kstore.door.offsets import list_offsets, offsets_for_leader_epochs
from kstore.door.producing import init_producer_id, produce
from kstore.door.served import Served


class Api(NamedTuple):
    """One API. ``highest`` and ``lowest`` are the served versions, both inclusive.

    ``in_read_only``: a door of a read-only store serves it too. ``is_admin``: a door without administration does not.
    ``is_large``: its requests hold records, and may be larger than others.
    """

    key: int
    name: str
    lowest: int
    highest: int
    handle: Handler
    in_read_only: bool = False
    is_admin: bool = False
    is_large: bool = False
    # Listed from this version on, though the earlier ones are not served.
    listed_from: int | None = None

    @property
    def wire(self) -> Wire:
        return wire_of(self.name)


# The names and versions of clients' software, for ApiVersions (KIP-511).
SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?", re.ASCII)


def api_versions(call: Call) -> Message:
    body = call.body
    if call.version >= 3 and not (
        SOFTWARE.fullmatch(body["clientSoftwareName"]) and SOFTWARE.fullmatch(body["clientSoftwareVersion"])
    ):
        return {"errorCode": errors.INVALID_REQUEST}
    return {"apiKeys": [_listed(api) for api in served(call.door)]}


def fallback_versions(version: int) -> Message | None:
    """The answer, in version 0, to an ApiVersions of a version above the highest; None for a served version."""
    api = BY_KEY[API_VERSIONS]
    if api.lowest <= version <= api.highest:
        return None
    return {"errorCode": errors.UNSUPPORTED_VERSION, "apiKeys": [_listed(api)]}


def _listed(api: Api) -> Message:
    lowest = api.lowest if api.listed_from is None else api.listed_from
    return {"apiKey": api.key, "minVersion": lowest, "maxVersion": api.highest}


# By key. The versions: what clients of all kinds need (docs/door.md), and no topic ids.
APIS: tuple[Api, ...] = (
    # Listed from 0: else old versions of librdkafka send no compressed batches, and say nothing. A door of a read-only
    # store lists it too, and refuses each batch: without Produce in the list, librdkafka takes the broker for too old
    # to fetch.
    Api(0, "Produce", 3, 11, produce, in_read_only=True, is_large=True, listed_from=0),
    Api(1, "Fetch", 4, 12, fetch, in_read_only=True),
    Api(2, "ListOffsets", 1, 8, list_offsets, in_read_only=True),
    Api(3, "Metadata", 0, 12, cluster.metadata, in_read_only=True),
    Api(8, "OffsetCommit", 2, 9, offset_commit, in_read_only=True),
    Api(9, "OffsetFetch", 1, 9, offset_fetch, in_read_only=True),
    Api(10, "FindCoordinator", 0, 4, find_coordinator, in_read_only=True),
    Api(11, "JoinGroup", 0, 9, join_group, in_read_only=True),
    Api(12, "Heartbeat", 0, 4, heartbeat, in_read_only=True),
    Api(13, "LeaveGroup", 0, 5, leave_group, in_read_only=True),
    Api(14, "SyncGroup", 0, 5, sync_group, in_read_only=True),
    Api(15, "DescribeGroups", 0, 5, describe_groups, in_read_only=True),
    Api(16, "ListGroups", 0, 4, list_groups, in_read_only=True),
    Api(API_VERSIONS, "ApiVersions", 0, 4, api_versions, in_read_only=True),
    Api(19, "CreateTopics", 2, 6, topics.create_topics, is_admin=True),
    Api(20, "DeleteTopics", 1, 5, topics.delete_topics, is_admin=True),
    Api(21, "DeleteRecords", 0, 2, topics.delete_records, is_admin=True),
    Api(22, "InitProducerId", 0, 4, init_producer_id),
    Api(23, "OffsetForLeaderEpoch", 2, 4, offsets_for_leader_epochs, in_read_only=True),
    Api(32, "DescribeConfigs", 1, 4, describe_configs, in_read_only=True),
    Api(35, "DescribeLogDirs", 1, 4, describe_log_dirs, in_read_only=True),
    Api(37, "CreatePartitions", 0, 3, topics.create_partitions, is_admin=True),
    Api(42, "DeleteGroups", 0, 2, delete_groups, is_admin=True),
    Api(44, "IncrementalAlterConfigs", 0, 1, topics.alter_configs, is_admin=True),
    Api(47, "OffsetDelete", 0, 0, offset_delete, is_admin=True),
    Api(60, "DescribeCluster", 0, 1, cluster.describe_cluster, in_read_only=True),
)
BY_KEY = {api.key: api for api in APIS}


def served(door: Served) -> list[Api]:
    """What this door serves."""
    return [api for api in APIS if _is_served(api, door)]


def find(door: Served, key: int) -> Api | None:
    """The row of a key, None if this door does not serve it."""
    api = BY_KEY.get(key)
    return api if api is not None and _is_served(api, door) else None


def _is_served(api: Api, door: Served) -> bool:
    return (door.admin or not api.is_admin) and (api.in_read_only or not door.read_only)
