"""``kstore compact`` as a command: output and exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kstore.cli.main import main
from kstore.log import Log
from tests.support.lives.log_cases import edit, offsets


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "customers-0"
    with Log(path) as log:
        log.append_many([b"1", b"2", b"3", b"4"], keys=[b"a", b"b", b"a", None])
        log.append_many([b"5", None], keys=[b"c", b"b"])
    return path


def test_it_says_what_stayed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", "--roll", str(log)]) == 0
    out = capsys.readouterr().out
    assert "offsets 0 to 5 are clean: 4 of 6 records stay, 3 keys, 1 tombstones" in out
    with Log(log, read_only=True) as view:
        assert offsets(view) == [2, 3, 4, 5]


def test_the_active_segment_is_sealed_only_on_request(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", str(log)]) == 0
    assert capsys.readouterr().out == f"{log}: nothing to compact\n"


def test_keyless_records_and_tombstones_go_on_request(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compact", "--roll", "--whole", "--drop-keyless", "--delete-retention", "0", "--format", "json"]
    assert main([*command, str(log.parent)]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["log"], first["records_kept"], first["keyless_dropped"]) == (str(log), 3, 1)
    assert main([*command, str(log)]) == 0
    with Log(log, read_only=True) as view:
        assert offsets(view) == [2, 4]


def test_damage_is_reported_and_left(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(log) as opened:
        opened.roll()
    edit(log / f"{0:020d}.log", lambda content: content.__setitem__(70, content[70] ^ 1))
    assert main(["compact", str(log)]) == 1
    out = capsys.readouterr().out
    assert "damage: " in out
    assert "left unchanged: segment 0" in out


def test_a_size_that_is_none_is_bad_usage(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", "--map-size", "much", str(log)]) == 2
    assert "'much', expected a size such as 64MiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ("--map-size", "much"),
        ("--rate", "fast"),
        ("--rate", "0"),
        ("--delete-retention", "soon"),
    ],
    ids=lambda option: "-".join(option).strip("-"),
)
def test_a_refused_option_seals_no_segment(
    log: Path, option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", "--roll", *option, str(log)]) == 2
    assert option[0] in capsys.readouterr().err
    assert [path.name for path in log.glob("*.log")] == [f"{0:020d}.log"]


def test_a_dry_run_says_the_same_and_changes_no_byte(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compact", "--roll", "--drop-keyless", "--format", "json", str(log)]
    before = contents(log.parent)
    assert main([*command, "--dry-run"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert contents(log.parent) == before
    assert main(["compact", "--roll", "--drop-keyless", "--dry-run", str(log)]) == 0
    assert "would be clean: 3 of 6 records would stay" in capsys.readouterr().out
    assert contents(log.parent) == before
    assert main(command) == 0
    done = json.loads(capsys.readouterr().out)
    assert (planned.pop("dry_run"), done.pop("dry_run")) == (True, False)
    del planned["seconds"], done["seconds"]
    assert planned == done
    assert planned["records_kept"] == 3


def test_a_dry_run_of_damage_tells_of_it(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(log) as opened:
        opened.roll()
    edit(log / f"{0:020d}.log", lambda content: content.__setitem__(70, content[70] ^ 1))
    before = contents(log.parent)
    assert main(["compact", "--dry-run", str(log)]) == 1
    assert f"damage: {log}" in capsys.readouterr().out
    assert contents(log.parent) == before


def test_a_dry_run_is_refused_while_a_writer_is_open(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(log):
        assert main(["compact", "--dry-run", str(log)]) == 1
    assert "locked" in capsys.readouterr().err


def contents(root: Path) -> dict[Path, tuple[bytes, int]]:
    """Bytes and time of every file; time of every directory."""
    return {
        path: (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in (root, *root.rglob("*"))
    }
