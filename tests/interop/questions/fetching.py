"""Fetch."""

from __future__ import annotations

import time

from tests.interop.questions.side import Body, Side, batch, question, versions


@question
def fetch_with_each_version(side: Side) -> None:
    topic = side.topic()
    for number in range(3):
        side.put(topic, batch(b"%d" % number, b"more"))
    for version in versions("Fetch"):
        for offset in (0, 3, 6):
            for level in (0, 1):
                side.fetch({"topic": topic, "fetchOffset": offset}, version=version, isolationLevel=level)


@question
def fetch_out_of_range(side: Side) -> None:
    topic, empty = side.topic(), side.topic("empty")
    for number in range(5):
        side.put(topic, batch(b"%d" % number))
    part = [{"partitionIndex": 0, "offset": 2}]
    side.quiet("DeleteRecords", 2, topics=[{"name": topic, "partitions": part}], timeoutMs=30_000)
    for version in (4, 7, 12):
        for offset in (0, 1, 2, 5, 6, -1, -2):
            for level in (0, 1):
                side.fetch({"topic": topic, "fetchOffset": offset}, version=version, isolationLevel=level)
        for offset in (0, 1):
            side.fetch({"topic": empty, "fetchOffset": offset}, version=version)


@question
def fetch_unknown_partitions(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    for version in (4, 7, 12):
        for level in (0, 1):
            for name, number in ((topic, 1), (topic, -1), ("no-such-topic", 0), ("a b", 0), ("", 0)):
                asked = {"topic": name, "fetchOffset": 0, "partition": number}
                side.fetch(asked, version=version, isolationLevel=level)
    side.fetch({"topic": topic, "fetchOffset": 0}, {"topic": "no-such-topic", "fetchOffset": 0})
    side.fetch()


@question
def fetch_with_another_isolation_level(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    for level in (2, -1, 127):
        side.fetch({"topic": topic, "fetchOffset": 0}, isolationLevel=level)


@question
def fetch_little(side: Side) -> None:
    topic = side.topic()
    size = len(batch(b"a" * 1000))
    for _ in range(3):
        side.put(topic, batch(b"a" * 1000))
    for most, part in ((0, 0), (1, 1), (size, size), (0, 1 << 20), (1 << 20, 0), (2 * size, 2 * size)):
        side.fetch({"topic": topic, "fetchOffset": 0, "partitionMaxBytes": part}, maxBytes=most)
    for most in (-1, -(2**31)):
        side.fetch({"topic": topic, "fetchOffset": 0}, maxBytes=most)
        side.fetch({"topic": topic, "fetchOffset": 0, "partitionMaxBytes": most})


@question
def fetch_with_leader_epochs(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    for epoch in (-1, 0, 1, 99):
        side.fetch({"topic": topic, "fetchOffset": 0, "currentLeaderEpoch": epoch})
    for last, offset in ((0, 0), (0, 1), (0, 2), (1, 0), (99, 1), (-1, 0)):
        side.fetch({"topic": topic, "fetchOffset": offset, "lastFetchedEpoch": last})


@question
def fetch_with_sessions(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    asked = {"topic": topic, "fetchOffset": 0}
    for version in (7, 12):
        for session, epoch in ((0, -1), (12345, 1), (12345, -1), (12345, 0)):
            side.fetch(asked, version=version, sessionId=session, sessionEpoch=epoch)
        side.fetch(version=version, sessionId=12345, sessionEpoch=-1)
        side.fetch(version=version, sessionId=12345, sessionEpoch=7)


@question
def fetch_with_a_new_session(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))
    side.fetch({"topic": topic, "fetchOffset": 0}, sessionId=0, sessionEpoch=0)


@question
def fetch_waits(side: Side) -> None:
    topic = side.topic()
    side.put(topic, batch(b"a"))

    def ask(wait_ms: int, *asked: Body, least: int) -> None:
        began = time.monotonic()
        side.fetch(*asked, maxWaitMs=wait_ms, minBytes=least)
        side.note("waited", {"is_long": (time.monotonic() - began) * 1000 > 0.95 * wait_ms})

    whole, end, nowhere = (
        {"topic": name, "fetchOffset": offset} for name, offset in ((topic, 0), (topic, 1), ("no", 0))
    )
    ask(500, end, least=1)
    ask(500, whole, least=1 << 20)
    ask(500, end, nowhere, least=1)
    # These do not wait.
    for asked in (whole, end):
        ask(30_000, asked, least=0)
    ask(30_000, nowhere, least=1)
    ask(30_000, end | {"fetchOffset": 9}, least=1)


@question
def fetch_zstd_with_an_early_version(side: Side) -> None:
    topic = side.topic(compression_type="zstd")
    side.put(topic, batch(b"a" * 100, codec="zstd"))
    mixed = side.topic("mixed")
    side.put(mixed, batch(b"a" * 100, codec="zstd"))
    for version in (4, 9, 10):
        side.fetch({"topic": topic, "fetchOffset": 0}, version=version)
        side.fetch({"topic": mixed, "fetchOffset": 0}, version=version)
