"""Groups for tools over the wire: DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from kstore.door.call import Call, Message
from kstore.door.errors import code_of
from kstore.errors import KstoreError

# Bits of the operations on a group: read, describe, delete, describe and alter its configs (Kafka: AclOperation).
GROUP_OPERATIONS = sum(1 << code for code in (3, 6, 8, 10, 11))
UNKNOWN_OPERATIONS = -(2**31)


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
