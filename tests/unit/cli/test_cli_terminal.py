"""The contents of records do not act on the terminal; a pipe gets every byte. Run in a pseudo-terminal."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import kstore
from kstore.cli import command, table, terminal
from kstore.cli.main import cli, main
from kstore.cli.terminal import TerminalText, escaped, escaped_bytes, guarded_output
from kstore.consumer.consumer import Consumer
from kstore.log import Log
from kstore.store import Store
from tests.support.harness.terminal import in_terminal, screen

RED = b"\x1b[31m"
NASTY = RED + "a\nb\rc\x9b31m\u202ed\x7f\té".encode()
SHOWN = "\\x1b[31ma\\nb\\rc\\u009b31m\\u202ed\\u007f\té".encode()


@pytest.fixture
def nasty(tmp_path: Path) -> Path:
    """A store with one record that is hostile everywhere."""
    with Store(tmp_path / "data", background=False) as store:
        store.create_topic("orders")
        store.log("orders", 0).append(NASTY, key=RED, headers=[("\x1b[31m", RED)], timestamp=1)
    return tmp_path


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, bytes]]:
    """Runs a command in this process with a terminal as standard output; returns its status and output."""

    def run_one(*arguments: str) -> tuple[int, bytes]:
        with os.fdopen(os.dup(1), "w") as out, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(terminal, "_guarded", lambda stream: TerminalText(stream) if stream is out else stream)
            status = main(arguments)
        return status, capfdbinary.readouterr()[0]

    return run_one


COMMANDS = {
    "read": ("read", "data/orders-0"),
    "read with keys": ("read", "--key-separator", "=", "data/orders-0"),
    "read json": ("read", "--format", "json", "data/orders-0"),
    "consume": ("consume", "-e", "data", "orders"),
    "consume format": ("consume", "-e", "-f", "%k %h %s\\n", "data", "orders"),
    "consume json": ("consume", "-e", "-J", "data", "orders"),
    "dump-log": ("dump-log", "--print-data-log", "data/orders-0/00000000000000000000.log"),
    "dump-log json": ("dump-log", "--format", "json", "--print-data-log", "data/orders-0"),
    "export csv": ("export", "--format", "csv", "--columns", "value", "data/orders-0", "-"),
    "export": ("export", "--format", "jsonl", "data/orders-0", "-"),
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_control_character_of_a_record_reaches_the_terminal(
    nasty: Path, run: Callable[..., tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(nasty)
    status, out = run(*arguments)
    assert status == 0
    text = out.decode()
    assert not set(text) & set("\x1b\r\x9b\x7f\u202e"), text
    assert "\\u202e" in text
    # With --raw the terminal gets them all; JSON itself escapes the first ones.
    status, out = run(arguments[0], "--raw", *arguments[1:])
    assert status == 0
    assert "\u202e".encode() in out


def test_a_value_stays_on_its_line(nasty: Path) -> None:
    assert in_terminal("read", "data/orders-0", directory=nasty) == (0, SHOWN + b"\n")


def test_bytes_that_are_no_text_are_escaped() -> None:
    assert escaped_bytes(b"a\xff\x9b\xc3") == b"a\\xff\\x9b\\xc3"


def test_a_pipe_gets_every_byte(nasty: Path, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        assert in_terminal("read", "data/orders-0", directory=nasty, stdout=out.fileno()) == (0, b"")
    assert (tmp_path / "out").read_bytes() == NASTY + b"\n"


@pytest.mark.long
def test_a_message_with_the_name_of_a_file_does_not_act_on_the_terminal(tmp_path: Path) -> None:
    status, out = in_terminal("read", "\x1b[31m\u202e", directory=tmp_path)
    assert status == 1
    assert b"\x1b" not in out
    assert b"\\x1b[31m\\u202e" in out


def test_colours_are_sent_and_a_name_cannot_ask_for_them(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "a\x1b[31m\n-0"):
        pass
    status, out = in_terminal("verify", str(next(tmp_path.iterdir())), directory=tmp_path, columns=200)
    assert status == 0
    assert b"a\x1b" not in out
    assert b"\x1b[32msound\x1b[0m\n" in out
    assert b"a\\x1b[31m\\n-0" in out


def test_line_breaks_of_text_stay() -> None:
    assert escaped("a\nb\x1b", lines=True) == "a\nb\\x1b"
    assert escaped("a\nb\x1b") == "a\\nb\\x1b"


def test_streams_that_are_no_terminal_are_not_guarded() -> None:
    before = sys.stdout, sys.stderr
    with guarded_output():
        assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.sampled(1)
def test_bars_and_results_do_not_share_a_line(tmp_path: Path, columns: int) -> None:
    for number in range(3):
        with kstore.Log(tmp_path / f"data/a-{number}") as log:
            log.append(b"x")
    status, out = in_terminal("recover", "data", directory=tmp_path, columns=columns)
    assert status == 0
    assert b"recover \x1b[" in out
    assert b"\x1b[?25h" in out
    assert screen(out) == [*(f"data/a-{number}: closed cleanly, nothing to do" for number in range(3)), ""]


def test_a_bar_is_not_shown_beside_a_pipe(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "a-0") as log:
        log.append(b"x")
    reader, writer = os.pipe()
    try:
        assert in_terminal("recover", "a-0", directory=tmp_path, stdout=writer) == (0, b"")
    finally:
        os.close(writer)
        os.close(reader)


@pytest.mark.parametrize(("columns", "line_count"), [(80, 3), (120, 2)])
@pytest.mark.sampled(1)
def test_a_table_fits_the_terminal(tmp_path: Path, columns: int, line_count: int) -> None:
    name = f"{'long-name-' * 3}0"
    with kstore.Log(tmp_path / name):
        pass
    status, out = in_terminal("verify", name, directory=tmp_path, columns=columns)
    lines = screen(out)
    assert (status, lines.index("")) == (0, line_count)
    assert name in lines[0] + lines[1]
    assert max(map(len, lines)) <= columns


def helps(of: click.Command, name: str, columns: int, parent: click.Context | None = None) -> Iterator[str]:
    """The help of a command and of its own commands."""
    context = click.Context(of, info_name=name, parent=parent, terminal_width=columns - 2)
    yield of.get_help(context)
    if isinstance(of, click.Group):
        for each in of.list_commands(context):
            found = of.get_command(context, each)
            assert found is not None
            yield from helps(found, each, columns, context)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_help_of_every_command_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = [line for text in helps(cli, "kstore", 200) for line in text.splitlines()]
    for module in (table, command):
        monkeypatch.setattr(module, "room", lambda: columns)
    texts = list(helps(cli, "kstore", columns))
    assert len(texts) > 30
    assert max(len(line) for text in texts for line in text.splitlines()) <= columns
    # Examples may be copied into a shell.
    run = [line.strip() for text in texts for line in text.replace(" \\\n       ", "").splitlines()]
    for line in wide:
        if line.startswith("    kstore "):
            assert line.strip().partition("  ")[0] in [each.partition("  ")[0] for each in run]


def test_a_consumer_says_that_it_reached_the_end(
    nasty: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nasty)
    waited: list[float] = []
    poll = Consumer.poll

    def stop_at_the_wait(self: Consumer, timeout: float, *rest: int) -> object:
        waited.append(timeout)
        if timeout:
            raise KeyboardInterrupt
        return poll(self, timeout, *rest)

    monkeypatch.setattr(Consumer, "poll", stop_at_the_wait)
    assert main(["consume", "-f", "%o\n", "data", "orders"]) == 130
    assert capfd.readouterr() == ("0\n", "kstore: reached the end, waiting for records; Ctrl-C ends\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_name_that_is_not_utf_8_is_an_escape_in_a_pipe(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python chooses ``errors`` by the locale."""
    name = os.fsdecode(b"log\xff-0")
    with Log(tmp_path / name, durability="os") as log:
        log.append(b"v")
    pipe = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdout", pipe)
    assert main(["verify", "--format", "json", str(tmp_path / name)]) == 0
    assert main(["verify", str(tmp_path / name)]) == 0
    assert pipe.errors == errors
    line, *text = pipe.buffer.getvalue().splitlines()
    assert json.loads(line)["log"] == str(tmp_path / name)
    assert b"log\\udcff-0" in b"".join(text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_an_output_that_cannot_be_written_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["--help"]) == 1
    assert capsys.readouterr().err == "kstore: standard output: No space left on device\n"


def test_another_error_of_a_file_names_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "some.csv")

    monkeypatch.setattr(cli, "main", refused)
    assert main([]) == 1
    assert capsys.readouterr().err == "kstore: some.csv: Permission denied\n"


def test_closed_standard_streams_are_the_null_device(tmp_path: Path) -> None:
    with Log(tmp_path / "log-0", durability="os") as log:
        log.append(b"v")
    command = f"exec {sys.executable} -m kstore.cli.main append {tmp_path}/log-0 <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 0
    with Log(tmp_path / "log-0", read_only=True) as log:
        assert [record.value for record in log] == [b"v"]
