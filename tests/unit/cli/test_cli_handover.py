"""``kstore handover``: its output, and its exit statuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kstore.cli.main import main
from kstore.files.lock import DirectoryLock
from kstore.files.paths import CLEAN_SHUTDOWN
from kstore.log import Log
from kstore.rules.handover import format_topic_id
from kstore.upkeep.handover import from_broker, to_broker
from kstore.upkeep.handover.store import ForgottenLoss
from tests.support.lives.handover_parts import ID_A, IDS, two_logs
from tests.support.lives.log_cases import lost_in_the_middle


@pytest.fixture
def tmp_path(directory: Path) -> Path:
    return directory


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return two_logs(tmp_path / "store")


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_what_it_does_as_text(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = [f"--topic-id={topic}={format_topic_id(topic_id)}" for topic, topic_id in IDS.items()]
    assert main(["handover", str(store), "--to-broker", "--dry-run", *options]) == 0
    assert f"would write {store / CLEAN_SHUTDOWN}" in capfd.readouterr().out
    assert main(["handover", str(store), "--to-broker", "--mode", "0640", *options]) == 0
    out = capfd.readouterr().out
    assert "partition a-0: offsets 7 to 30 (exclusive), topic id " in out
    assert "mode 0640 lets only the owner write" in out
    assert out.endswith("handed over (to-broker)\n")
    assert main(["handover", str(store), "--from-broker"]) == 0
    assert f"remove {store / CLEAN_SHUTDOWN}" in capfd.readouterr().out


def test_losses_that_a_broker_does_not_know_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "store"
    path = lost_in_the_middle(root / "a-0")
    shutil.rmtree(root / "a-0-alive")
    with Log(path) as log:
        log.accept_loss(9, 9)
    (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_topic_id(ID_A)}\n")
    expected = [ForgottenLoss("a-0", 9, 9, True), ForgottenLoss("a-0", 10, 10, False)]
    assert to_broker(root, dry_run=True).losses == expected
    assert main(["handover", str(root), "--to-broker"]) == 0
    out = capfd.readouterr().out
    assert (
        "forgotten a-0: offsets 9 to 9 whose loss was accepted, as kstore.state said: a broker passes over them" in out
    )
    assert "forgotten a-0: offsets 10 to 10 are lost, as kstore.state said: a broker passes over them" in out
    report = from_broker(root)
    assert (report.losses, report.damage) == ([], [])


def test_the_command_says_what_it_does_as_json(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["handover", str(store), "--to-broker", "--format", "json"]) == 1
    told = json.loads(capfd.readouterr().out)
    assert told["ok"] is False
    assert "topic a has no id" in told["refused"][0]
    assert main(["handover", str(store), "--from-broker", "--format", "json", "--dry-run"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["partitions"][0] == {
        "name": "a-0",
        "topic": "a",
        "partition": 0,
        "start_offset": 7,
        "end_offset": 30,
        "topic_id": "",
    }
    assert told["dry_run"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to-broker", "--from-broker"],
        ["--to-broker", "--topic-id", "a"],
        ["--to-broker", "--topic-id", "a=short"],
        ["--to-broker", "--mode", "0440"],
        ["--to-broker", "--mode", "rw"],
        ["--from-broker", "--force"],
        ["--from-broker", "--mode", "0640"],
    ],
)
def test_bad_usage_has_a_status_of_its_own(store: Path, arguments: list[str]) -> None:
    assert main(["handover", str(store), *arguments]) == 2


def test_a_store_that_is_in_use_is_one_line_on_standard_error(store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with DirectoryLock(store):
        assert main(["handover", str(store), "--from-broker"]) == 1
    assert "locked" in capfd.readouterr().err
