"""``kstore append`` and ``kstore read``."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kstore.cli.interrupts import Interrupts
from kstore.cli.main import main
from kstore.cli.record_json import (
    InputError,
    add_bytes,
    header_fields,
    parse_record,
    record_fields,
)
from kstore.cli.record_lines import line_batches
from kstore.log import Log
from kstore.record._codec import Record
from tests.support.harness.golden_data import copy_partition, golden_root

ROOT = Path(__file__).resolve().parents[3]
T = 1_700_000_000_000

Run = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``kstore``: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run_one(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(arguments)
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run_one


def records(log: str) -> list[tuple[int, bytes | None, bytes | None]]:
    with Log(log, read_only=True) as opened:
        return [(record.offset, record.key, record.value) for record in opened.read()]


# --- append -----------------------------------------------------------------------------------------------------------


def test_each_line_is_a_record(run: Run) -> None:
    status, out, err = run("append", "a-0", stdin=b"one\ntwo\n")
    assert (status, out, err) == (0, b"appended 2 records, offsets 0 to 1\n", "")
    status, out, _ = run("append", "a-0", stdin=b"three")
    assert (status, out) == (0, b"appended 1 record, offsets 2 to 2\n")
    assert records("a-0") == [(0, None, b"one"), (1, None, b"two"), (2, None, b"three")]


def test_lines_keep_their_bytes(run: Run) -> None:
    run("append", "a-0", stdin=b"\n\xff\0\r\n  x \n")
    assert [value for _, _, value in records("a-0")] == [b"", b"\xff\0\r", b"  x "]


def test_lines_come_from_a_file_too(run: Run) -> None:
    Path("lines.txt").write_bytes(b"one\n")
    assert run("append", "a-0", "lines.txt", "--quiet") == (0, b"", "")
    assert records("a-0") == [(0, None, b"one")]


def test_no_lines_make_an_empty_log(run: Run) -> None:
    assert run("append", "a-0") == (0, b"appended nothing\n", "")
    assert records("a-0") == []


def test_a_separator_divides_key_from_value(run: Run) -> None:
    run("append", "a-0", "--key-separator", "::", stdin=b"k::v::w\n::v\n")
    assert records("a-0") == [(0, b"k", b"v::w"), (1, b"", b"v")]


def test_a_line_without_the_separator_is_named_once_those_before_it_are_appended(run: Run) -> None:
    status, out, err = run("append", "a-0", "--key-separator", ":", stdin=b"a:1\nb:2\nc\nd:4\n")
    assert (status, out) == (1, b"appended 2 records, offsets 0 to 1\n")
    assert err == "kstore: line 3: no key separator ':'\n"
    assert [offset for offset, _, _ in records("a-0")] == [0, 1]


def test_a_line_that_the_log_refuses_is_named_once_those_before_it_are_appended(run: Run) -> None:
    lines = b"one\ntwo\n" + b"x" * 2000 + b"\nfour\n"
    status, out, err = run("append", "a-0", "--config", "max_message_bytes=1000", stdin=lines)
    assert (status, out) == (1, b"appended 2 records, offsets 0 to 1\n")
    assert err.startswith("kstore: line 3: ")
    assert "over the limit of 1000 bytes" in err
    assert [value for _, _, value in records("a-0")] == [b"one", b"two"]


def test_at_most_n_records_are_appended_at_a_time(run: Run) -> None:
    run("append", "a-0", "--batch", "2", stdin=b"1\n2\n3\n4\n5\n")
    _, out, _ = run("dump-log", "a-0")
    assert out.count(b"baseOffset") == 3


def test_lines_are_appended_as_they_come() -> None:
    pieces = [b"on", b"e\ntwo\nth", b"ree\n", b"four"]

    class Slow(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            return pieces.pop(0) if pieces else b""

    assert list(line_batches(Slow(), Interrupts(), 1000)) == [[b"one", b"two"], [b"three"], [b"four"]]


def test_an_interrupt_that_came_just_before_a_wait_for_lines_ends_it() -> None:
    # As if the signal came between two instructions: the handler ran, and nothing was raised.
    interrupts = Interrupts()
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file, os.fdopen(writing, "wb"):
        threading.Timer(0.1, setattr, (interrupts, "came", True)).start()
        with pytest.raises(KeyboardInterrupt):
            next(line_batches(file, interrupts))


def test_a_line_without_an_end_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.cli.record_lines.LINE_BYTES_MAX", 10)
    status, _, err = run("append", "a-0", stdin=b"x" * 11)
    assert (status, err) == (1, "kstore: a line of more than 10 bytes\n")


def test_json_lines_have_key_value_headers_and_time(run: Run) -> None:
    lines = [
        {"key": "k", "value": "größe", "headers": [{"key": "h", "value": "1"}, {"key": "n", "value": None}]},
        {"key_base64": "/w==", "value": None, "timestamp": T, "headers": {"h": "2"}},
        {"value_base64": "AA==", "headers": [["h", "3"], {"key": "b", "value_base64": "/w=="}]},
        {},
    ]
    status, out, err = run("append", "--json", "a-0", stdin="".join(f"{json.dumps(line)}\n" for line in lines).encode())
    assert (status, out, err) == (0, b"appended 4 records, offsets 0 to 3\n", "")
    with Log("a-0", read_only=True) as log:
        found = list(log.read())
    assert [(record.key, record.value, record.headers) for record in found] == [
        (b"k", "größe".encode(), (("h", b"1"), ("n", None))),
        (b"\xff", None, (("h", b"2"),)),
        (None, b"\0", (("h", b"3"), ("b", b"\xff"))),
        (None, None, ()),
    ]
    assert found[1].timestamp == T
    assert found[0].timestamp > T


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "no JSON"),
        ("[]", "a JSON list, expected an object"),
        ('{"valeu": "x"}', "unknown field 'valeu'"),
        ('{"value": 7}', "value is a JSON int"),
        ('{"value": "x", "value_base64": "AA=="}', "both value and value_base64"),
        ('{"value_base64": "?"}', "value_base64"),
        ('{"value": "\\ud800"}', "value: "),
        ('{"timestamp": "now"}', "timestamp 'now'"),
        ('{"timestamp": true}', "timestamp True"),
        ('{"headers": "h"}', "headers are a JSON str"),
        ('{"headers": [["h"]]}', "a header that is neither"),
        ('{"headers": [{"value": "x"}]}', "a header that is neither"),
        ('{"headers": [{"key": "h", "value": 1}]}', "value is a JSON int"),
    ],
    ids=[
        "cut",
        "list",
        "unknown-field",
        "number",
        "both",
        "base64",
        "surrogate",
        "text-time",
        "bool-time",
        "text-headers",
        "short-pair",
        "nameless",
        "number-in-header",
    ],
)
def test_a_json_line_that_is_no_record_says_why(line: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason.replace("[", r"\[")):
        parse_record(line)


def test_what_read_prints_can_be_appended_again(run: Run) -> None:
    source = str(golden_root() / "clean" / "headers-0")
    status, lines, _ = run("read", "--format", "json", source)
    assert status == 0
    run("append", "--json", "copy-0", stdin=lines)
    _, again, _ = run("read", "--format", "json", "copy-0")
    copied = [json.loads(line) for line in again.splitlines()]
    for line in map(json.loads, lines.splitlines()):
        kept = copied.pop(0)
        assert {name: line[name] for name in line if name != "offset"} == {
            name: kept[name] for name in kept if name != "offset"
        }
    assert copied == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "segment_byte=1"],
        ["--config", "fs=x"],
        ["--config", "segment_bytes"],
        ["--config", "segment_bytes=many"],
        ["--key-separator", ""],
        ["--json", "--key-separator", ":"],
        ["--durability", "none"],
        ["--batch", "0"],
    ],
    ids=["unknown", "no-setting", "no-value", "value", "empty", "both", "durability", "batch"],
)
def test_bad_usage_of_append_changes_nothing(arguments: list[str], run: Run) -> None:
    status, out, err = run("append", "a-0", *arguments, stdin=b"x\n")
    assert (status, out) == (2, b"")
    assert "Error: " in err
    assert not Path("a-0").exists()


def test_a_locked_log_is_one_line(run: Run) -> None:
    with Log("a-0"):
        status, out, err = run("append", "a-0", stdin=b"x\n")
    assert (status, out) == (1, b"")
    assert err.startswith("kstore: ")
    assert err.count("\n") == 1


# --- read -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log of ten records, 0 to 9, a second between each."""
    with Log(tmp_path / "log-0") as opened:
        opened.append_many(
            [b"%d" % number for number in range(10)],
            keys=[b"k%d" % number for number in range(10)],
            timestamps=[T + number * 1000 for number in range(10)],
        )
    return "log-0"


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], "0123456789"),
        (["--start", "7"], "789"),
        (["--start", "-2"], "89"),
        (["--start", "-99"], "0123456789"),
        (["--start", "10"], ""),
        (["--count", "3"], "012"),
        (["--count", "0"], ""),
        (["--start", "8", "--count", "9"], "89"),
        (["--since", str(T + 6500)], "789"),
        (["--since", "2023-11-14T22:13:27+00:00"], "789"),
        (["--since", str(T + 99_000)], ""),
        (["--isolation-level", "read_committed", "--start", "9"], "9"),
        (["--start", "2", "--stop", "4"], "23"),
        (["--stop", "99"], "0123456789"),
        (["--start", "4", "--stop", "2"], ""),
        (["--since", str(T + 2000), "--until", str(T + 4000)], "23"),
        (["--until", str(T + 99_000)], "0123456789"),
        (["--start", "3", "--since", str(T + 1000), "--stop", "8", "--until", str(T + 5000)], "34"),
    ],
    ids=[
        "all",
        "offset",
        "from-the-end",
        "from-before-the-start",
        "at-the-end",
        "count",
        "none",
        "count-beyond-the-end",
        "ms",
        "iso",
        "later-than-all",
        "committed",
        "stop",
        "stop-beyond-the-end",
        "stop-before-start",
        "times",
        "until-beyond-the-end",
        "offsets-and-times",
    ],
)
def test_read_begins_and_ends_at_the_given_offsets(arguments: list[str], values: str, log: str, run: Run) -> None:
    status, out, err = run("read", log, *arguments)
    assert (status, out.decode().replace("\n", ""), err) == (0, values, "")


