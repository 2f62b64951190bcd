"""The manifest of a backup: what a hostile or damaged one says never becomes a path or an untyped error."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kstore.backup.manifest import (
    FORM,
    LogEntry,
    Manifest,
    SegmentEntry,
    StoredFile,
    decode_manifest,
    encode_manifest,
)
from kstore.errors import CorruptFileError
from kstore.files.paths import TopicPartition
from kstore.rules.losses import NO_LOSSES

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
MANIFEST = Manifest(17, b"topics", {"meta.properties": b"x"}, (LOG,))

Rows = dict[str, Any]


def changed(change: Callable[[Rows], object]) -> bytes:
    rows = json.loads(FORM.decode(encode_manifest(MANIFEST), "m"))
    change(rows)
    return FORM.encode(json.dumps(rows).encode())


def log(rows: Rows) -> Rows:
    found: Rows = rows["logs"][0]
    return found


def segment(rows: Rows) -> Rows:
    found: Rows = log(rows)["segments"][0]
    return found


def test_what_is_encoded_is_decoded() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), "m") == MANIFEST


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
        pytest.param(lambda rows: segment(rows)["files"][0].__setitem__(1, "/../x"), id="a suffix with a path"),
        pytest.param(lambda rows: segment(rows)["files"][0].__setitem__(3, 1 << 32), id="a large CRC"),
        pytest.param(lambda rows: log(rows)["snapshots"][0].__setitem__(1, ".log"), id="a log among the snapshots"),
        pytest.param(lambda rows: log(rows).update(end=-1), id="a negative end"),
        pytest.param(lambda rows: rows.update(topics="\u20ac"), id="topics that are no bytes"),
        pytest.param(lambda rows: rows.update(root=[]), id="a list for the root"),
    ],
)
def test_what_no_backup_writes_is_refused(change: Callable[[Rows], object]) -> None:
    with pytest.raises(CorruptFileError, match="not the manifest of a backup"):
        decode_manifest(changed(change), "m")
