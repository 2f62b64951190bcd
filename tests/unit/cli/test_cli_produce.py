"""``kstore produce``: lines to a topic, its messages, and its exit status."""

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
from typing import Any

import pytest

import kstore
from kstore.cli.interrupts import held_interrupts
from kstore.cli.main import main
from kstore.cli.produce import LineSender, _Run
from kstore.cli.producing import Pace
from kstore.cli.record_json import JsonRecord
from kstore.cli.record_lines import line_parser
from kstore.errors import ConfigError, KstoreError
from kstore.producer.mock import MockProducer
from kstore.record._codec import Record
from tests.support.fakes.fake_clock import ManualClock
from tests.support.lives.producer_helpers import unthreaded

ROOT = Path(__file__).resolve().parents[3]
T = 1_700_000_000_000

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``kstore produce data orders`` beside a store with that topic: exit status, standard output and error."""
    monkeypatch.chdir(tmp_path)
    with kstore.open("data") as store:
        store.create_topic("orders", 3)

    def run_one(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(("produce", "data", "orders", *arguments))
        return status, *capfd.readouterr()

    return run_one


def records(partition: int | None = None, topic: str = "orders", **options: Any) -> list[Record]:
    """The contents of a topic, in the order of partitions."""
    with kstore.open("data", durability="os") as store:  # not read_only: a partition may have no segment yet
        numbers = store.partitions(topic) if partition is None else [partition]
        return [
            item for number in numbers for item in store.log(topic, number).read(**options) if isinstance(item, Record)
        ]


def values(**options: Any) -> list[bytes | None]:
    return sorted((record.value for record in records(**options)), key=lambda value: value or b"")


# --- lines ------------------------------------------------------------------------------------------------------------


def test_each_line_is_a_record_of_the_topic(run: Run) -> None:
    status, out, err = run(stdin=b"one\n\n\xff\0\r\nlast")
    assert (status, out) == (0, "")
    assert err.startswith("produced 4 records to orders in ")
    assert values() == [b"", b"last", b"one", b"\xff\0\r"]


def test_lines_come_from_a_file_too(run: Run) -> None:
    Path("lines.txt").write_bytes(b"one\ntwo\n")
    assert run("lines.txt", "--quiet") == (0, "", "")
    assert values() == [b"one", b"two"]


def test_a_key_decides_the_partition(run: Run) -> None:
    lines = b"".join(b"key-%d::%d\n" % (number % 20, number) for number in range(400))
    assert run("--key-separator", "::", stdin=lines)[0] == 0
    found = [{record.key for record in records(partition)} for partition in range(3)]
    assert sum(map(len, found)) == len(set().union(*found)) == 20
    for partition in range(3):
        numbers = [int(record.value or b"") for record in records(partition)]
        assert numbers == sorted(numbers)


def test_json_lines_have_all_that_a_record_has(run: Run) -> None:
    lines = [
        {"key": "k", "value": "größe", "headers": {"h": "1"}, "timestamp": T, "partition": 2},
        {"key_base64": "/w==", "value": None, "headers": [{"key": "h", "value_base64": "/w=="}], "partition": 0},
        {"value": "x", "partition": 2, "offset": 7},
    ]
    assert run("--json", stdin="\n".join(map(json.dumps, lines)).encode())[0] == 0
    first, third = records(2)
    assert (first.key, first.value, first.headers) == (b"k", "größe".encode(), (("h", b"1"),))
    assert (first.timestamp, third.value) == (T, b"x")
    (second,) = records(0)
    assert (second.key, second.value, second.headers) == (b"\xff", None, (("h", b"\xff"),))


def test_what_read_prints_can_be_produced(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run("--key-separator", ":", stdin=b"a:1\nb:\xff\n")
    before = [(record.key, record.value, record.timestamp) for record in records()]
    printed = b""
    for number in range(3):
        main(("read", "--format", "json", f"data/orders-{number}"))
        printed += capfd.readouterr().out.encode()
    assert run("--json", stdin=printed)[0] == 0
    assert sorted((record.key, record.value, record.timestamp) for record in records()) == sorted(before * 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "no JSON"),
        ('{"kye": "k"}', "unknown field 'kye', expected headers, key, key_base64, partition"),
        ('{"value": 5}', "value is a JSON int, expected a string or null"),
        ('{"partition": 3}', "partition 3, expected 0 to 2"),
        ('{"partition": -1}', "partition -1, expected 0 to 2"),
        ('{"partition": "1"}', "partition '1', expected a whole number"),
        ('{"timestamp": -1}', "timestamp -1, expected at least 0"),
        ('{"timestamp": 1.5}', "timestamp 1.5, expected ms as a whole number"),
    ],
)
def test_a_broken_line_ends_the_run_once_those_before_it_are_delivered(run: Run, line: str, said: str) -> None:
    status, _, err = run("--json", stdin=f'{{"value":"a"}}\n{{"value":"b"}}\n{line}\n{{"value":"c"}}\n'.encode())
    assert status == 1
    assert err.startswith(f"kstore: line 3: {said}")
    assert "\nproduced 2 records to orders in " in err
    assert values() == [b"a", b"b"]


def test_a_record_that_fails_is_reported_by_its_line_and_the_others_continue(run: Run) -> None:
    lines = b"one\n" + b"x" * 3000 + b"\nthree\n" + b"y" * 4000 + b"\n"
    status, _, err = run("--config", "max.request.size=2KiB", stdin=lines)
    assert status == 1
    second, fourth, summary = err.splitlines()
    assert second.startswith("kstore: line 2: ")
    assert "max_request_size" in second
    assert fourth.startswith("kstore: line 4: ")
    assert summary.startswith("produced 2 records to orders in ")
    assert summary.endswith(", 2 failed")
    assert values() == [b"one", b"three"]


def test_many_failures_are_reported_once(run: Run) -> None:
    status, _, err = run("--config", "max_request_size=100", stdin=(b"y" * 200 + b"\n") * 50)
    *told, more, summary = err.splitlines()
    assert (status, len(told)) == (1, 10)
    assert more == "kstore: further failed lines are only counted"
    assert summary.endswith(", 50 failed")


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_missing_is_made_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines").write_bytes(b"a\n")
    assert main(("produce", "data", "orders", "lines")) == 1
    assert not Path("data").exists()
    made = ("produce", "data", "orders", "lines", "--create-topic", "--partitions", "2")
    assert main(made) == 0
    assert main(made) == 0  # it is there now
    assert [record.value for record in records()] == [b"a", b"a"]
    capsys.readouterr()
    assert main(("produce", "data", "other", "lines")) == 1
    assert capsys.readouterr().err == "kstore: data: there is no topic other; --create-topic creates it\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--json", "--key-separator", ":"), "in JSON the key is a field"),
        (("--key-separator", ""), "is empty"),
        (("--partitions", "2"), "needs --create-topic"),
        (("--rate", "0"), "range"),
        (("--rate", "1e-9"), "range"),
        (("--rate", "inf"), "expected a number"),
        (("--rate", "nan"), "expected a number"),
        (("--config", "linger.mss=5"), "did you mean 'linger_ms'"),
        (("--config", "linger_ms"), "NAME=VALUE"),
        (("--config", "acks=2"), "expected 'all'"),
        (("--config", "value_serializer=json"), "records are sent as plain bytes"),
        (("--transactional-id", "t", "--config", "acks=1"), "transactional_id"),
    ],
)
def test_options_that_make_no_sense_are_bad_usage(run: Run, arguments: tuple[str, ...], said: str) -> None:
    status, _, err = run(*arguments, stdin=b"a\n")
    assert status == 2
    assert said in err
    assert values() == []


def test_settings_reach_the_producer(run: Run) -> None:
    settings = ("compression.type=zstd", "batch_size=100KiB", "linger.ms=1s", "client_id=7", "acks=all")
    options = [part for setting in settings for part in ("--config", setting)]
    assert run(*options, stdin=b"x\n" * 3000)[0] == 0
    with kstore.open("data") as store:
        batches = [batch for number in range(3) for batch in store.log("orders", number).fetch(0, 1 << 20).batches()]
    assert {batch.codec for batch in batches} == {"zstd"}
    assert sum(batch.record_count for batch in batches) == 3000


# --- a transaction ----------------------------------------------------------------------------------------------------


def test_a_transaction_holds_all_lines(run: Run) -> None:
    status, _, err = run("--transactional-id", "7", stdin=b"a\nb\nc\n")
    assert status == 0
    assert err.startswith("produced 3 records to orders in one transaction in ")
    assert values(isolation_level="read_committed") == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    ("stdin", "said"),
    [
        (b"k:a\nb\nk:c\n", "kstore: line 2: no key separator ':'\n"),
        (b"k:a\nk:" + b"x" * 3000 + b"\nk:c\n", "kstore: line 2: record batch of "),
    ],
)
def test_a_transaction_with_a_line_that_failed_is_aborted(run: Run, stdin: bytes, said: str) -> None:
    status, _, err = run(
        "--transactional-id", "t", "--key-separator", ":", "--config", "max_request_size=2000", stdin=stdin
    )
    assert status == 1
    assert err.startswith(said)
    _, last = err.splitlines()
    assert last == "kstore: the transaction was aborted: committed readers see none of the lines"
    assert values(isolation_level="read_committed") == []
    assert run("--transactional-id", "t", stdin=b"again\n")[0] == 0
    assert values(isolation_level="read_committed") == [b"again"]


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "expected"), [((), [b"1", b"2"]), (("--transactional-id", "t"), [])])
@pytest.mark.sampled(1)
def test_ctrl_c_delivers_what_was_sent_or_aborts(
    run: Run, tmp_path: Path, options: tuple[str, ...], expected: list[bytes]
) -> None:
    command = (sys.executable, "-m", "kstore.cli.main", "produce", "data", "orders", *options)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Lines that are in a log were read from the pipe; after that the command waits for more.
    with subprocess.Popen(
        (*command, "--config", "linger_ms=0"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        guard = threading.Timer(60, process.kill)
        guard.start()
        process.stdin.write(b"1\n2\n")
        process.stdin.flush()
        while process.poll() is None and not any(log.stat().st_size for log in tmp_path.glob("data/orders-*/*.log")):
            pass
        process.send_signal(signal.SIGINT)
        err = process.stderr.read().decode()
        process.wait()
        guard.cancel()
        assert process.returncode == 130
    if options:
        assert err == "kstore: interrupted: the transaction was aborted: committed readers see none of the lines\n"
    else:
        first, second = err.splitlines()
        assert first == "kstore: interrupted after line 2; what was sent is being delivered"
        assert second.startswith("produced 2 records to orders in ")
    assert values(isolation_level="read_committed") == expected


def test_an_interrupt_comes_where_it_is_allowed() -> None:
    with held_interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
        assert interrupts.came
        with pytest.raises(KeyboardInterrupt), interrupts.allowed():
            pytest.fail("it came before")
    with held_interrupts() as interrupts, pytest.raises(KeyboardInterrupt), interrupts.allowed():
        signal.raise_signal(signal.SIGINT)


def test_a_second_interrupt_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    with held_interrupts():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_that_are_ignored_stay_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_interrupts() as interrupts, interrupts.allowed():
            signal.raise_signal(signal.SIGINT)
        assert not interrupts.came
    finally:
        signal.signal(signal.SIGINT, before)


# --- its parts --------------------------------------------------------------------------------------------------------


def text_records(*texts: bytes, partition: int | None = None) -> list[JsonRecord]:
    return [JsonRecord(None, text, (), None, partition) for text in texts]


def test_failures_are_reported_by_line_as_soon_as_they_are_known() -> None:
    producer = MockProducer(auto_complete=False, partitions=2)
    told: list[tuple[int, str]] = []
    sender = LineSender(producer, "orders", lambda line, error: told.append((line, str(error))))
    sender.send([*text_records(b"a", b"b"), *text_records(b"c", partition=1)], 11)
    producer.complete_next()
    producer.error_next(KstoreError("no b"))
    assert told == []
    sender.send(text_records(b"d"), 14)
    assert told == [(12, "no b")]
    producer.error_next(KstoreError("no c"))
    producer.complete_next()
    sender.settle()
    assert told == [(12, "no b"), (13, "no c")]
    assert (sender.sent_count, sender.failed_count) == (4, 2)
    assert [record.partition for record in producer.history[2:3]] == [1]
    producer.close()


def test_a_pace_spreads_records_over_time() -> None:
    clock = ManualClock()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.advance(round(seconds * 1000))

    pace = Pace(100, clock, sleep)
    for _ in range(3):
        pace.wait_for(50)
    assert slept == pytest.approx([0.5, 0.5])
    clock.advance(10_000)
    slept.clear()
    pace.wait_for(10)  # makes up for at most a tenth of a second
    pace.wait_for(10)
    assert slept == []
    pace.wait_for(10)
    assert slept == pytest.approx([0.1])
    Pace(None, clock, sleep).wait_for(10**9)
    with pytest.raises(ConfigError):
        Pace(0)


def test_a_second_ctrl_c_does_not_wait_for_deliveries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with unthreaded(tmp_path / "data", partitions=1) as one:
        run = _Run(one.producer, "orders", 1, line_parser(False, None), Pace(None), False)

        class Interrupted(io.BytesIO):
            def read1(self, size: int | None = -1) -> bytes:
                if not (data := super().read1(size)):
                    signal.raise_signal(signal.SIGINT)
                return data

        def settle() -> None:
            signal.raise_signal(signal.SIGINT)

        run._sender.settle = settle  # type: ignore[method-assign]  # as it would in the wait for a delivery
        assert run.produce(Interrupted(b"a\nb\n")) == 130
        assert one.producer.closed
    assert capsys.readouterr().err.splitlines() == [
        "kstore: interrupted after line 2; what was sent is being delivered",
        "kstore: interrupted again: 2 of 2 records are not known to be delivered",
    ]


def test_a_name_that_no_topic_can_have_creates_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\n")
    assert main(["produce", str(tmp_path / "s"), "bad/name", str(lines), "--create-topic"]) == 1
    assert "topic name 'bad/name'" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