def test_text_is_the_value_s_bytes_and_on_demand_the_key_s(run: Run) -> None:
    with Log("a-0") as opened:
        opened.append_many([b"\xff\0", None], keys=[b"k", None])
    assert run("read", "a-0")[1] == b"\xff\0\n\n"
    assert run("read", "a-0", "--key-separator", "\t")[1] == b"k\t\xff\0\n\t\n"


def test_json_says_which_bytes_are_base64(run: Run) -> None:
    with Log("a-0") as opened:
        opened.append(b"\xff", key="schlüssel".encode(), headers=[("h", b"1"), ("n", None)], timestamp=T)
    _, out, _ = run("read", "--format", "json", "a-0")
    assert out.decode() == (
        f'{{"offset":0,"timestamp":{T},"timestamp_type":"CreateTime","key":"schlüssel","value_base64":"/w==",'
        '"headers":[{"key":"h","value":"1"},{"key":"n","value":null}]}\n'
    )


def test_read_writes_nothing_to_the_log(log: str, run: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(log).iterdir()}
    run("read", log)
    assert {path: path.stat().st_mtime_ns for path in Path(log).iterdir()} == before


def test_follow_prints_what_is_appended_later(log: str, run: Run) -> None:
    def append() -> None:
        with Log(log) as opened:
            opened.append_many([b"10", b"11"])

    writer = threading.Thread(target=append)
    writer.start()
    status, out, err = run("read", "--follow", "--start", "8", "--count", "4", log)
    writer.join()
    assert (status, out, err) == (0, b"8\n9\n10\n11\n", "")


