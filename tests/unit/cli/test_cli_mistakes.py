"""The errors of typical mistakes on the command line: one line that says what was found, and what to do instead."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import kstore
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
    "serve": [["serve", "--read-only", "--port", "0", "gone"]],
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


OTHER = "neither a log nor a directory of logs"
NO_SEGMENT = "neither a log nor a segment's .log"
ONE_LOG = "log-0: one log, expected a directory of logs"
NO_STORE = "foreign: there is no store"
PATHS = [
    ("a directory of other files read", "read foreign", OTHER),
    ("a directory of other files verified", "verify foreign", OTHER),
    ("a directory of other files recovered", "recover foreign", OTHER),
    ("a directory of other files counted", "stats foreign", OTHER),
    ("a directory of other files appended to", "append foreign", "foreign: not a log: it holds a.txt, and no segment"),
    (
        "a directory of other files as a queue",
        "queue put foreign q",
        "foreign: not a directory of logs: it holds a.txt",
    ),
    ("a directory of other files consumed", "consume foreign t", NO_STORE),
    ("a directory of other files produced to", "produce foreign t", NO_STORE),
    ("a directory of other files backed up", "backup foreign b", NO_STORE),
    ("a directory of other files restored", "restore foreign new", "foreign: there is no backup"),
    ("a text file read", "read notes.txt", NO_SEGMENT),
    ("a text file appended to", "append notes.txt", "notes.txt: not a directory"),
    ("a text file compacted", "compact notes.txt", "notes.txt: Not a directory"),
    ("an index verified", "verify log-0/00000000000000000000.index", NO_SEGMENT),
    ("a segment recovered", "recover log-0/00000000000000000000.log", "00000000000000000000.log: Not a directory"),
    ("a log consumed", "consume log-0 t", ONE_LOG),
    ("a log described", "describe log-0", ONE_LOG),
    ("a log as groups", "groups log-0", ONE_LOG),
    ("a log as a queue", "queue stats log-0 t", ONE_LOG),
    ("a log backed up", "backup log-0 b", ONE_LOG),
    ("a store appended to", "append store", "store: not a log: it holds "),
    ("a partition as a topic", "consume store t-0", "did you mean topic t, partition 0?"),
    ("a topic as a partition", "delete-records store t --stop 1", "expected <topic>-<partition>, as orders-0"),
    ("a backup inside its store", "backup store store/b", "inside the store"),
    ("a store that is no backup", "restore store new", "store: there is no backup"),
    ("a broker's address", "append localhost:9092", "localhost:9092 is an address, and a log is a directory"),
    ("a home that is not there", "append ~nobodyx/x", "nobodyx has no home here"),
    ("a link to nothing", "read dangling", "dangling: No such file or directory"),
    ("a file that is there", "export log-0 notes.csv", "notes.csv exists already: --force replaces it"),
    ("a file of an unknown kind", "export log-0 out.xyz", "Name it .parquet, .csv or .jsonl, or give --format"),
    ("a variable that is not set", "read ''", "the path is empty; the current directory is ."),
    ("a variable among others", "verify log-0 ''", "the path is empty; the current directory is ."),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    with kstore.open(path / "store", durability="os", background=False) as store:
        store.create_topic("t", 2)
        store.log("t").append(b"a")
    with Log(path / "log-0", durability="os") as log:
        log.append(b"x")
    (path / "foreign").mkdir()
    for name in ("foreign/a.txt", "notes.txt", "notes.csv"):
        (path / name).write_text("x")
    (path / "dangling").symlink_to("nowhere")
    return path


@pytest.mark.parametrize(("call", "words"), [case[1:] for case in PATHS], ids=[case[0] for case in PATHS])
def test_a_wrong_path_gets_a_line_and_changes_nothing(
    call: str, words: str, place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    assert main(shlex.split(call)) in (1, 2)
    out, err = capfd.readouterr()
    assert out == ""
    assert words in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(place.rglob("*")) == before
