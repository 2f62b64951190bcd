"""What ``kstore verify`` and ``kstore recover`` say of damage: what cannot be read, then why, then what to do."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from kstore.cli.main import main
from kstore.log import Log
from kstore.upkeep.verify import verify_log
from tests.support.harness.golden_data import copy_partition, golden_partitions
from tests.support.harness.terminal import in_terminal, screen
from tests.support.lives.log_cases import flip

TIME = 1_700_000_000_000
FIRST = f"{0:020d}.log"
LONG_NAME = "a-directory-with-a-long-name-in-front-of-its-logs and a space"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log_of_batches(name: str) -> Path:
    """A log of five batches of the same size, each a second later than the one before."""
    path = Path(name)
    with Log(path) as log:
        for at in range(0, 15, 3):
            log.append_many([b"v%02d" % one for one in range(at, at + 3)], timestamps=[TIME + at // 3 * 1000] * 3)
    return path


def flip_batch(path: Path, number: int) -> None:
    size = (path / FIRST).stat().st_size // 5
    flip(path / FIRST, number * size + size - 1)


def verified(*arguments: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["verify", *arguments]) == 1
    return capsys.readouterr().out.splitlines()


def test_what_cannot_be_read_comes_first_and_the_command_last(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_batch(log_of_batches("orders-0"), 2)
    lines = verified("orders-0", capsys=capsys)
    assert lines[0] == "orders-0: 3 records cannot be read; 12 records can be read"
    assert lines[1:3] == [
        "  3 records, offsets 6 to 8, cannot be read",
        "    times: up to 2023-11-14T22:13:21.000Z before them, up to 2023-11-14T22:13:23.000Z in the batch after them",
    ]
    assert re.fullmatch(rf"    {FIRST} at position \d+: bad crc: stored 0x\w+, computed 0x\w+", lines[3])
    assert lines[4:7] == [
        "  Restore the log from a copy, or let reads continue without these records:",
        "    kstore recover --accept-loss 6-8 orders-0",
        "",
    ]
    assert main(["recover", "--accept-loss", "6-8", "orders-0"]) == 0
    assert main(["verify", "orders-0"]) == 0


def test_records_of_which_the_log_may_have_had_fewer_are_counted_as_a_limit(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = log_of_batches("keyed-0")
    with Log(path) as log:
        log.append_many([b"1", b"2", b"3"], keys=[b"k"] * 3)
    shutil.copytree(path, "copy-0")
    with Log("copy-0") as log:
        log.roll()
        log.compact()
    flip(Path("copy-0", FIRST), 30)
    found = verify_log(Path("copy-0"))
    assert not found.is_dense
    assert "up to" in "\n".join(verified("copy-0", capsys=capsys)[:2])


def test_several_logs_begin_with_how_many_are_damaged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("data/a-0", "data/b-0", "data/c-0"):
        log_of_batches(name)
    flip_batch(Path("data/a-0"), 1)
    flip_batch(Path("data/c-0"), 1)
    flip_batch(Path("data/c-0"), 3)
    lines = verified("data", capsys=capsys)
    assert lines[0] == "2 of 3 logs are damaged: 9 records cannot be read; 36 records can be read"
    headings = [line for line in lines[1:] if line.startswith("data/") and ": " in line]
    assert headings == [
        "data/a-0: 3 records cannot be read; 12 records can be read",
        "data/c-0: 6 records cannot be read; 9 records can be read",
    ]
    assert "    kstore recover --accept-loss 3-5 --accept-loss 9-11 data/c-0" in lines
    assert lines[-1] == "damage: 3"


def test_a_wrong_index_says_that_no_record_is_lost(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log_of_batches("orders-0")
    for suffix in (".index", ".timeindex"):
        (path / FIRST).with_suffix(suffix).write_bytes(b"\x55" * 13)
    lines = verified("orders-0", capsys=capsys)
    assert lines[0] == "orders-0: no record is lost; 15 records can be read"
    at = lines.index("  Rebuild the time indexes:")
    assert lines[at + 1] == "    kstore recover --rebuild-indexes orders-0"
    assert [line for line in lines if line.startswith("  no record is lost; a ")] == [
        "  no record is lost; a search by time may miss records until the index is rebuilt",
        "  no record is lost; a lookup by offset may be slow until the index is rebuilt",
    ]
    assert main(["recover", "--rebuild-indexes", "orders-0"]) == 0
    assert main(["verify", "orders-0"]) == 0


def test_a_damaged_end_says_from_where_on_nothing_can_be_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_partition("damaged", "garbage-tail-0", here)
    lines = verified("garbage-tail-0", capsys=capsys)
    assert lines[0] == "garbage-tail-0: the end cannot be read; 196 records can be read"
    assert lines[1].startswith("  nothing from offset 1500 on can be read")
    assert "    kstore recover garbage-tail-0" in lines


def test_notes_are_counted_unless_they_are_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log_of_batches("orders-0")
    (path / "stray.txt").touch()
    assert main(["verify", "orders-0"]) == 0
    assert "notes: 1; --notes shows them" in capsys.readouterr().out.splitlines()
    assert main(["verify", "--notes", "orders-0"]) == 0
    assert "note: orders-0: not a log's: stray.txt" in capsys.readouterr().out.splitlines()
    assert main(["verify", "--quiet", "orders-0"]) == 0
    assert "--notes" not in capsys.readouterr().out


def test_json_says_what_damage_means_and_the_times_around_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip_batch(log_of_batches("orders-0"), 2)
    assert main(["verify", "--format", "json", "orders-0"]) == 1
    _, finding = map(json.loads, capsys.readouterr().out.splitlines())
    assert finding["consequence"] == "3 records, offsets 6 to 8, cannot be read"
    assert (finding["after_ms"], finding["before_ms"]) == (TIME + 1000, TIME + 3000)
    assert finding["repair"] == "kstore recover --accept-loss 6-8 orders-0"


def test_a_lost_end_tells_the_time_before_it(here: Path) -> None:
    path = log_of_batches("orders-0")
    data = (path / FIRST).read_bytes()
    (path / FIRST).write_bytes(data[: len(data) // 5 * 4])
    (found,) = (one for one in verify_log(path).damages if one.kind == "state")
    assert (found.first, found.last, found.after_ms) == (12, 14, TIME + 3000)


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.sampled(1)
def test_findings_fit_the_terminal_and_their_commands_still_run(tmp_path: Path, columns: int) -> None:
    parent = tmp_path / LONG_NAME
    parent.mkdir()
    copy_partition("damaged", "codec-unknown-0", parent)
    for command in (["verify"], ["recover", "--dry-run"]):
        status, out = in_terminal(*command, LONG_NAME, directory=tmp_path, columns=columns)
        assert status == 1
        assert b"\x1b[31m" in out
        lines = screen(out)
        # A name alone may be longer.
        assert all(len(line) <= columns for line in lines if "a-directory" not in line)
        text = "\n".join(lines)
        (repair,) = re.findall(r"^ {4}(kstore recover (?:.*\\\n)*.*)$", text, re.MULTILINE)
        words = shlex.split(repair.replace("\\\n", ""))
        assert words[:6] == ["kstore", "recover", "--accept-loss", "81-121", "--accept-loss", "322-1499"]
        assert words[6:] == [f"{LONG_NAME}/codec-unknown-0"]


def test_findings_have_no_colour_if_the_user_wants_none(tmp_path: Path) -> None:
    copy_partition("damaged", "codec-unknown-0", tmp_path)
    for command in (["verify"], ["recover", "--dry-run"]):
        _, out = in_terminal(*command, "codec-unknown-0", directory=tmp_path, columns=80, environment={"NO_COLOR": "1"})
        assert b"\x1b[31m" not in out.rsplit(b"codec-unknown-0: ", 1)[-1]


# --- recover ----------------------------------------------------------------------------------------------------------

DONE = re.compile(
    r"\b(?:is|are|was|were|and) (?:fenced|rebuilt|kept|removed|split)\b|^  (?:cut|rebuilt|skipped):", re.MULTILINE
)


@pytest.mark.parametrize("name", golden_partitions("damaged"))
@pytest.mark.parametrize("options", [[], ["--accept-loss", "all", "--rebuild-indexes"]], ids=["plain", "all"])
def test_a_dry_run_speaks_of_what_would_happen(
    name: str, options: list[str], here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    copy_partition("damaged", name, here)
    status = main(["recover", "--dry-run", *options, name])
    out, err = capfd.readouterr()
    assert err == ""
    assert DONE.search(out) is None
    assert "would be" in out or "nothing to do" in out
    assert str(here) not in out
    assert main(["recover", *options, name]) == status
    done = capfd.readouterr().out
    assert "would" not in done
    assert DONE.search(done) or "nothing to" in done


def test_a_recovery_shows_what_cannot_be_read_and_the_way_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy_partition("damaged", "flipped-record-0", here)
    assert main(["recover", "flipped-record-0"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "flipped-record-0: up to 1,219 records cannot be read"
    assert "  up to 41 records, offsets 81 to 121, cannot be read, and are fenced: reads stop there" in lines
    (repair,) = (line for line in lines if line.startswith("    kstore recover "))
    assert main(shlex.split(repair)[1:]) == 0
    assert "nothing was lost" not in "".join(lines)