def test_an_interrupt_ends_follow_in_silence(log: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kstore.cli.main", "read", "--follow", str(tmp_path / log)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)}
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"0\n"
        # Python drops an interrupt that comes in a finalizer, and says so: then try again.
        tries, err = 0, b""
        while tries < 10:
            tries += 1
            reader.send_signal(signal.SIGINT)
            try:
                _, err = reader.communicate(timeout=5)
                break
            except subprocess.TimeoutExpired:
                continue
        else:
            reader.kill()
    assert reader.returncode == 130
    assert tries > 1 or err == b""


def test_damage_ends_a_read_with_its_place(run: Run, tmp_path: Path) -> None:
    directory = copy_partition("damaged", "flipped-record-0", tmp_path)
    status, out, err = run("read", "--format", "json", str(directory))
    assert status == 1
    assert out.count(b"\n") == 81
    assert err.startswith("kstore: ")
    assert "00000000000000000000.log" in err
    assert "offsets 81 to 121" in err
    assert err.count("\n") == 1


def test_damage_is_left_out_on_demand_and_reported(run: Run, tmp_path: Path) -> None:
    directory = copy_partition("damaged", "flipped-record-0", tmp_path)
    status, out, err = run("read", "--on-corrupt", "skip", "--format", "json", str(directory))
    assert status == 1
    offsets = [json.loads(line)["offset"] for line in out.splitlines()]
    assert 80 in offsets
    assert 122 in offsets
    assert not set(offsets) & set(range(81, 122))
    assert "offsets 81 to 121 are damaged at position" in err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["read", "nowhere"], 1, "nowhere: No such file or directory"),
        (["read", "log-0", "--start", "11"], 1, "offset 11 is outside the log"),
        (["read", "log-0", "--since", "noon"], 2, "'noon', expected a time such as 2026-01-31T09:00"),
        (["read", "log-0", "--follow", "--stop", "1"], 2, "--follow has no end"),
        (["read", "log-0", "--format", "json", "--key-separator", ":"], 2, "--key-separator is for text"),
        (["read"], 2, "Missing argument"),
        (["reed"], 2, "No such command"),
    ],
    ids=["missing", "out-of-range", "time", "follow-to-an-end", "separator", "nothing", "command"],
)
def test_errors_are_said_without_a_traceback(arguments: list[str], status: int, words: str, log: str, run: Run) -> None:
    found, out, err = run(*arguments)
    assert (found, out) == (status, b"")
    assert words in err
    assert "Traceback" not in err


def test_the_group_lists_its_commands_and_its_version(run: Run) -> None:
    status, out, _ = run("--help")
    assert status == 0
    for name in ("append", "dump-log", "read", "_KSTORE_COMPLETE=bash_source"):
        assert name in out.decode()
    assert run("--version")[1].startswith(b"kstore, version ")


def test_a_record_s_fields_are_those_of_its_bytes() -> None:
    for key in (None, b"", b"k", b"\xff"):
        record = Record(1, 2, "CreateTime", key, key, [("h", key)])
        fields: dict[str, object] = {"offset": 1, "timestamp": 2, "timestamp_type": "CreateTime"}
        for name in ("key", "value"):
            add_bytes(fields, name, key)
        assert record_fields(record) == fields | {"headers": header_fields(record.headers)}
