"""``kstore stats`` as a command: output and exit status."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import main
from kstore.cli.places import LogPlace, log_bytes
from kstore.record.batch import BATCH_HEADER
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with kstore.Log(tmp_path / "orders-0", compression_type="lz4", durability="os") as log:
        log.append_many([b"v" * 500] * 20, keys=[b"k"] * 20, timestamps=[1_700_000_000_000] * 20)
        log.append(None, key=b"k", timestamp=1_700_000_001_000)
    return tmp_path / "orders-0"


def test_a_log_s_table_says_what_it_is_made_of(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(log)]) == 0
    out = capsys.readouterr().out
    columns, row = out.splitlines()[:2]
    assert columns.split()[:3] == ["log", "segments", "bytes"]
    assert row.split()[0] == str(log)
    assert row.split()[-4:] == ["0", "21", "2023-11-14T22:13:20Z", "2023-11-14T22:13:21Z"]
    assert "bytes of a batch" in out
    assert "batches: 2 of version 2; 0 empty" in out
    assert "total" not in out
    assert "\x1b" not in out


def test_deep_adds_keys_and_ratios(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--deep", str(log)]) == 0
    out = capsys.readouterr().out
    assert "records: 21 decoded, 21 with a key, 1 tombstones, 0 headers" in out
    [codec] = [line for line in out.splitlines() if line.startswith("lz4")]
    assert float(codec.split()[-1]) > 5


def test_json_gives_an_object_a_line_and_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "--deep", "--segments", "--format", "json", str(golden_root() / "clean")]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_type = {kind: [row for row in rows if row["type"] == kind] for kind in ("segment", "log", "total")}
    [total] = by_type["total"]
    assert rows[-1] == total
    assert len(by_type["log"]) == total["logs"] == len(golden_partitions("clean"))
    for name in ("records", "batches", "bytes", "commits", "keyed_records", "tombstones"):
        assert total[name] == sum(row[name] for row in by_type["log"]) == sum(row[name] for row in by_type["segment"])
    assert total["batch_bytes"]["count"] == sum(bar[2] for bar in total["batch_bytes"]["histogram"])
    assert "start" not in total


def test_a_directory_has_a_row_for_each_log_and_a_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(golden_root() / "old")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = [line.split(" ")[0] for line in lines].index("total")
    assert at == len(golden_partitions("old")) + 1


def test_damage_is_reported_and_the_rest_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_partition("damaged", "length-zero-0", tmp_path)
    copy_partition("clean", golden_partitions("clean")[0], tmp_path)
    assert main(["stats", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "offsets 122 to 162, cannot be read" in out
    assert "at position 6090: a batch of 12 bytes" in out
    assert out.endswith("damage: 1\n")
    assert main(["stats", "--format", "json", str(tmp_path)]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["type"] for row in rows] == ["log", "log", "finding", "total"]
    assert rows[-1]["damage"] == 1


def test_times_that_cannot_be_are_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = BATCH_HEADER.pack(0, 49, 0, 2, 0, 0, 0, 2**63 - 1, 2**63 - 1, -1, -1, -1, 1)
    (tmp_path / f"{0:020d}.log").write_bytes(batch)
    assert main(["stats", "--segments", str(tmp_path)]) == 0
    assert str(2**63 - 1) in capsys.readouterr().out


def test_what_is_no_log_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(tmp_path)]) == 1
    assert "neither a log nor" in capsys.readouterr().err
    assert main(["stats"]) == 2


def test_a_terminal_sees_a_bar(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["stats", str(log)]) == 0
    assert "stats" in terminal.getvalue()


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["stats"], id="stats"),
        pytest.param(["stats", "--deep"], id="stats --deep"),
        pytest.param(["report"], id="report"),
        pytest.param(["report", "--deep"], id="report --deep"),
    ],
)
def test_a_log_that_is_deleted_after_it_was_found_is_no_damage(
    arguments: list[str], log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(log, log.parent / "passing-0")

    def delete(place: LogPlace) -> int:
        if place.path.name == "passing-0":
            shutil.rmtree(place.path)
        return log_bytes(place)

    for command in ("stats", "report"):
        monkeypatch.setattr(f"kstore.cli.{command}.log_bytes", delete)
    assert main([*arguments, "--format", "json", str(log.parent)]) == 0
    out, err = capsys.readouterr()
    assert ("passing-0" in out, err) == (False, "")
