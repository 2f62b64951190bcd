"""Groups over the wire.

Members send FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup; tools send DescribeGroups, ListGroups and
DeleteGroups.
"""

from __future__ import annotations

from kstore.door import errors
from kstore.door.call import Call, Message
from kstore.door.errors import code_of
from kstore.door.group import Join, Leaver, Sync
from kstore.errors import KstoreError

# Bits of the operations on a group: read, describe, delete, describe and alter its configs (Kafka: AclOperation).
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
UNKNOWN_OPERATIONS = -(2**31)
# Of FindCoordinator: what a key names. Share groups are not served.
GROUP_KEY, TRANSACTION_KEY = 0, 1
# Kafka: group.min.session.timeout.ms, group.max.session.timeout.ms.
SESSION_MS_MIN, SESSION_MS_MAX = 6_000, 1_800_000
# The first versions in which: a new member gets its id before it joins; a static leader that comes back may skip the
# assignment; a sync names the protocol; a leave names several members; a join's answer may have no protocol; and one
# FindCoordinator asks for several keys.
TWO_PHASE_VERSION = 4
SKIP_VERSION = 9
PROTOCOL_VERSION = 5
BATCHED_LEAVE_VERSION = 3
NULLABLE_PROTOCOL_VERSION = 7
BATCHED_KEYS_VERSION = 4


def find_coordinator(call: Call) -> Message:
    """This node, for every key; a group's offsets get their place on disk first."""
    body = call.body
    if call.version < BATCHED_KEYS_VERSION:
        return _coordinator(call, body["key"])
    return {"coordinators": [{"key": key, **_coordinator(call, key)} for key in body["coordinatorKeys"]]}


def _coordinator(call: Call, key: str) -> Message:
    nowhere = {"nodeId": -1, "host": "", "port": -1}
    kind = call.body["keyType"]
    if kind not in (GROUP_KEY, TRANSACTION_KEY):
        return {"errorCode": errors.INVALID_REQUEST, "errorMessage": f"key type {kind}, expected 0 or 1", **nowhere}
    try:
        if kind == GROUP_KEY:
            call.door.groups.prepare(key)
    except KstoreError as error:
        return {"errorCode": errors.COORDINATOR_NOT_AVAILABLE, "errorMessage": str(error), **nowhere}
    # Early versions name even the absence of an error.
    message = "NONE" if call.version < BATCHED_KEYS_VERSION else ""
    return {"errorMessage": message, "nodeId": call.door.node_id, "host": call.door.host, "port": call.door.port}


