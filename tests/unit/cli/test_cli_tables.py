"""``kstore export`` and ``kstore import``: what is exported comes back, and nothing incomplete is left."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from kstore.cli.main import main
from kstore.log import Log
from kstore.types import IsolationLevel
from tests.support.harness.golden_data import golden_root
from tests.support.lives.log_helpers import TIME

COUNT = 2500


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    with Log(tmp_path / "orders-0", durability="os") as log:
        log.append_many(
            [None if number % 7 == 0 else b"" if number % 5 == 0 else b'v,"\n%d' % number for number in range(COUNT)],
            keys=[b"k%d" % number if number % 3 else None for number in range(COUNT)],
            timestamps=[TIME + number for number in range(COUNT)],
            headers=[[("h", b"%d" % number), ("n", None)] if number % 4 == 0 else None for number in range(COUNT)],
        )
    return tmp_path / "orders-0"


def records(path: Path, *, headers: bool = True) -> list[Any]:
    with Log(path, read_only=True) as log:
        return [
            (record.offset, record.timestamp, record.key, record.value, record.headers if headers else ())
            for record in log.read()
        ]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("orders.parquet", []),
        ("orders.parquet", ["--compression", "none"]),
        ("orders.jsonl", []),
        ("orders.csv", []),
        ("orders.csv", ["--base64"]),
    ],
)
def test_what_is_exported_is_imported_again(
    name: str, options: list[str], orders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    assert main(["export", *options, str(orders), str(file)]) == 0
    assert f"exported {COUNT} records" in capsys.readouterr().out
    assert main(["import", "--durability", "os", str(tmp_path / "again-0"), str(file)]) == 0
    assert f"appended {COUNT} records, offsets 0 to {COUNT - 1}" in capsys.readouterr().out
    with_headers = not name.endswith(".csv")
    assert records(tmp_path / "again-0", headers=with_headers) == records(orders, headers=with_headers)


def test_csv_cells_that_a_spreadsheet_would_run_are_quoted_on_request(tmp_path: Path) -> None:
    values = [b"=1+1", b"+1", b"-1", b"@SUM(A1)", b"\t=1", b"\r=1", b"a=1", b"", None]
    with Log(tmp_path / "f-0") as log:
        log.append_many(values, keys=[b"=k"] * len(values))
    file = tmp_path / "f.csv"
    options = ["--columns", "key,value", "--safe-formulas", str(tmp_path / "f-0"), str(file)]
    assert main(["export", *options]) == 0
    with file.open(newline="") as lines:
        rows = list(csv.reader(lines))[1:]
    assert [row[1] for row in rows] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\t=1", "'\r=1", "a=1", "", ""]
    assert {row[0] for row in rows} == {"'=k"}
    assert main(["export", "--format", "jsonl", *options[2:]]) == 2


def test_columns_and_range_are_chosen(orders: Path, tmp_path: Path) -> None:
    file = tmp_path / "some.parquet"
    assert main(["export", "--columns", "offset,value", "--start", "10", "--stop", "20", str(orders), str(file)]) == 0
    table = pa.parquet.read_table(file)
    assert table.schema.names == ["offset", "value"]
    assert table.column("offset").to_pylist() == list(range(10, 20))


def test_a_part_may_end_at_the_end_or_at_a_time(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Log(orders, read_only=True) as log:
        stamped = [(record.offset, record.timestamp) for record in log.read()]
    for options, expected in (
        (["--start", "-3"], stamped[-3:]),
        (["--since", "now"], []),
        (["--until", "now"], stamped),
        (["--since", str(stamped[4][1]), "--stop", "9"], [one for one in stamped[:9] if one[1] >= stamped[4][1]]),
    ):
        assert main(["export", "--format", "jsonl", *options, str(orders), "-"]) == 0
        lines = map(json.loads, capfd.readouterr().out.splitlines())
        assert [(line["offset"], line["timestamp"]) for line in lines] == expected


@pytest.fixture
def store(orders: Path) -> Path:
    """A directory of logs: orders-0, two more partitions, one of which begins later, and an internal topic."""
    for name, values in (("orders-1", [b"a", b"b", b"c"]), ("other-0", [b"d"]), ("__consumer_offsets-0", [b"e"])):
        with Log(orders.parent / name, durability="os") as log:
            log.append_many(values, timestamps=[TIME + number for number in range(len(values))])
    return orders.parent


def test_a_directory_is_one_table_with_topics_and_partitions(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    assert main(["export", str(store), str(file)]) == 0
    table = pa.parquet.read_table(file)
    assert table.schema.names == [
        "topic",
        "partition",
        "key",
        "value",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    owners = list(zip(table.column("topic").to_pylist(), table.column("partition").to_pylist(), strict=True))
    assert owners == [("orders", 0)] * COUNT + [("orders", 1)] * 3 + [("other", 0)]
    assert table.column("value").to_pylist()[COUNT:] == [b"a", b"b", b"c", b"d"]
    assert main(["export", "--internal", "--topic", "__consumer_offsets", "--force", str(store), str(file)]) == 0
    assert pa.parquet.read_table(file).column("topic").to_pylist() == ["__consumer_offsets"]


def test_a_directory_s_part_is_that_of_each_log(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--format", "csv", "--columns", "partition,topic,offset", "--topic", "orders"]
    for extent, expected in (
        (["--start", "-1"], [(0, COUNT - 1), (1, 2)]),
        (["--start", str(COUNT - 1)], [(0, COUNT - 1)]),
        (["--start", "1", "--stop", "2"], [(0, 1), (1, 1)]),
        (["-p", "1"], [(1, 0), (1, 1), (1, 2)]),
    ):
        assert main(["export", *options, *extent, str(store), "-"]) == 0
        rows = list(csv.reader(capfd.readouterr().out.splitlines()))
        assert rows[0] == ["partition", "topic", "offset"]
        assert [(int(row[0]), int(row[2])) for row in rows[1:]] == expected


def test_json_lines_of_a_directory_are_appended_again(
    store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.jsonl"
    assert main(["export", "-p", "1", str(store), str(file)]) == 0
    first = json.loads(file.read_text().splitlines()[0])
    assert (first["topic"], first["partition"], first["value"]) == ("orders", 1, "a")
    assert main(["append", "--json", str(tmp_path / "again-0"), str(file)]) == 0
    assert records(tmp_path / "again-0") == records(store / "orders-1")


def test_a_log_s_topic_and_partition_are_columns_if_named(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["export", "--format", "csv", "--stop", "1", "--columns"]
    assert main([*options, "topic,partition", str(orders), "-"]) == 0
    assert list(csv.reader(capfd.readouterr().out.splitlines())) == [["topic", "partition"], ["orders", "0"]]
    assert main([*options, "topic,topic", str(orders), "-"]) == 1
    assert "expected each once" in capfd.readouterr().err


def test_what_no_log_has_is_no_export(store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options in (["--topic", "ordrs"], ["-p", "7"]):
        assert main(["export", *options, str(store), str(tmp_path / "none.csv")]) == 2
        assert "none of the wanted topics and partitions" in capfd.readouterr().err
        assert not (tmp_path / "none.csv").exists()


def test_json_lines_are_those_of_read(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--format", "jsonl", str(orders), "-"]) == 0
    exported = capfd.readouterr().out
    assert main(["read", "--format", "json", str(orders)]) == 0
    assert exported == capfd.readouterr().out
    assert len([json.loads(line) for line in exported.splitlines()]) == COUNT


def test_a_broker_s_directory_is_exported(tmp_path: Path) -> None:
    source = golden_root() / "clean" / "txn-rolled-0"
    isolation_levels: tuple[IsolationLevel, ...] = ("read_uncommitted", "read_committed")
    for isolation_level in isolation_levels:
        file = tmp_path / f"{isolation_level}.parquet"
        assert main(["export", "--isolation-level", isolation_level, str(source), str(file)]) == 0
        with Log(source, read_only=True) as log:
            expected = [record.offset for record in log.read(isolation_level=isolation_level)]
        assert pa.parquet.read_table(file).column("offset").to_pylist() == expected


@pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl"])
def test_damage_leaves_no_file_or_is_reported(
    name: str, orders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Log(orders, durability="os") as log:
        damaged = log.fetch(log.append(b"damaged"))
        log.append(b"behind it")
    content = bytearray(damaged.path.read_bytes())
    content[damaged.position + 65] ^= 1
    damaged.path.write_bytes(content)
    out = tmp_path / "files" / name
    out.parent.mkdir()
    assert main(["export", str(orders), str(out)]) == 1
    assert "crc" in capsys.readouterr().err
    assert list(out.parent.iterdir()) == []
    assert main(["export", "--on-corrupt", "skip", str(orders), str(out)]) == 1
    captured = capsys.readouterr()
    assert f"offsets {COUNT} to {COUNT} are damaged" in captured.err
    assert f"exported {COUNT + 1} records" in captured.out
    assert list(out.parent.iterdir()) == [out]


def test_bytes_that_are_no_text_need_base64_in_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(tmp_path / "log", durability="os") as log:
        log.append(b"\xff\x00", key=b"k")
    out = tmp_path / "out.csv"
    assert main(["export", str(tmp_path / "log"), str(out)]) == 1
    assert "value has bytes that are not UTF-8" in capsys.readouterr().err
    assert not out.exists()
    assert main(["export", "--base64", str(tmp_path / "log"), str(out)]) == 0
    assert out.read_text().splitlines()[0].endswith('"key_base64","value_base64"')


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["out.txt"], "--format"),
        (["-"], "--format"),
        (["--format", "parquet", "-"], "Parquet needs a file"),
        (["--columns", "headers", "out.csv"], "CSV has no headers"),
        (["--columns", "value", "out.jsonl"], "--columns is for tables"),
        (["there.csv"], "--force"),
    ],
)
def test_what_cannot_be_written_is_bad_usage(
    arguments: list[str],
    said: str,
    orders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").touch()
    assert main(["export", *arguments[:-1], str(orders), arguments[-1]]) == 2
    assert said in capsys.readouterr().err
    assert (tmp_path / "there.csv").read_bytes() == b""


def test_an_unknown_column_names_the_nearest(orders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--columns", "vlaue", str(orders), str(tmp_path / "out.csv")]) == 1
    assert "did you mean 'value'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("in.parquet", b"no parquet at all", "not Parquet"),
        ("in.csv", b"", "not CSV"),
        ("in.csv", b"key\nk\n", "expected value"),
        ("in.csv", b"value,\xff\nv,w\n", "not CSV"),
        ("in.csv", b"value_base64\n!!!\n", "not base64"),
        ("in.jsonl", b"no json\n", "line 1: no JSON"),
    ],
)
def test_what_is_no_table_of_records_is_refused(
    name: str, content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert main(["import", str(tmp_path / "log"), str(tmp_path / name)]) == 1
    captured = capsys.readouterr()
    assert said in captured.err
    assert "appended nothing" in captured.out


def test_a_bad_setting_or_name_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.csv"
    file.write_bytes(b"value\nv\n")
    assert main(["import", "--config", "segment_byte=1", str(tmp_path / "log"), str(file)]) == 2
    assert "did you mean" in capsys.readouterr().err
    file = file.rename(tmp_path / "in.txt")
    assert main(["import", str(tmp_path / "log"), str(file)]) == 2
    assert main(["import", "--format", "csv", str(tmp_path / "log"), str(file)]) == 0
    assert records(tmp_path / "log")[0][2:4] == (None, b"v")


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    with Log(tmp_path / "one-0", durability="os") as log:
        log.append(b"v", timestamp=TIME)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["export", str(tmp_path / "one-0"), str(pipe), "--format", "jsonl", "--force"]) == 0
        assert pipe.is_fifo()
        assert json.loads(os.read(reader, 1024))["value"] == "v"
    finally:
        os.close(reader)
