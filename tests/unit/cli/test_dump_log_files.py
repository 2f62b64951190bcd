"""Which files ``kstore dump-log`` accepts, its exit status, and that it changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lives.dump_helpers import BASE, Dump, batch, write_log

ROOT = Path(__file__).resolve().parents[3]


def test_files_of_other_kinds_are_ignored(dump: Dump) -> None:
    for name in ("leader-epoch-checkpoint", f"{BASE}.log.deleted", "notes.txt"):
        Path(name).write_text("0\n")
        assert dump("--files", name) == (0, f"Dumping {name}\n", f"Ignoring unknown file {name}\n")


def test_a_missing_file_of_another_kind_gets_kafka_s_words_and_its_status_on_request(dump: Dump) -> None:
    printed = "Dumping gone\n", "Ignoring unknown file gone\n"
    assert dump("gone") == (1, *printed)
    assert dump("--kafka-status", "gone") == (0, *printed)


def test_a_missing_file_is_a_failure_and_does_not_stop_the_others(dump: Dump) -> None:
    write_log(batch(0, 1))
    status, out, err = dump("--files", f"gone.log,{BASE}.log")
    assert status == 1
    assert out.endswith("isvalid: true\n")
    assert err == "gone.log: No such file or directory\n"


def test_a_snapshot_of_the_metadata_log_needs_its_name(dump: Dump) -> None:
    Path("other.checkpoint").write_bytes(batch(0, 1))
    status, _, err = dump("--files", "other.checkpoint")
    assert status == 1
    assert "not the name of a snapshot" in err


def test_a_directory_stands_for_its_files_in_the_order_of_their_names(dump: Dump) -> None:
    for partition in ("b-1", "a-0"):
        directory = Path(partition)
        directory.mkdir()
        (directory / f"{7:020d}.log").write_bytes(batch(7, 8))
        (directory / f"{BASE}.log").write_bytes(batch(0, 1))
        (directory / f"{BASE}.index").write_bytes(b"")
        (directory / "partition.metadata").write_text("version: 0")
    _, out, _ = dump(".")
    assert [line.removeprefix("Dumping ") for line in out.splitlines() if line.startswith("Dumping")] == [
        f"{partition}/{name}"
        for partition in ("a-0", "b-1")
        for name in (f"{BASE}.index", f"{BASE}.log", f"{7:020d}.log")
    ]
    _, out, _ = dump("--verify-index-only", "a-0")
    assert out == f"Dumping a-0/{BASE}.index\na-0/{BASE}.index is empty.\n"


def test_a_directory_without_such_files_is_a_failure(dump: Dump) -> None:
    Path("empty").mkdir()
    status, out, err = dump("empty")
    assert (status, out) == (1, "")
    assert err.startswith("empty: no .log, ")


def test_a_symbolic_link_is_followed(dump: Dump) -> None:
    write_log(batch(0, 1))
    Path(f"{5:020d}.log").symlink_to(f"{BASE}.log")
    status, out, _ = dump("--files", f"{5:020d}.log")
    assert "baseOffset: 0" in out
    assert status == 1  # the name says that offsets start at 5


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--files"],
        ["--files", ""],
        ["--unknown", "x"],
        ["--max-bytes", "-1", "x"],
        ["--max-bytes", "many", "x"],
        ["--value-decoder-class", "com.example.Decoder", "--files", "x"],
        ["--format", "xml", "x"],
    ],
    ids=["nothing", "no-value", "empty-value", "option", "negative", "no-number", "class", "form"],
)
def test_bad_usage_has_its_own_status(arguments: list[str], dump: Dump) -> None:
    status, out, err = dump(*arguments)
    assert (status, out) == (2, "")
    assert "Error: " in err


def test_nothing_is_written_to_what_is_dumped(dump: Dump) -> None:
    write_log(batch(0, 3), batch(3, 5)[:-1])
    Path(f"{BASE}.index").write_bytes(b"ragged and short")
    Path(f"{7:020d}.timeindex").write_bytes(b"x" * 13)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().iterdir()}
    for options in ([], ["--print-data-log"], ["--index-sanity-check"], ["--verify-index-only"], ["--past-damage"]):
        dump(*options, ".")
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in Path().iterdir()} == before


def test_a_closed_pipe_ends_the_dump_in_silence(tmp_path: Path) -> None:
    (tmp_path / f"{BASE}.log").write_bytes(b"".join(batch(offset, offset + 1) for offset in range(5000)))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "dump_log.py"), str(tmp_path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_has_examples_and_the_exit_status(dump: Dump) -> None:
    status, out, _ = dump("--help")
    assert status == 0
    assert "kstore dump-log --files data/orders-0" in out
    assert "Exit status:" in out
