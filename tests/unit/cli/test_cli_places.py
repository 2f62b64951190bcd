"""What paths and names on the command line mean; suggestions and completion."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from kstore.cli.main import cli, main
from kstore.cli.places import log_places, open_place
from kstore.errors import FileMissingError, NotALogError, ReadOnlyError
from kstore.files.local import SYSTEM_FS
from kstore.files.stray import StrayFs
from kstore.store import Store
from tests.support.harness.golden_data import golden_root
from tests.support.harness.selection import tries

BASE = "00000000000000000000.log"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of two topics, and a copy of a segment under another name."""
    monkeypatch.chdir(tmp_path)
    with Store("data", background=False) as store:
        store.create_topic("orders", partitions=1)
        store.create_topic("bills", partitions=1)
        store.log("orders", 0).append_many([b"a", b"b", b"c"])
        store.log("bills", 0).append(b"d")
        with store.consumer("orders", group="billing") as consumer:
            consumer.poll(1)
            consumer.commit()
    shutil.copy(f"data/orders-0/{BASE}", "copy.log")
    return tmp_path / "data"


@pytest.mark.parametrize("path", ["copy.log", f"data/orders-0/{BASE}"])
def test_a_segment_file_is_a_log_by_itself(data: Path, capsys: Capture, path: str) -> None:
    assert main(["read", path]) == 0
    assert capsys.readouterr().out == "a\nb\nc\n"
    assert main(["verify", "--format", "json", path]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert (json.loads(line)["records"], json.loads(line)["damage"]) == (3, 0)
    assert main(["stats", "--format", "json", path]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[0])["records"] == 3
    assert main(["explain", "--offset", "1", "--format", "json", path]) == 0
    assert json.loads(capsys.readouterr().out)["record"]["value"] == "b"
    assert main(["grep", "b", path]) == 0
    assert capsys.readouterr().out == f"{path}:1:b\n"


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that the system closes to this process, as to any user but root."""
    path = tmp_path / "closed"
    for name in ("stat", "lstat", "open", "listdir", "scandir"):
        action = getattr(os, name)

        def refusing(at: Any, *arguments: Any, action: Callable[..., Any] = action, **options: Any) -> Any:
            if isinstance(at, str | Path) and path in Path(at).parents:
                raise PermissionError(errno.EACCES, "Permission denied", str(at))
            return action(at, *arguments, **options)

        monkeypatch.setattr(os, name, refusing)
    return path


@pytest.mark.parametrize("name", ["log", "copy.log"])
@pytest.mark.parametrize(
    "command", [["read"], ["verify"], ["stats"], ["explain", "--offset", "0"], ["grep", "a"], ["dump-log", "--files"]]
)
def test_a_path_that_the_system_refuses_gets_one_line(
    command: list[str], name: str, closed: Path, capsys: Capture
) -> None:
    assert main([*command, str(closed / name)]) == (2 if command[0] == "grep" else 1)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Permission denied" in error


def test_damage_of_a_segment_file_by_itself_is_found(data: Path, capsys: Capture) -> None:
    copied = bytearray(Path("copy.log").read_bytes())
    copied[-1] ^= 1
    Path("copy.log").write_bytes(copied)
    assert main(["verify", "copy.log"]) == 1
    assert "damage: 1" in capsys.readouterr().out


def test_a_segment_of_a_broker_in_the_middle_of_its_log_is_read() -> None:
    for path in sorted((golden_root() / "clean").glob("*-0/*.log"))[:: tries(1, quick=9)]:
        (place,) = log_places(str(path))
        with open_place(place) as log:
            offsets = [record.offset for record in log.read()]
            assert all(log.start_offset <= offset < log.end_offset for offset in offsets)
            assert log.start_offset == int(path.stem)


def test_nothing_is_written_through_a_segment_by_itself(data: Path) -> None:
    fs = StrayFs(Path("copy.log"), SYSTEM_FS)
    inner = Path("copy.log") / BASE
    assert fs.list("copy.log") == [BASE]
    for change in (
        lambda: fs.open(inner, write=True),
        lambda: fs.unlink(inner),
        lambda: fs.rename(inner, "x"),
        lambda: fs.mkdir("copy.log/x"),
        lambda: fs.rmdir("copy.log"),
        lambda: fs.sync_dir("copy.log"),
        lambda: fs.set_mtime(inner, 0),
    ):
        with pytest.raises(ReadOnlyError):
            change()
    for look in (lambda: fs.open("other"), lambda: fs.list("."), lambda: fs.stat("other")):
        with pytest.raises(FileMissingError):
            look()


def test_a_file_that_is_no_segment_is_refused_in_the_command_line_s_words(data: Path, capsys: Capture) -> None:
    Path("notes.txt").write_text("no records are in this file")
    with pytest.raises(NotALogError):
        log_places("notes.txt")
    for command in (["read"], ["verify"], ["stats"], ["grep", "x"], ["explain", "--offset", "0"]):
        status = 2 if command[0] == "grep" else 1
        assert main([*command, "notes.txt"]) == status
        assert "notes.txt: neither a log nor a segment's .log" in capsys.readouterr().err
        assert main([*command, "gone"]) == status
        assert capsys.readouterr().err == "kstore: gone: No such file or directory\n"


def test_a_directory_of_logs_is_read_log_by_log(data: Path, capsys: Capture) -> None:
    Path("two").mkdir()
    for name in ("bills-0", "orders-0"):
        shutil.copytree(data / name, Path("two", name))
    assert main(["read", "two"]) == 0
    assert capsys.readouterr().out == "d\na\nb\nc\n"
    assert main(["read", "--format", "json", "--count", "2", "two"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["log"], line["value"]) for line in lines] == [("two/bills-0", "d"), ("two/orders-0", "a")]
    assert main(["explain", "--offset", "2", "two"]) == 0
    assert "offset 2, CreateTime" in capsys.readouterr().out
    assert main(["read", "--follow", "two"]) == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["consume", "-e", "data", "orders-0"], "did you mean topic orders, partition 0?"),
        (["consume", "-e", "data", "ordes"], "did you mean orders?"),
        (["describe", "data", "bils"], "did you mean bills?"),
        (["topics", "data", "--delete", "oders"], "did you mean orders?"),
        (["groups", "data", "--describe", "biling"], "did you mean billing?"),
        (["delete-records", "data", "ordrs-0", "--stop", "1"], "did you mean orders-0?"),
        (["queue", "stats", "data", "bils"], "did you mean bills?"),
        (["raed"], "did you mean read?"),
    ],
)
def test_a_misspelt_name_gets_a_suggestion(data: Path, capsys: Capture, arguments: list[str], expected: str) -> None:
    main(arguments)
    assert expected in capsys.readouterr().err


def test_a_name_like_no_other_gets_no_suggestion(data: Path, capsys: Capture) -> None:
    assert main(["consume", "-e", "data", "xyz"]) == 1
    assert capsys.readouterr().err == "kstore: there is no topic 'xyz'\n"
    assert main(["xyz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "incomplete", "expected"),
    [
        (["consume", "data"], "or", ["orders"]),
        (["describe", "data"], "b", ["bills"]),
        (["topics", "data", "--alter"], "o", ["orders"]),
        (["groups", "data", "--describe"], "b", ["billing"]),
        (["consume", "gone"], "o", []),
        (["queue", "stats", "data"], "b", ["bills"]),
        (["delete-records", "data"], "o", ["orders-0"]),
        (["topics", "data", "--config"], "retention_m", ["retention_ms="]),
        (["topics", "data", "--reset"], "retention_m", ["retention_ms"]),
    ],
)
def test_names_are_completed(data: Path, arguments: list[str], incomplete: str, expected: list[str]) -> None:
    complete = ShellComplete(cli, {}, "kstore", "_KSTORE_COMPLETE")
    assert [item.value for item in complete.get_completions(arguments, incomplete)] == expected
