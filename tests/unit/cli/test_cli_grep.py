"""``kstore grep``."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kstore.cli import grep as grep_module
from kstore.cli import grep_run
from kstore.cli.grep_run import Found, Task
from kstore.cli.main import main
from kstore.config import CompressionType
from kstore.log import Log
from kstore.types import CorruptRange
from kstore.upkeep.search import Match, Pattern, Piece, pieces, search
from tests.support.harness.golden_data import golden_root
from tests.support.harness.terminal import in_terminal

T = 1_700_000_000_000


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of 40 records in four codecs: keys, a header on every fifth, JSON values."""
    monkeypatch.chdir(tmp_path)
    codecs: tuple[CompressionType, ...] = ("uncompressed", "lz4", "uncompressed", "zstd")
    for start, codec in zip((0, 10, 20, 30), codecs, strict=True):
        with Log("orders-0", segment_bytes=1500, durability="os", compression_type=codec) as log:
            numbers = range(start, start + 10)
            log.append_many(
                [json.dumps({"user": {"name": f"u{n}", "tags": ["é", n]}, "n": n}).encode() for n in numbers],
                keys=[b"k%d" % n for n in numbers],
                headers=[[("trace", b"t%d" % n)] if n % 5 == 0 else [] for n in numbers],
                timestamps=[T + n for n in numbers],
            )
    return tmp_path / "orders-0"


def grep(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    status = main(["grep", *arguments])
    return status, capfd.readouterr().out.splitlines()


def offsets(lines: list[str]) -> list[int]:
    return [int(re.split("[:-]", line.removeprefix("orders-0"))[1]) for line in lines]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["u7"], [7]),
        (["-i", "U7"], [7]),
        (["U7"], []),
        (["-E", "^k[123]7$", "--keys"], [17, 27, 37]),
        (["-E", "k.*7$", "--values"], []),
        (["k12"], [12]),
        (["--values", "k12"], []),
        (["--hex", "753137"], [17]),
        (["t25"], [25]),
        (["--headers", "trace"], [0, 5, 10, 15, 20, 25, 30, 35]),
        (["--json-field", "user.name", "u2"], [2, *range(20, 30)]),
        (["--json-field", "n", "25"], [25]),
        (["--json-field", "n", "-E", "^2$"], [2]),
        (["--json-field", "user.tags.0", "é", "-m", "2"], [0, 1]),
        (["--json-field", "user.other", "u2"], []),
        (["--since", str(T + 38), "user"], [38, 39]),
        (["--until", str(T + 2), "user"], [0, 1]),
        (["--start", "37", "user"], [37, 38, 39]),
        (["--start", "-2", "user"], [38, 39]),
        (["--stop", "2", "user"], [0, 1]),
        (["--start", "5", "--stop", "9", "--since", str(T + 7), "user"], [7, 8]),
        (["--start", "9", "--stop", "5", "user"], []),
        (["--stop", "99", "u7"], [7]),
        (["-v", "user"], []),
        (["-v", "1"], [0, *range(2, 10), *range(20, 21), *range(22, 31), *range(32, 40)]),
        (["-v", "-E", "[1-8]"], [0, 9]),
        (["-v", "--keys", "k"], []),
        (["-v", "--json-field", "n", "-E", "^[1-3]?[1-9]$"], [0, 10, 20, 30]),
        (["-v", "--stop", "3", "u1"], [0, 2]),
        (["-v", "-m", "2", "k0"], [1, 2]),
        (["--max-count", "3", "user"], [0, 1, 2]),
        (["--max-count", "13", "user"], list(range(13))),
    ],
)
def test_the_records_that_match_are_printed(
    orders: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], expected: list[int]
) -> None:
    status, lines = grep(capfd, *arguments, "orders-0")
    assert (status, offsets(lines)) == (0 if expected else 1, expected)


