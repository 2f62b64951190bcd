"""The errors of typical mistakes on the command line: one line that says what was found, and what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from kstore.cli.main import COMMANDS, main
from kstore.log import Log

# The arguments with which each command meets "gone", which does not exist.
MISSING = {
    "backup": [["backup", "gone", "to"], ["backup", "--verify", "gone"]],
    "checkpoints": [["checkpoints", "gone"]],
    "compact": [["compact", "gone"]],
    "consume": [["consume", "gone", "t"]],
    "delete-records": [["delete-records", "gone", "t-0", "--stop", "1"]],
    "describe": [["describe", "gone"]],
    "dump-log": [["dump-log", "gone.log"], ["dump-log", "--files", "gone.log"]],
    "explain": [["explain", "gone", "--offset", "0"]],
    "export": [["export", "gone", "out.jsonl"]],
    "grep": [["grep", "a", "gone"]],
    "groups": [["groups", "gone"], ["groups", "gone", "--reset-offsets", "g", "--to-earliest"]],
    "handover": [["handover", "--to-broker", "gone"], ["handover", "--from-broker", "gone"]],
    "import": [["import", "log-0", "gone.csv"]],
    "mirror": [["mirror", "gone", "to"]],
    "perf": [["perf", "producer", "data", "t", "--num-records", "1", "--payload-file", "gone"]],
    "produce": [["produce", "gone", "t"]],
    "producers": [["producers", "gone"]],
    "queue": [[*command, "gone", "q"] for command in (["queue", "stats"], ["queue", "drain"], ["queue", "retry-dead"])],
    "read": [["read", "gone"]],
    "recover": [["recover", "gone"], ["recover", "--dry-run", "gone"]],
    "replicate": [["replicate", "gone", "to"]],
    "report": [["report", "gone", "-o", "out.html"]],
    "restore": [["restore", "gone", "to"]],
    "stats": [["stats", "gone"]],
    "topics": [["topics", "gone"]],
    "transactions": [["transactions", "gone"]],
    "ui": [["ui", "gone"]],
    "verify": [["verify", "gone"]],
}
# "append" makes what does not exist; "spark" has commands of another program; "help" takes no path.
OTHERS = {"append", "help", "spark"}
NEEDS = {"report": "jinja2", "ui": "starlette"}


def test_every_command_that_takes_a_path_is_tried_with_one_that_does_not_exist() -> None:
    assert MISSING.keys() | OTHERS == COMMANDS.keys()


@pytest.mark.parametrize("below", ["", "/t-0", "/a/b"])
@pytest.mark.parametrize("command", MISSING)
def test_a_path_that_does_not_exist_gets_one_wording(
    command: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if command in NEEDS:
        pytest.importorskip(NEEDS[command])
    monkeypatch.chdir(tmp_path)
    for arguments in MISSING[command]:
        named = [word.replace("gone", f"gone{below}") for word in arguments]
        (path,) = (word for word in named if word.startswith("gone"))
        assert main(named) == (2 if command == "grep" else 1), named
        out, err = capfd.readouterr()
        assert err.removeprefix("kstore: ") == f"{path}: No such file or directory\n", named
        assert out == "" or command == "dump-log"
        assert list(tmp_path.iterdir()) == []


def test_an_error_names_files_as_the_user_named_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Log("deep/log-0").close()
    monkeypatch.chdir("deep")
    for path in ("log-0", "../deep/log-0", str(tmp_path / "deep" / "log-0")):
        assert main(["topics", path]) == 1
        assert capfd.readouterr().err.startswith(f"kstore: {path}: one log, expected a directory of logs")
    Path("log-0/kstore.state").unlink()
    Path("log-0/kstore.state").mkdir()
    assert main(["append", "log-0"]) == 1
    assert capfd.readouterr().err == "kstore: log-0/kstore.state: Is a directory\n"
