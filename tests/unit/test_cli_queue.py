"""``kstore queue``: stats, peek, put, drain, retry-dead."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

import kstore
from kstore.cli.queue import command


def run(*arguments: str | Path, given: bytes = b"", status: int = 0) -> Result:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments], input=given)
    assert result.exit_code == status, result.output
    return result


def test_lines_are_put_and_drained(tmp_path: Path) -> None:
    run("put", tmp_path / "s", "jobs", given=b"a\nb\nlast")
    assert run("drain", "--count", "2", tmp_path / "s", "jobs").stdout_bytes == b"a\nb\n"
    assert run("drain", tmp_path / "s", "jobs").stdout_bytes == b"last\n"
    assert run("drain", tmp_path / "s", "jobs").stdout_bytes == b""


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


def test_a_delay_below_zero_is_bad_usage(tmp_path: Path) -> None:
    run("put", "--delay", "-1", tmp_path / "s", "jobs", status=2)
