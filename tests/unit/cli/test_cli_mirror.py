"""``kstore mirror``, and the progress bar of long commands."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.cli.main import main
from kstore.cli.progress import progress
from kstore.log import Log
from tests.support.harness.evidence import Crashed, Wrong

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``kstore mirror``: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run_one(*arguments: str) -> tuple[int, str, str]:
        status = main(["mirror", *arguments])
        out, err = capfd.readouterr()
        return status, out, err

    return run_one


def fill(path: str, count: int) -> None:
    with Log(path, segment_bytes=2000) as log:
        for number in range(count):
            log.append(b"%06d" % number * 15)


def test_each_log_has_a_line(run: Run) -> None:
    fill("data/a-0", 50)
    fill("data/b-1", 3)
    copied = sum(path.stat().st_size for path in Path("data").glob("*-*/0*"))
    status, out, err = run("data", "copy")
    assert (status, err) == (0, "")
    first, second = out.splitlines()
    assert first.startswith("a-0: 5 segments copied, 0 already there, ")
    assert first.endswith(" bytes, offsets 0 to 50 (exclusive)")
    assert second.startswith("b-1: 1 segment copied, ")
    sizes = [line.split(" bytes")[0].rpartition(" ")[2].replace(",", "") for line in (first, second)]
    assert sum(map(int, sizes)) == copied
    assert run("data", "copy")[1].startswith("a-0: 0 segments copied, 5 already there, 0 bytes, ")


def test_json_is_one_object_a_log(run: Run) -> None:
    fill("a-0", 50)
    status, out, _ = run("a-0", "copy", "--format", "json")
    found = json.loads(out)
    assert status == 0
    assert (found["name"], found["segments_copied"], found["end_offset"], found["error"]) == ("a-0", 5, 50, None)
    fill("a-0", 0)
    status, out, _ = run("a-0", "copy", "--format", "json", "--dry-run")
    assert json.loads(out)["dry_run"] is True


def test_a_copy_in_a_store_says_that_the_active_segment_is_left_out(run: Run) -> None:
    pytest.importorskip("fsspec")
    fill("a-0", 50)
    status, out, _ = run("a-0", "memory://bucket/cli/a-0", "--storage-option", "global_store=1")
    assert status == 0
    assert out.endswith(", without the active segment\n")


def test_damage_is_reported_and_ends_with_status_1(run: Run) -> None:
    fill("a-0", 50)
    path = sorted(Path("a-0").glob("*.log"))[1]
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    status, out, err = run("a-0", "copy")
    assert status == 1
    assert "5 segments copied" in out
    assert str(path) in err
    assert "damaged at position 0" in err
    assert sorted(Path("copy").glob("*.log"))[1].read_bytes() == bytes(data)


def test_a_source_that_was_truncated_is_refused_unless_forced(run: Run) -> None:
    fill("a-0", 50)
    run("a-0", "copy")
    with Log("a-0") as log:
        log.truncate_to(20)
    status, out, err = run("a-0", "copy")
    assert (status, out) == (1, "a-0: failed\n")
    assert "the source was truncated" in err
    assert run("a-0", "copy", "--force")[0] == 0
    with Log("copy", read_only=True) as log:
        assert log.end_offset == 20


def test_bad_usage_ends_with_status_2(run: Run) -> None:
    assert run("a-0")[0] == 2
    assert run("a-0", "b-0", "--storage-option", "novalue")[0] == 2


def test_a_missing_source_and_an_unknown_scheme_are_one_line(run: Run) -> None:
    for arguments in (("missing", "copy"), ("nosuch://x/y", "copy")):
        status, out, err = run(*arguments)
        assert (status, out) == (1, "")
        assert err.startswith("kstore: ")
        assert err.count("\n") == 1


def test_the_help_has_examples(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    assert "Exit status:" in out
    assert "only sealed segments" in out


@pytest.mark.long
def test_a_mirror_that_is_killed_goes_on(tmp_path: Path, tried: Callable[[str, int], None]) -> None:
    with Log(tmp_path / "a-0", segment_bytes="256KiB", durability="os") as log:
        for number in range(300):
            log.append(b"%08d" % number * 1000)
    command = [sys.executable, "-m", "kstore.cli.main", "mirror", str(tmp_path / "a-0"), str(tmp_path / "copy")]
    for wait in (0.25, 0.3, 0.35, 0.4):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        tried("kills", 1)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Crashed(done.stderr)
    for path in (tmp_path / "a-0").glob("0*"):
        if (tmp_path / "copy" / path.name).read_bytes() != path.read_bytes():
            raise Wrong(f"{path.name} has other bytes")


# --- the bar ----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, **environment: str) -> str:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress("mirror", 1 << 20) as advance:
        advance(1 << 19)
    return stream.getvalue()


def test_a_terminal_is_shown_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), TERM="xterm-256color", COLUMNS="80")
    assert "mirror" in text
    assert "1.0 MiB" in text
    assert "\x1b[38;5" in text or "\x1b[3" in text


def test_no_color_takes_the_colours_away(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, Terminal(), TERM="xterm-256color", NO_COLOR="1", COLUMNS="80")
    assert "mirror" in text
    assert "\x1b[38;5" not in text


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_a_pipe_and_a_dumb_terminal_are_shown_nothing(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> None:
    term = "dumb" if stream.isatty() else "xterm"
    assert shown(monkeypatch, stream, TERM=term) == ""


def test_counted_things_have_their_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with progress("verify", 4, unit="segments") as advance:
        for _ in range(4):
            advance(1)
    assert "4/4 segments" in stream.getvalue()
