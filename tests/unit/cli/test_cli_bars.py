"""Bars and sparklines on a terminal; elsewhere the plain output that programs read."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

import kstore
from kstore.cli.main import main
from kstore.cli.table import LOWER_EIGHTHS, bar, has_blocks, sparkline
from kstore.cli.terminal import TerminalText
from tests.support.harness.terminal import in_terminal, screen

BLOCKS = set("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇")


class Terminal(io.TextIOWrapper):
    """A terminal that keeps what it gets."""

    def isatty(self) -> bool:
        return True


def show_on_terminal(monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> None:
    """Makes standard output a terminal, until the test ends."""
    monkeypatch.setattr(sys, "stdout", TerminalText(Terminal(io.BytesIO(), encoding=encoding)))
    monkeypatch.setenv("TERM", "xterm")


def data(path: Path) -> Path:
    with kstore.open(path / "data", durability="os", background=False) as store:
        store.create_topic("t", partitions=3)
        for partition in range(3):
            log = store.log("t", partition)
            for number in range(1, 4):
                count = number * 10 * 4**partition
                log.append_many([b"v"] * count, timestamps=[number * 1000] * count)
    return path


# --- what is drawn ----------------------------------------------------------------------------------------------------


def test_a_bar_on_a_terminal_is_as_long_as_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    show_on_terminal(monkeypatch)
    assert [bar(value, 80, 10) for value in (0, 1, 8, 12, 80)] == ["", "▏", "█", "█▌", "█" * 10]
    assert bar(5, 0, 10) == ""
    assert bar(10**18, 10**18, 10) == "█" * 10


def test_a_bar_elsewhere_is_of_plain_characters() -> None:
    assert not has_blocks()
    assert [bar(value, 80, 10) for value in (0, 1, 8, 12, 80)] == ["", "#", "#", "##", "#" * 10]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_that_cannot_show_blocks_gets_plain_characters(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    show_on_terminal(monkeypatch, encoding)
    assert bar(1, 1, 3) == "###"


def test_a_dumb_terminal_gets_plain_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    show_on_terminal(monkeypatch)
    assert has_blocks()
    monkeypatch.setenv("TERM", "dumb")
    assert not has_blocks()


def test_a_sparkline_has_a_space_only_for_nothing() -> None:
    assert sparkline([0, 1, 500, 1000]) == f" {LOWER_EIGHTHS[1]}{LOWER_EIGHTHS[4]}{LOWER_EIGHTHS[8]}"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("columns", "bar_count"), [(100, 3), (60, 0)], ids=["wide", "narrow"])
@pytest.mark.sampled(1)
def test_describe_draws_the_bytes_of_partitions_if_there_is_space(tmp_path: Path, columns: int, bar_count: int) -> None:
    status, out = in_terminal(
        "describe", "data", directory=data(tmp_path), columns=columns, environment={"PYTHONIOENCODING": "utf-8"}
    )
    lines = screen(out)
    assert status == 0
    assert sum(bool(BLOCKS & set(line)) for line in lines) == bar_count
    assert max(map(len, lines)) <= columns


@pytest.mark.long
def test_stats_draws_when_bytes_were_written(tmp_path: Path) -> None:
    environment = {"PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
    status, out = in_terminal("stats", "data", directory=data(tmp_path), environment=environment)
    lines = screen(out)
    assert status == 0
    assert b"\x1b[3" not in out.rpartition(b"bytes by time")[2]
    drawn = lines[lines.index(next(line for line in lines if line.startswith("bytes by time"))) + 1]
    assert drawn.startswith("1970-01-01T00:00:01Z ")
    assert drawn.endswith(" 1970-01-01T00:00:03Z")
    assert len(BLOCKS & set(drawn)) == 3
    assert max(map(len, lines)) <= 80


def test_text_that_ends_like_a_control_sequence_is_text() -> None:
    assert screen(b"ABOVE\nid A\n\x1b[1Aover OK") == ["ABOVE", "over OK", ""]


def test_stats_in_a_pipe_has_no_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(data(tmp_path) / "data")]) == 0
    out = capsys.readouterr().out
    assert not BLOCKS & set(out)
    assert "bytes by time" not in out
    assert "####" in out