def join_group(call: Call) -> Message:
    """Answers when the group's next generation begins, or at once where the rules allow it."""
    body = call.body
    session_ms, rebalance_ms = body["sessionTimeoutMs"], body["rebalanceTimeoutMs"]
    no_protocol = None if call.version >= NULLABLE_PROTOCOL_VERSION else ""
    refused = {"memberId": body["memberId"], "protocolName": no_protocol}
    if not body["groupId"]:
        return {"errorCode": errors.INVALID_GROUP_ID, **refused}
    if not SESSION_MS_MIN <= session_ms <= SESSION_MS_MAX:
        return {"errorCode": errors.INVALID_SESSION_TIMEOUT, **refused}
    request = Join(
        body["memberId"],
        body["groupInstanceId"],
        call.client_id,
        f"/{call.client_host}",
        body["protocolType"],
        tuple((protocol["name"], bytes(protocol["metadata"])) for protocol in body["protocols"]),
        session_ms / 1000,
        (rebalance_ms if rebalance_ms >= 0 else session_ms) / 1000,
        is_two_phase=call.version >= TWO_PHASE_VERSION,
        can_skip_assignment=call.version >= SKIP_VERSION,
    )
    joined = call.door.groups.join(body["groupId"], request, call.waiter())
    return {
        "errorCode": joined.error,
        "generationId": joined.generation,
        "protocolType": joined.protocol_type,
        "protocolName": no_protocol if joined.protocol is None else joined.protocol,
        "leader": joined.leader,
        "skipAssignment": joined.skip_assignment,
        "memberId": joined.member_id,
        "members": [
            {"memberId": member_id, "groupInstanceId": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }


def sync_group(call: Call) -> Message:
    """Answers when the leader has brought the assignments."""
    body = call.body
    protocol_type, protocol = body["protocolType"], body["protocolName"]
    if call.version >= PROTOCOL_VERSION and (protocol_type is None or protocol is None):
        return {"errorCode": errors.INCONSISTENT_GROUP_PROTOCOL}
    if not body["groupId"]:
        return {"errorCode": errors.INVALID_GROUP_ID}
    request = Sync(
        body["memberId"],
        body["groupInstanceId"],
        body["generationId"],
        protocol_type,
        protocol,
        {each["memberId"]: bytes(each["assignment"]) for each in body["assignments"]},
    )
    synced = call.door.groups.sync(body["groupId"], request, call.waiter())
    return {
        "errorCode": synced.error,
        "protocolType": synced.protocol_type,
        "protocolName": synced.protocol,
        "assignment": synced.assignment,
    }


def heartbeat(call: Call) -> Message:
    body = call.body
    if not body["groupId"]:
        return {"errorCode": errors.INVALID_GROUP_ID}
    error = call.door.groups.heartbeat(body["groupId"], body["memberId"], body["groupInstanceId"], body["generationId"])
    return {"errorCode": error}


def leave_group(call: Call) -> Message:
    body = call.body
    if not body["groupId"]:
        return {"errorCode": errors.INVALID_GROUP_ID}
    is_batched = call.version >= BATCHED_LEAVE_VERSION
    asked = body["members"] if is_batched else [{"memberId": body["memberId"], "groupInstanceId": None}]
    leavers = [Leaver(member["memberId"], member["groupInstanceId"]) for member in asked]
    found = call.door.groups.leave(body["groupId"], leavers)
    if not is_batched:
        return {"errorCode": found[0]}
    members = [
        {"memberId": leaver.member_id, "groupInstanceId": leaver.instance_id, "errorCode": error}
        for leaver, error in zip(leavers, found, strict=True)
    ]
    return {"members": members}


def describe_groups(call: Call) -> Message:
    # Each once, so that the answer is not larger than what the groups have.
    return {"groups": [_described(call, name) for name in dict.fromkeys(call.body["groups"])]}


def _described(call: Call, name: str) -> Message:
    try:
        group = call.door.groups.describe(name)
    except KstoreError as error:
        return {"errorCode": code_of(error), "groupId": name}
    members = [
        {
            "memberId": member.member_id,
            "groupInstanceId": member.instance_id,
            "clientId": member.client_id,
            "clientHost": member.client_host,
            "memberMetadata": member.metadata(group.protocol),
            "memberAssignment": member.assignment,
        }
        for member in group.members
    ]
    is_asked = call.body["includeAuthorizedOperations"]
    return {
        "groupId": name,
        "groupState": group.state,
        "protocolType": group.protocol_type,
        "protocolData": group.protocol,
        "members": members,
        "authorizedOperations": GROUP_OPERATIONS if is_asked else UNKNOWN_OPERATIONS,
    }


def list_groups(call: Call) -> Message:
    wanted = {state.lower() for state in call.body["statesFilter"]}
    groups = call.door.groups
    try:
        found = [(name, groups.describe(name)) for name in groups.names()]
    except KstoreError as error:
        return {"errorCode": code_of(error)}
    rows = [
        {"groupId": name, "protocolType": group.protocol_type, "groupState": group.state}
        for name, group in found
        if not wanted or group.state.lower() in wanted
    ]
    return {"groups": rows}


def delete_groups(call: Call) -> Message:
    return {
        "results": [
            {"groupId": name, "errorCode": _deleted(call, name)} for name in dict.fromkeys(call.body["groupsNames"])
        ]
    }


def _deleted(call: Call, name: str) -> int:
    try:
        return call.door.groups.delete(name)
    except KstoreError as error:
        return code_of(error)
