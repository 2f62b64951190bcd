"""``kstore queue``: stats, peek, put, drain, retry-dead."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import kstore
from kstore.cli.command import BROKEN_PIPE, INTERRUPTED
from kstore.cli.main import main
from kstore.cli.queue import command
from kstore.cli.value_types import timestamp_text


def run(*arguments: str | Path, given: bytes = b"", status: int = 0) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], input=given)
    assert result.exit_code == status, result.output
    return result


def test_lines_are_put_and_drained(tmp_path: Path) -> None:
    run("put", tmp_path / "s", "jobs", given=b"a\nb\nlast")
    assert run("drain", "--count", "2", tmp_path / "s", "jobs").stdout_bytes == b"a\nb\n"
    assert run("drain", tmp_path / "s", "jobs").stdout_bytes == b"last\n"
    assert run("drain", tmp_path / "s", "jobs").stdout_bytes == b""


def test_dead_letters_of_a_topic_that_was_no_queue_are_retried_with_a_line_that_names_the_option(
    tmp_path: Path,
) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.create_topic("orders", retention_ms=-1)
        store.log("orders").append(b"x")
    (said, done) = run("retry-dead", tmp_path / "s", "orders").stderr.splitlines()
    assert said.startswith("warning: topic orders was no queue")
    assert done == "put 0 dead letters of orders again"
    assert "warning" not in run("retry-dead", "--adopt", tmp_path / "s", "orders").stderr


@pytest.mark.parametrize("given", [(), ("--adopt",)])
def test_a_topic_that_was_no_queue_is_drained_with_a_line_that_names_the_option(
    tmp_path: Path, given: tuple[str, ...]
) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.create_topic("orders", retention_ms=-1)
        store.log("orders").append(b"x")
    found = run("drain", *given, tmp_path / "s", "orders")
    assert found.stdout_bytes == b"x\n"
    assert ("give --adopt" in found.stderr) is (not given)
    assert "give --adopt" not in run("drain", tmp_path / "s", "orders").stderr


def test_stats_and_peek_look_beside_a_live_writer(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        queue = store.queue("jobs")
        queue.put_many([b"done", b"again", b"new"])
        queue.put(b"late", delay=3600)
        queue.get().ack()
        queue.get().nack()
        found = json.loads(run("stats", "--format", "json", tmp_path / "s", "jobs").stdout)
        assert {name: found[name] for name in ("pending", "delayed", "retried", "dead_letters")} == {
            "pending": 3,
            "delayed": 1,
            "retried": 1,
            "dead_letters": 0,
        }
        lines = run("peek", "--format", "json", tmp_path / "s", "jobs").stdout.splitlines()
        shown = [json.loads(line) for line in lines]
        assert [(item["value"], item["delivery_count"]) for item in shown] == [("again", 1), ("new", 0), ("late", 0)]
        assert run("peek", "--count", "1", tmp_path / "s", "jobs").stdout_bytes == b"again\n"


def test_leases_of_processes_that_share_a_queue_are_shown(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os", shared=True) as store:
        queue = store.queue("jobs")
        queue.put_many([b"a", b"b"])
        queue.get()
        run("put", "--shared", tmp_path / "s", "jobs", given=b"c\n")
        assert "leased        1\n" in run("stats", tmp_path / "s", "jobs").stdout
        assert run("drain", "--shared", tmp_path / "s", "jobs").stdout_bytes == b"b\nc\n"


def test_dead_letters_are_put_again(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        queue = store.queue("jobs", max_deliveries=1)
        queue.put(b"a")
        queue.get().nack()
    assert "dead_letters  1\n" in run("stats", tmp_path / "s", "jobs").stdout
    run("retry-dead", tmp_path / "s", "jobs")
    assert run("drain", tmp_path / "s", "jobs").stdout_bytes == b"a\n"


def test_a_queue_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    kstore.open(tmp_path / "s").close()
    for name in ("stats", "peek", "drain", "retry-dead"):
        result = CliRunner().invoke(command, [name, str(tmp_path / "s"), "jobs"])
        assert isinstance(result.exception, kstore.TopicNotFoundError)


@pytest.mark.parametrize("delay", ["-1", "nan", "inf", "31622401", "a minute"])
def test_a_delay_below_zero_or_beyond_a_year_is_bad_usage(delay: str, tmp_path: Path) -> None:
    run("put", "--delay", delay, tmp_path / "s", "jobs", status=2)
    assert not (tmp_path / "s").exists()


def test_peek_shows_bytes_that_are_no_text_and_headers(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.queue("jobs").put(b"\xff\x00", key=b"\\xff", headers=(("h", b"1"), ("h", b"\xfe")))
    shown = json.loads(run("peek", "--format", "json", tmp_path / "s", "jobs").stdout)
    assert (shown["key"], shown["value_base64"], "value" in shown) == ("\\xff", "/wA=", False)
    assert shown["headers"] == [{"key": "h", "value": "1"}, {"key": "h", "value_base64": "/g=="}]


def test_the_oldest_item_has_a_time_that_can_be_read(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        queue = store.queue("jobs")
        queue.put(b"a")
        put_ms = queue.peek()[0].timestamp
        assert f"oldest        {timestamp_text(put_ms)}\n" in run("stats", tmp_path / "s", "jobs").stdout
        queue.get().ack()
        assert "oldest        -\n" in run("stats", tmp_path / "s", "jobs").stdout


def test_a_line_is_put_when_it_comes_and_stays_after_an_interrupt(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kstore.cli.main", "queue", "put", str(tmp_path / "s"), "jobs"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as putting:
        assert putting.stdin is not None
        assert putting.stderr is not None
        putting.stdin.write(b"a\n")
        putting.stdin.flush()
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and not (tmp_path / "s" / "jobs-0" / "kstore.state").exists():
            time.sleep(0.01)
        with kstore.open(tmp_path / "s", read_only=True) as store:
            assert next(iter(store.log("jobs").read_values(follow=True, timeout=300))) == b"a"
        putting.send_signal(signal.SIGINT)
        assert putting.wait(300) == INTERRUPTED
        assert b"put 1 item into jobs" in putting.stderr.read()
    assert run("drain", tmp_path / "s", "jobs").stdout_bytes == b"a\n"


def test_a_reader_that_goes_away_leaves_what_it_has_not_read(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "s", durability="os") as store:
        store.queue("jobs").put_many([b"%d" % number for number in range(50_000)])
    command = [sys.executable, "-m", "kstore.cli.main", "queue", "drain", str(tmp_path / "s"), "jobs"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as draining:
        assert draining.stdout is not None
        assert [draining.stdout.readline() for _ in range(3)] == [b"0\n", b"1\n", b"2\n"]
        draining.stdout.close()
        assert draining.wait(300) == BROKEN_PIPE
        assert draining.stderr is not None
        assert draining.stderr.read() == b""
    left = run("drain", tmp_path / "s", "jobs").stdout_bytes.splitlines(keepends=True)
    assert left[-1] == b"49999\n"
    drained = 50_000 - len(left)
    assert left[0] == b"%d\n" % drained


def test_a_name_that_no_queue_can_have_creates_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "put", str(tmp_path / "s"), "bad/name"]) == 1
    assert "topic name 'bad/name'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
