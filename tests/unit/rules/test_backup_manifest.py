"""The manifest of a backup: a hostile or damaged one never becomes a path or an untyped error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kstore.archive.manifest import (
    FORM,
    LogEntry,
    Manifest,
    SegmentEntry,
    StoredFile,
    decode_manifest,
    encode_manifest,
    is_replica,
    is_stored_name,
    manifest_name,
    manifest_time,
)
from kstore.errors import CorruptFileError, UnsupportedFormatError
from kstore.files.paths import TopicPartition
from kstore.rules.losses import NO_LOSSES
from kstore.rules.topics import TopicEntry, encode_topics

FILES = (StoredFile(0, ".log", 9, 7), StoredFile(0, ".index", 8, 6))
LOG = LogEntry(
    TopicPartition("orders", 0),
    0,
    5,
    NO_LOSSES,
    (),
    (SegmentEntry(0, 3, 4, FILES),),
    (StoredFile(5, ".snapshot", 1, 2),),
)
TOPICS = encode_topics({"orders": TopicEntry(1, 1)})
MANIFEST = Manifest(17, TOPICS, {"meta.properties": b"x"}, (LOG,))

Rows = dict[str, Any]


def changed(change: Callable[[Rows], object]) -> bytes:
    rows = json.loads(FORM.decode(encode_manifest(MANIFEST), "m"))
    change(rows)
    return FORM.encode(json.dumps(rows).encode())


def log(rows: Rows) -> Rows:
    found: Rows = rows["logs"][0]
    return found


def empty_segment(base: int) -> Rows:
    return {"base": base, "inode": 0, "mtime_ns": 0, "files": [[base, ".log", 0, 0]]}


def segment(rows: Rows) -> Rows:
    found: Rows = log(rows)["segments"][0]
    return found


def in_pieces() -> Manifest:
    files = (StoredFile(0, ".log", 9, 7), StoredFile(0, ".log", 3, 5, 9), StoredFile(0, ".index", 8, 6))
    return MANIFEST._replace(logs=(LOG._replace(segments=(SegmentEntry(0, 3, 4, files),)),))


def test_what_is_encoded_is_decoded() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "m") == MANIFEST
    assert decode_manifest(encode_manifest(in_pieces()), "m") == in_pieces()


def test_only_a_manifest_with_pieces_has_the_second_version() -> None:
    assert encode_manifest(MANIFEST).startswith(b"kstore-backup 1 ")
    assert encode_manifest(in_pieces()).startswith(b"kstore-backup 2 ")


def test_the_name_of_a_piece_has_its_position() -> None:
    whole, piece, _ = in_pieces().logs[0].segments[0].files
    assert whole.name == "00000000000000000000-9-00000007.log"
    assert piece.name == "00000000000000000000-9-3-00000005.log"
    assert all(is_stored_name(one.name) for one in (whole, piece, *LOG.snapshots))
    assert not is_stored_name("00000000000000000000.log")


def test_a_manifest_s_name_is_its_time() -> None:
    for replica in (False, True):
        name = manifest_name(17, replica=replica)
        assert manifest_time(name) == 17
        assert is_replica(name) == replica


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda rows: log(rows).update(log="../orders-0"), id="a path"),
        pytest.param(lambda rows: log(rows).update(segments=[]), id="no segment"),
        pytest.param(lambda rows: log(rows).update(segments=2 * log(rows)["segments"]), id="a segment twice"),
        pytest.param(lambda rows: segment(rows).update(inode=float("inf")), id="an infinite inode"),
        pytest.param(lambda rows: segment(rows).update(base=1), id="files of another segment"),
        pytest.param(lambda rows: segment(rows)["files"].pop(0), id="no log file"),
        pytest.param(lambda rows: segment(rows)["files"].append(segment(rows)["files"][0]), id="a file twice"),
        pytest.param(lambda rows: segment(rows)["files"].insert(1, [0, ".log", 5, 1, 8]), id="pieces that overlap"),
        pytest.param(lambda rows: segment(rows)["files"].insert(1, [0, ".log", 5, 1, 10]), id="a gap between pieces"),
        pytest.param(lambda rows: segment(rows)["files"].insert(0, [0, ".log", 5, 1, 9]), id="pieces out of order"),
        pytest.param(lambda rows: segment(rows)["files"].insert(1, [0, ".log", 0, 0, 9]), id="an empty piece"),
        pytest.param(lambda rows: segment(rows)["files"][0].append(4), id="no first piece"),
        pytest.param(lambda rows: segment(rows)["files"][1].append(4), id="a piece of an index"),
        pytest.param(lambda rows: segment(rows)["files"][0].extend([0, 0]), id="a file with two positions"),
        pytest.param(lambda rows: segment(rows)["files"][0].__setitem__(1, "/../x"), id="a suffix with a path"),
        pytest.param(lambda rows: segment(rows)["files"][0].__setitem__(3, 1 << 32), id="a large CRC"),
        pytest.param(lambda rows: log(rows)["snapshots"][0].__setitem__(1, ".log"), id="a log among the snapshots"),
        pytest.param(lambda rows: log(rows)["snapshots"].append([5, ".snapshot", 0, 0]), id="a snapshot twice"),
        pytest.param(lambda rows: segment(rows)["files"].append([0, ".swap", 0, 0]), id="a suffix of no sound segment"),
        pytest.param(
            lambda rows: segment(rows)["files"][0].__setitem__(2, (1 << 63) - 1), id="more than 63 bits of bytes"
        ),
        pytest.param(lambda rows: segment(rows).update(mtime_ns=1 << 63), id="a time of 65 bits"),
        pytest.param(lambda rows: segment(rows).update(index_ns="1"), id="a time as a text"),
        pytest.param(lambda rows: segment(rows).update(mtime_ns=-(10**30)), id="a time before all time"),
        pytest.param(lambda rows: rows["logs"].append(log(rows)), id="a log twice"),
        pytest.param(lambda rows: log(rows).update(end=-1), id="a negative end"),
        pytest.param(lambda rows: log(rows).update(start=6), id="a start above the end"),
        pytest.param(lambda rows: log(rows)["segments"].append(empty_segment(6)), id="a segment above the end"),
        pytest.param(lambda rows: log(rows).update(lost=[[2, 1]]), id="a range that ends before it starts"),
        pytest.param(lambda rows: log(rows).update(accepted=[[3, 3], [1, 1]]), id="ranges that fall"),
        pytest.param(lambda rows: log(rows).update(unconfirmed=[[2 * n] * 2 for n in range(9)]), id="too many ranges"),
        pytest.param(lambda rows: rows.update(topics="\u20ac"), id="topics that are no bytes"),
        pytest.param(lambda rows: rows.update(root=[]), id="a list for the root"),
    ],
)
def test_what_no_backup_writes_is_refused(change: Callable[[Rows], object]) -> None:
    with pytest.raises(CorruptFileError, match="not the manifest of a backup"):
        decode_manifest(changed(change), "m")


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param({}, id="no topic"),
        pytest.param({"orders": TopicEntry(2, 1)}, id="a partition that is not made"),
        pytest.param({"orders": TopicEntry(2, 2)}, id="a partition without a log"),
        pytest.param({"orders": TopicEntry(1, 1, deleting=True)}, id="a deletion"),
        pytest.param({"orders": TopicEntry(1, 1), "others": TopicEntry(1, 1)}, id="a topic without a log"),
    ],
)
def test_topics_that_differ_from_the_logs_are_refused(entries: dict[str, TopicEntry]) -> None:
    data = encode_manifest(MANIFEST._replace(topics=encode_topics(entries)))
    with pytest.raises(CorruptFileError, match="expected as many as its topics state and have"):
        decode_manifest(data, "m")


def test_topics_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(CorruptFileError, match=r"m: kstore\.topics: line 1"):
        decode_manifest(encode_manifest(MANIFEST._replace(topics=b"topics")), "m")
    later = MANIFEST._replace(topics=TOPICS.replace(b"kstore.topics 1", b"kstore.topics 2"))
    with pytest.raises(UnsupportedFormatError, match="version 2, expected 1"):
        decode_manifest(encode_manifest(later), "m")
