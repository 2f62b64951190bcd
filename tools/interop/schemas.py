"""Writes kstore/messages/schemas from the message definitions in Kafka's jars.

    python -m tools.interop.schemas

Keeps only what the bytes need: names, types, versions, tags, defaults.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.interop import java

TARGET = Path(__file__).resolve().parents[2] / "kstore" / "messages" / "schemas"

GENERATED = "# Written by tools/interop/schemas.py from Kafka's definitions; the form: kstore/messages/schema.py.\n"

# The APIs of a door (kstore.door.apis).
WIRE_APIS = (
    *("Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator"),
    *("JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups", "ListGroups"),
    *("SaslHandshake", "ApiVersions", "CreateTopics", "DeleteTopics", "DeleteRecords", "InitProducerId"),
    *("OffsetForLeaderEpoch", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
    *("DescribeConfigs", "DescribeLogDirs", "SaslAuthenticate", "CreatePartitions", "DeleteGroups"),
    *("IncrementalAlterConfigs", "OffsetDelete", "DescribeCluster"),
    *("DescribeProducers", "DescribeTransactions", "ListTransactions"),
)

# By schema file: the jar, and the names of its messages (None for all).
SOURCES: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "control": (
        "kafka-clients",
        ("LeaderChangeMessage", "SnapshotHeaderRecord", "SnapshotFooterRecord", "KRaftVersionRecord", "VotersRecord"),
    ),
    "consumer": ("kafka-clients", ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")),
    "group": ("kafka-group-coordinator", None),
    "transaction": ("kafka-transaction-coordinator", None),
    "share": ("kafka-share-coordinator", None),
    "metadata": ("kafka-metadata", None),
    "remote": (
        "kafka-storage",
        (
            "RemoteLogSegmentMetadataRecord",
            "RemoteLogSegmentMetadataSnapshotRecord",
            "RemoteLogSegmentMetadataUpdateRecord",
            "RemotePartitionDeleteMetadataRecord",
        ),
    ),
    "wire": ("kafka-clients", tuple(f"{api}{kind}" for api in WIRE_APIS for kind in ("Request", "Response"))),
}


def main() -> None:
    jars = java.fetch_jars(kafka_release=java.NEWEST_KAFKA)
    for name in SOURCES:
        text = schema_text(name, jars)
        (TARGET / f"{name}.schema").write_text(text)
        print(f"{name}.schema written")


def schema_text(name: str, jars: Path) -> str:
    """The schema file ``name``, from the jars in a folder."""
    jar, wanted = SOURCES[name]
    messages = [
        message
        for message in _definitions(jars / f"{jar}-{java.NEWEST_KAFKA}.jar")
        if (wanted is None or message["name"] in wanted) and message["validVersions"] != "none"
    ]
    messages.sort(key=lambda message: (message.get("apiKey", 0), message["name"]))
    return GENERATED + "".join("\n" + "\n".join(_message(message)) + "\n" for message in messages)


def _definitions(jar: Path) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if name.endswith(".json"):
                text = archive.read(name).decode()
                yield json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


def _message(message: dict[str, Any]) -> Iterator[str]:
    kind = message["type"] if message["type"] in ("request", "response") else "message"
    words = [f"{kind} {message['name']}"]
    if "apiKey" in message:
        words.append(f"key={message['apiKey']}")
    words.append(f"versions={message['validVersions']}")
    if message.get("flexibleVersions", "none") != "none":
        words.append(f"flexible={message['flexibleVersions']}")
    yield " ".join(words)
    structs = {struct["name"]: struct["fields"] for struct in message.get("commonStructs", ())}
    yield from _fields(message["fields"], structs, "    ")


def _fields(fields: Iterable[dict[str, Any]], structs: dict[str, Any], indent: str) -> Iterator[str]:
    for field in fields:
        kind = field["type"]
        element = kind.removeprefix("[]")
        inner = field.get("fields") or structs.get(element)
        if inner:
            kind = kind.replace(element, "struct")
        words = [field["name"][0].lower() + field["name"][1:], kind]
        versions = field.get("versions", field.get("taggedVersions"))
        if versions != "0+":
            words.append(f"versions={versions}")
        if "nullableVersions" in field:
            words.append(f"nullable={field['nullableVersions']}")
        if "tag" in field:
            words.append(f"tag={field['tag']}")
            if field["taggedVersions"] != versions:
                words.append(f"tagged={field['taggedVersions']}")
        # JSON's null means no default; the text "null" is a default.
        if field.get("default") is not None:
            text = str(field["default"])
            words.append(f"default={text.lower() if kind == 'bool' else text}")
        yield indent + " ".join(words)
        if inner:
            yield from _fields(inner, structs, indent + "    ")


if __name__ == "__main__":
    main()
