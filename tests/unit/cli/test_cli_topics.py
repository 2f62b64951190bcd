"""``kstore topics``, ``describe``, ``delete-records`` and ``checkpoints`` as commands: output and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import main
from tests.support.harness.golden_data import golden_root


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    out, err = capsys.readouterr()
    return status, out, err


def test_topics_are_made_changed_listed_and_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(tmp_path / "data")
    made = ("--create", "orders", "--partitions", "2", "--config", "retention.ms=7d")
    assert run(capsys, "topics", data, *made)[0] == 0
    changed = ("--alter", "orders", "--partitions", "3", "--config", "segment_bytes=1MiB", "--reset", "retention.ms")
    assert run(capsys, "topics", data, *changed)[0] == 0
    status, out, _ = run(capsys, "topics", data, "--format", "json")
    topic = json.loads(out)
    assert (status, topic["topic"], topic["partitions"], topic["settings"]) == (
        0,
        "orders",
        3,
        {"segment_bytes": 1 << 20},
    )
    assert "orders" in run(capsys, "topics", data)[1]
    assert run(capsys, "topics", data, "--delete", "orders")[0] == 0
    assert run(capsys, "topics", data, "--format", "json")[1] == ""
    assert not list((tmp_path / "data").glob("orders*"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--create", "a", "--delete", "b"), "give one of them"),
        (("--config", "retention_ms=1"), "need --create"),
        (("--create", "a", "--config", "retention_ms"), "NAME=VALUE"),
        (("--alter", "a"), "needs"),
    ],
)
def test_options_that_make_no_sense_are_bad_usage(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run(capsys, "topics", str(tmp_path / "data"), *arguments)
    assert status == 2
    assert said in err
    assert not (tmp_path / "data").exists()


def test_what_there_is_not_is_an_error_and_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ("topics", str(tmp_path / "none")),
        ("topics", str(tmp_path / "none"), "--delete", "orders"),
        ("describe", str(tmp_path / "none")),
        ("delete-records", str(tmp_path / "none"), "orders-0", "--stop", "1"),
        ("checkpoints", str(tmp_path / "none")),
    ):
        status, _, err = run(capsys, *arguments)
        assert status == 1
        assert str(tmp_path / "none") in err
    assert not (tmp_path / "none").exists()


def test_an_unknown_setting_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "topics", str(tmp_path), "--create", "orders", "--config", "retention.byte=1")
    assert status == 1
    assert "did you mean 'retention_bytes'" in err


@pytest.mark.parametrize("name", ["exist_ok", "partitions", "name", "reset"])
def test_an_argument_of_the_library_is_no_setting(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    for option in ("--create", "--alter"):
        status, out, err = run(capsys, "topics", str(store), option, "orders", "--config", f"{name}=1")
        assert (status, out) == (1, "")
        assert err.startswith(f"kstore: there is no setting '{name}'")
    assert not store.exists()


def test_describe_prints_each_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.open(tmp_path) as store:
        store.create_topic("orders", 2, retention_bytes=1000)
        store.log("orders", 1).append_many([b"a", b"b"])
        (tmp_path / "lost+found").mkdir()
        # It can be examined while a writer works.
        status, out, _ = run(capsys, "describe", str(tmp_path))
        assert status == 0
        assert "retention_bytes=1000" in out
        assert "ignored: lost+found" in out
        status, out, _ = run(capsys, "describe", str(tmp_path), "orders", "--format", "json")
    topic = json.loads(out)
    assert [partition["end_offset"] for partition in topic["partitions"]] == [0, 2]
    assert topic["config"]["retention_bytes"] == 1000
    assert run(capsys, "describe", str(tmp_path), "none")[0] == 1


def test_partitions_that_never_held_a_record_share_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.open(tmp_path) as store:
        store.create_topic("orders", 8)
        for number in (0, 3):
            store.log("orders", number).append(b"a")
        _, out, _ = run(capsys, "describe", str(tmp_path))
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [(row[0], row[3]) for row in rows] == [("0", "1"), ("1", "0"), ("2", "0"), ("3", "1"), ("4-7", "0")]


def test_records_are_deleted_below_an_offset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with kstore.open(tmp_path) as store:
        store.create_topic("orders")
        store.log("orders").append_many([b"a", b"b", b"c"])
    status, out, _ = run(capsys, "delete-records", str(tmp_path), "orders-0", "--stop", "2", "--format", "json")
    assert (status, json.loads(out)["low_watermark"]) == (0, 2)
    assert "starts at offset 3" in run(capsys, "delete-records", str(tmp_path), "orders-0", "--stop", "-1")[1]
    assert run(capsys, "delete-records", str(tmp_path), "orders-0", "--stop", "9")[0] == 1
    assert run(capsys, "delete-records", str(tmp_path), "orders", "--stop", "1")[0] == 2


def test_checkpoints_of_a_broker_and_damaged_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "checkpoints", str(golden_root() / "clean"))
    assert status == 0
    assert "closed cleanly: yes" in out
    rows = run(capsys, "checkpoints", str(golden_root() / "clean"), "--format", "json")[1].splitlines()
    assert all({"recovery_point", "high_watermark"} <= json.loads(row).keys() for row in rows)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nbad\n")
    status, _, err = run(capsys, "checkpoints", str(tmp_path))
    assert status == 1
    assert "line 3" in err
