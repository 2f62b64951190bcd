"""Frames, headers and versions."""

from __future__ import annotations

import struct

from kstore.door.frames import wire_of
from tests.interop.questions.side import SERVED, Side, question, versions
from tests.support.lives.door_parts import frame_of


@question
def frames_of_a_wrong_size(side: Side) -> None:
    for size in (-(2**31), -1, 0, 1, 7, 104_857_601, 2**31 - 1):
        side.send_raw(f"a size of {size}", struct.pack(">i", size) + b"\0" * min(max(size, 0), 8))


@question
def an_http_request(side: Side) -> None:
    side.send_raw("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


@question
def unknown_keys_and_versions(side: Side) -> None:
    for key, version in (
        (9999, 0),
        (-1, 0),
        (2, 0),
        (0, 2),
        (1, 3),
        (8, 1),
        (9, 0),
        (19, 1),
        (20, 0),
        (3, 99),
        (18, -1),
    ):
        head = struct.pack(">hhih", key, version, 1, -1)
        side.send_raw(f"key {key} version {version}", struct.pack(">i", len(head)) + head)


@question
def bodies_that_do_not_parse(side: Side) -> None:
    whole = frame_of("Metadata", 9, {"topics": [{"name": "a"}]})[4:]
    for size in (8, 9, 12, len(whole) - 1):
        side.send_raw(f"{size} bytes", struct.pack(">i", size) + whole[:size])
    old = frame_of("Metadata", 1, {"topics": [{"name": "a"}]})[4:-3] + b"\x7f\xffa"
    side.send_raw("a name beyond the end", struct.pack(">i", len(old)) + old)


@question
def bytes_after_a_request(side: Side) -> None:
    whole = frame_of("ApiVersions", 0, {})[4:] + b"more"
    side.send_raw("more bytes", struct.pack(">i", len(whole)) + whole)


@question
def requests_without_a_client_id(side: Side) -> None:
    for api, version in (("ApiVersions", 0), ("Metadata", 1), ("Metadata", 9)):
        side.send_raw(api, frame_of(api, version, {"topics": []}, client_id=None))


@question
def requests_in_a_row_are_answered_in_order(side: Side) -> None:
    with side.client() as client:
        for version in (4, 12, 9):
            client.send("Metadata", version, {"topics": [{"name": "no-such-topic"}], "allowAutoTopicCreation": False})
        for version in (4, 12, 9):
            side.note(f"Metadata v{version}", client.answer())


@question
def listed_versions(side: Side) -> None:
    side.ask("ApiVersions", 3, clientSoftwareName="a", clientSoftwareVersion="1")


@question
def a_large_request_without_records(side: Side) -> None:
    names = [{"name": f"{number}-{'a' * 100}"} for number in range(12_000)]
    side.ask("Metadata", 4, topics=names, allowAutoTopicCreation=False)


@question
def served_versions(side: Side) -> None:
    for version in versions("ApiVersions"):
        answer = side.quiet("ApiVersions", version, clientSoftwareName="a-client", clientSoftwareVersion="1.0.x")
        for name in ("supportedFeatures", "finalizedFeatures", "finalizedFeaturesEpoch"):
            del answer[name]  # see listed_versions
        lowest = {each["apiKey"]: each["minVersion"] for each in answer["apiKeys"]}
        answer["apiKeys"] = [{"name": name, "minVersion": lowest[wire_of(name).request.key]} for name in SERVED]
        side.note(f"ApiVersions v{version}", answer)


@question
def names_of_software(side: Side) -> None:
    for name in ("", "-a", "a-", "a b", "a.b-c", "ä", "a" * 300):
        for version, given in ((3, (name, "1")), (4, ("a", name))):
            software = {"clientSoftwareName": given[0], "clientSoftwareVersion": given[1]}
            answer = side.quiet("ApiVersions", version, **software)
            side.note(f"ApiVersions v{version}", {"errorCode": answer["errorCode"]})


@question
def versions_of_api_versions_that_are_not_served(side: Side) -> None:
    for version in (5, 9, 32767):
        head = struct.pack(">hhih", 18, version, 7, -1) + b"\0"
        with side.client() as client:
            client.socket.sendall(struct.pack(">i", len(head)) + head)
            side.note(f"v{version}", {"frame": client.frame()})
