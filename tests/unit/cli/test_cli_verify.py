"""``kstore verify``, ``kstore recover`` and ``kstore explain`` as commands: output and exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kstore.cli import verify as verify_command
from kstore.cli.main import main
from kstore.cli.places import LogPlace, log_bytes
from kstore.log import Log
from tests.support.harness.golden_data import copy_partition, golden_root


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    copy = copy_partition("damaged", "flipped-record-0", tmp_path)
    # Of segments that were left out of the copy: they would prove a loss.
    for path in [*copy.glob("*.snapshot"), copy / "leader-epoch-checkpoint"]:
        path.unlink()
    return copy


def test_verify_tells_sound_from_damaged(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(golden_root() / "clean")]) == 0
    assert capsys.readouterr().out.endswith("\nsound\n")
    assert main(["verify", str(damaged)]) == 1
    out = capsys.readouterr().out
    assert "damage: 1" in out
    assert "offsets 81 to 121, cannot be read" in out
    assert "at position 4070: bad crc" in out
    assert "\x1b" not in out


def test_verify_leaves_out_a_log_that_is_deleted_meanwhile(
    damaged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:

    def delete(log: LogPlace) -> int:
        shutil.rmtree(log.path)
        return log_bytes(log)

    monkeypatch.setattr(verify_command, "log_bytes", delete)
    assert main(["verify", str(damaged)]) == 0
    out, err = capsys.readouterr()
    assert ("sound" in out, err) == (True, "")


def test_verify_as_json_gives_an_object_a_line(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--quiet", "--format", "json", str(damaged)]) == 1
    log, finding = map(json.loads, capsys.readouterr().out.splitlines())
    assert (log["type"], log["damage"], log["records"]) == ("log", 1, 281)
    assert (finding["kind"], finding["first"], finding["last"]) == ("batch", 81, 121)


def test_verify_of_what_is_no_log_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tmp_path)]) == 1
    assert "neither a log nor" in capsys.readouterr().err
    assert main(["verify"]) == 2


def test_recover_says_and_then_does(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", "--dry-run", str(damaged)]) == 1
    planned = capsys.readouterr().out
    assert "fenced" in planned
    assert not (damaged / "kstore.state").exists()
    assert main(["recover", "--format", "json", str(damaged)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["dry_run"], report["corrupt"][0][:2]) == (False, [81, 121])
    assert main(["recover", str(damaged)]) == 0
    assert "closed cleanly" in capsys.readouterr().out


def test_explain_shows_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Log(tmp_path / "log") as log:
        log.append_many([b"a", b"b"], timestamps=[5, 6])
    assert main(["explain", str(tmp_path / "log"), "--offset", "1"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "log",
        "segment",
        "index",
        "scan",
        "batch",
        "record",
    ]
    assert main(["explain", str(tmp_path / "log"), "--time", "1970-01-01T00:00:00.006Z", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["record"]["offset"] == 1
    assert main(["explain", str(tmp_path / "log"), "--time", "1970-01-01T00:00:00.007Z"]) == 1
    assert main(["explain", str(tmp_path / "log")]) == 2
    assert main(["explain", str(tmp_path / "log"), "--offset", "9"]) == 1