@pytest.mark.long
def test_several_processes_find_the_same_in_the_same_order(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    alone = grep(capfd, "--jobs", "1", "user", ".")
    assert len(alone[1]) == 40
    assert grep(capfd, "--jobs", "3", "user", ".") == alone


def test_what_is_searched_quickly_starts_no_process(
    orders: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def noted(work: Callable[[Task], Found], tasks: Iterable[Task], count: int, *, ahead: int) -> Iterator[object]:
        counts.append(count)
        yield from ((task, work(task)) for task in tasks)

    monkeypatch.setattr(grep_run, "spread", noted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    assert len(grep(capfd, "user", ".")[1]) == 40
    assert counts.pop() == 1
    # The first process does what is not worth another one.
    monkeypatch.setattr(grep_run, "BYTES_MIN", grep_run.DECODING_FACTOR * 1000)
    assert len(grep(capfd, "user", ".")[1]) == 40
    assert counts.pop() == 1
    assert len(grep(capfd, "-E", "[u]", ".")[1]) == 40
    assert len(grep(capfd, "--jobs", "2", "user", ".")[1]) == 40
    assert counts == [7, 2]


def test_a_log_that_is_named_twice_is_searched_once(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert grep(capfd, "--count", "u1", "orders-0", ".", "orders-0") == (0, ["orders-0:11"])


def test_a_line_shows_where_it_matches(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    value = '{"user": {"name": "u25", "tags": ["\\u00e9", 25]}, "n": 25}'
    assert grep(capfd, "25", "orders-0") == (0, [f"orders-0:25:key=k25:header trace=t25:{value}"])
    _, (line,) = grep(capfd, "--format", "json", "t25", "orders-0")
    found = json.loads(line)
    assert (found["log"], found["offset"], found["matched"]) == ("orders-0", 25, ["header trace"])


def test_context_joins_groups_that_touch(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, lines = grep(capfd, "-C", "1", "-E", "^k(0|9|11|20)$", "--keys", "orders-0")
    assert status == 0
    marks = [line if line == "--" else re.match(r"orders-0([:-])(\d+)", line).groups() for line in lines]  # type: ignore[union-attr]
    groups = [
        [(":", 0), ("-", 1)],
        [("-", 8), (":", 9), ("-", 10), (":", 11), ("-", 12)],
        [("-", 19), (":", 20), ("-", 21)],
    ]
    expected: list[object] = []
    for group in groups:
        expected += (["--"] if expected else []) + [(mark, str(offset)) for mark, offset in group]
    assert marks == expected


def test_the_others_are_told_from_their_context(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, lines = grep(capfd, "-v", "--keys", "-E", "-C", "1", "k([^7]|.[^7])$", "orders-0")
    assert [line.split("{")[0] for line in lines[:4]] == ["orders-0-6-", "orders-0:7:", "orders-0-8-", "--"]
    assert offsets([line for line in lines if line.startswith("orders-0:")]) == [7, 17, 27, 37]
    assert grep(capfd, "-v", "-C", "1", "--format", "json", "k", "orders-0")[0] == 2


def test_counts_are_of_each_log(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert grep(capfd, "--count", "u1", "orders-0") == (0, ["orders-0:11"])
    assert grep(capfd, "--count", "nothing", "orders-0") == (1, ["orders-0:0"])
    assert grep(capfd, "--count", "-v", "u1", "orders-0") == (0, ["orders-0:29"])
    assert grep(capfd, "--count", "--format", "json", "u1", ".") == (
        0,
        ['{"log":"orders-0","topic":"orders","partition":0,"count":11}'],
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["-E", "(", "orders-0"],
        ["--hex", "x", "orders-0"],
        ["--json-field", "n", "--keys", "1", "orders-0"],
        ["--jobs", "1000000", "1", "orders-0"],
        ["--count", "-C", "1", "n", "orders-0"],
        ["-l", "-C", "1", "n", "orders-0"],
        ["-l", "-c", "n", "orders-0"],
        ["n"],
    ],
)
def test_bad_usage_is_refused(orders: Path, capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert grep(capfd, *arguments) == (2, [])


def test_damage_is_reported_and_the_rest_searched(orders: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = min(orders.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    assert main(["grep", "--count", "user", "orders-0"]) == 2
    out, err = capfd.readouterr()
    assert out == "orders-0:30\n"
    assert "offsets 0 to 9 are damaged" in err


def test_what_cannot_be_read_does_not_keep_the_rest_from_being_searched(
    orders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["grep", "-c", "u7", "gone", "orders-0"]) == 2
    assert capfd.readouterr() == ("orders-0:1\n", "kstore: gone: No such file or directory\n")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two topics of two partitions, and the internal ones of a group and a queue; each log holds the text ``text``."""
    monkeypatch.chdir(tmp_path)
    names = ["bills-0", "bills-1", "orders-0", "orders-1", "__consumer_offsets-3", "__queue_jobs-0"]
    for name in names:
        with Log(f"data/{name}") as log:
            log.append_many([b"text", b"text " + name.encode()])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["data"], ["bills-0", "bills-1", "orders-0", "orders-1"]),
        (["--topic", "orders", "data"], ["orders-0", "orders-1"]),
        (["--topic", "orders", "--topic", "bills", "-p", "1", "data"], ["bills-1", "orders-1"]),
        (["-p", "3", "--internal", "data"], ["__consumer_offsets-3"]),
        (["--internal", "-p", "0", "data"], ["__queue_jobs-0", "bills-0", "orders-0"]),
        (["--topic", "__queue_jobs", "data"], ["__queue_jobs-0"]),
        (["data/__queue_jobs-0/"], ["__queue_jobs-0"]),
        (["data/__queue_jobs-0", "data"], ["__queue_jobs-0", "bills-0", "bills-1", "orders-0", "orders-1"]),
        (["--topic", "nothing", "data"], []),
    ],
)
@pytest.mark.usefixtures("store")
def test_only_the_logs_that_are_asked_for_are_searched(
    arguments: list[str], expected: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    lines = [f"data/{name}" for name in expected]
    assert grep(capfd, "-l", "text", *arguments) == (0 if expected else 1, lines)
    assert grep(capfd, "-c", "text", *arguments) == (0 if expected else 1, [f"{line}:2" for line in lines])


@pytest.mark.usefixtures("store")
def test_only_logs_with_a_match_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    assert grep(capfd, "-l", "text orders", "data") == (0, ["data/orders-0", "data/orders-1"])
    status, (line,) = grep(capfd, "-l", "--format", "json", "orders-1", "data")
    assert (status, line) == (0, '{"log":"data/orders-1","topic":"orders","partition":1,"count":1}')
    assert grep(capfd, "-l", "other", "data") == (1, [])


@pytest.mark.parametrize("piece_bytes", [1, 400, 1 << 20])
def test_pieces_cover_every_record_once(orders: Path, piece_bytes: int) -> None:
    with Log("orders-0", read_only=True, index_interval_bytes=0) as log:
        log_pieces = pieces(log, piece_bytes=piece_bytes)
        found = [item for piece in log_pieces for item in search(log, Pattern(b""), piece)]
    assert [item.record.offset for item in found if isinstance(item, Match)] == list(range(40))


def test_each_record_of_a_broker_is_found_as_a_read_finds_it() -> None:
    for path in sorted((golden_root() / "clean").glob("*-0")):
        with Log(path, read_only=True) as log:
            records = list(log.read(on_corrupt="yield"))
            text = b"1"
            expected = [
                (one.offset, (text in (one.key or b"")) + 2 * (text in (one.value or b"")))
                for one in records
                if not isinstance(one, CorruptRange) and (text in (one.key or b"") or text in (one.value or b""))
            ]
            whole = Piece(log.start_offset, log.high_watermark)
            found = [
                item for item in search(log, Pattern(text, fields=("key", "value")), whole) if isinstance(item, Match)
            ]
        assert [(one.record.offset, ("key" in one.where) + 2 * ("value" in one.where)) for one in found] == expected


def test_a_search_has_a_bar_that_gives_way_if_it_takes_long(
    orders: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    totals: list[int] = []

    class Output(io.TextIOWrapper):
        def write(self, text: str, /) -> int:
            steps.append(0)
            return super().write(text)

    @contextmanager
    def noted(title: str, total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield steps.append

    monkeypatch.setattr(grep_module, "progress", noted)
    output = Output(sys.stdout.buffer, write_through=True)
    monkeypatch.setattr(sys, "stdout", output)
    assert main(["grep", "--jobs", "1", "u1", "orders-0"]) == 0
    assert (totals, sum(steps)) == ([], 0)
    monkeypatch.setattr(grep_module, "BYTES_MIN", 1)
    steps.clear()
    assert main(["grep", "--jobs", "1", "u1", "orders-0"]) == 0
    assert totals == [sum(path.stat().st_size for path in orders.glob("*.log"))]
    # Each output follows a write to the text stream, which hides the bar.
    assert 0.98 * totals[0] <= sum(steps) <= totals[0]
    assert steps.count(0) >= 2
    assert len(capfd.readouterr().out.splitlines()) == 2 * 11
    output.detach()


def test_a_terminal_gets_escapes(tmp_path: Path) -> None:
    with Log(tmp_path / "a-0") as log:
        log.append(b"x\x1b[31m\nred", key=b"\x1bx", headers=[("\x1bx", b"\r")])
    line = b"a-0:0:key=\\x1bx:header \\x1bx=\\r:x\\x1b[31m\\nred\n"
    assert in_terminal("grep", "x", "a-0", directory=tmp_path) == (0, line)
