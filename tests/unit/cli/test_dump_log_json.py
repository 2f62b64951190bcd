"""``kstore dump-log --format json``: an object a line."""

from __future__ import annotations

import struct
from pathlib import Path

from kstore.record._codec import Record
from kstore.record.builder import build_batch
from tests.support.lives.dump_helpers import BASE, Dump, T, batch, flip, objects, record, write_index, write_log


def test_json_has_an_object_a_line_and_says_which_bytes_are_base64(dump: Dump) -> None:
    write_log(
        build_batch(
            [
                Record(0, T, "CreateTime", b"k\xff", "größe\n".encode(), (("h", b"\x80"), ("n", None), ("t", b"x"))),
                Record(1, T, "CreateTime", None, b""),
            ],
            base_offset=0,
        )
    )
    status, out, err = dump("--print-data-log", "--format", "json", "--files", f"{BASE}.log")
    assert (status, err) == (0, "")
    assert objects(out, "record") == [
        {
            "type": "record",
            "path": f"{BASE}.log",
            "offset": 0,
            "timestamp": T,
            "timestamp_type": "CreateTime",
            "key_size": 2,
            "value_size": 8,
            "sequence": -1,
            "headers": [{"key": "h", "value_base64": "gA=="}, {"key": "n", "value": None}, {"key": "t", "value": "x"}],
            "key_base64": "a/8=",
            "value": "größe\n",
        },
        {
            "type": "record",
            "path": f"{BASE}.log",
            "offset": 1,
            "timestamp": T,
            "timestamp_type": "CreateTime",
            "key_size": -1,
            "value_size": 0,
            "sequence": -1,
            "headers": [],
            "key": None,
            "value": "",
        },
    ]
    (found,) = objects(out, "batch")
    assert found["codec"] == "none"
    assert found["is_valid"] is True
    assert found["record_count"] == 2


def test_json_tells_damage_and_mismatches_on_standard_output(dump: Dump) -> None:
    _, second = write_log(batch(0, 3), batch(3, 5))
    write_index((5, second))
    flip(f"{BASE}.log", second + 64)
    with Path(f"{BASE}.log").open("ab") as log:
        log.write(b"torn")
    status, out, err = dump("--format", "json", ".")
    assert (status, err) == (1, "")
    assert [found["position"] for found in objects(out, "damage")] == [second]
    assert [found["size"] for found in objects(out, "invalid_tail")] == [4]
    assert objects(out, "mismatch") == [
        {"type": "mismatch", "path": f"{BASE}.index", "kind": "index_offset", "index_offset": 5, "log_offset": 4}
    ]


def test_json_has_decoded_records_as_objects(dump: Dump) -> None:
    value = struct.pack(">hqh", 0, 42, 1) + b"m" + struct.pack(">q", T)
    write_log(build_batch([record(0, value, struct.pack(">hh", 0, 1) + b"g\0\1t\0\0\0\7")], base_offset=0))
    _, out, _ = dump("--offsets-decoder", "--format", "json", "--files", f"{BASE}.log")
    (found,) = objects(out, "record")
    assert found["key"] == {"type": "0", "data": {"group": "g", "topic": "t", "partition": 7}}
    assert found["value"] == {"version": "0", "data": {"offset": 42, "metadata": "m", "commitTimestamp": T}}
