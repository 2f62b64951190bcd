"""``kstore perf producer``: what it measures and prints."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli.main import main
from kstore.cli.perf.producer_run import (
    Latencies,
    PerfWindow,
    ProducerPerf,
    payloads_from,
    percentile,
    random_payloads,
    sampled_every,
)
from kstore.cli.producing import Pace
from kstore.cli.progress import LiveLine
from kstore.errors import ConfigError, DeliveryError, KstoreError
from kstore.producer._accumulate import Delivery
from kstore.producer.records import Callback, RecordMetadata, unknown_metadata
from tests.support.fakes.fake_clock import ManualClock

TOTAL = re.compile(
    r"(\d+) records sent, (\d+\.\d{6}) records/sec \((\d+\.\d\d) MB/sec\), (\d+\.\d\d) ms avg latency,"
    r" (\d+\.\d\d) ms max latency, (\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th\.\n"
)


class Timed:
    """A producer on a clock: a send takes 1 ms, a delivery 5 ms after that; records called ``bad`` fail."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.calls: list[str] = []
        self.values: list[bytes] = []
        self._unseen = 0
        self._delivered_count = 0

    def send(self, topic: str, value: bytes, *, on_delivery: Callback | None = None) -> Delivery:
        self.clock.advance(1)
        self.values.append(value)
        error = KstoreError("bad") if value == b"bad" else None
        self._delivered_count += error is None
        if on_delivery is None:
            self._unseen += error is not None
        else:
            self.clock.advance(5)
            metadata = unknown_metadata(topic) if error else RecordMetadata(topic, 0, len(self.values))
            on_delivery(metadata, error)
        return Delivery.failed(topic, 0, error or KstoreError("nobody looks at it"))

    def flush(self, timeout: float | None = None) -> None:
        self.calls.append("flush")
        self.clock.advance(10)
        if self._unseen:
            raise DeliveryError(self._unseen, KstoreError("bad"))

    def metrics(self) -> dict[str, float]:
        return {"records": self._delivered_count}

    def init_transactions(self) -> None:
        self.calls.append("init")

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def commit_transaction(self) -> None:
        self.calls.append("commit")


def perf(count: int, payloads: Sequence[bytes] = (b"x" * 100,), **options: Any) -> tuple[Timed, ProducerPerf]:
    clock = ManualClock()
    producer = Timed(clock)
    return producer, ProducerPerf(producer, "bench", payloads, count, clock=clock, **options)


# --- what is measured -------------------------------------------------------------------------------------------------


def test_rates_are_over_the_time_until_everything_is_delivered() -> None:
    _, run = perf(1000)
    report = run.run()
    assert (report.records, report.failed, report.bytes) == (1000, 0, 100_000)
    assert report.seconds == pytest.approx(6.01)
    assert report.records_per_second == pytest.approx(1000 / 6.01)
    assert report.mb_per_second == pytest.approx(100_000 / (1 << 20) / 6.01)


def test_latency_is_from_before_the_send_to_the_callback() -> None:
    _, run = perf(1000)
    latencies = run.run().latencies
    assert latencies.count == 1000
    assert [latencies.mean_ms, latencies.max_ms] == pytest.approx([6, 6])


def test_not_every_record_of_a_long_run_is_measured() -> None:
    producer, run = perf(10_000)
    report = run.run()
    assert report.sampled_every == 47
    assert report.latencies.count == -(-10_000 // 47)
    assert len(producer.values) == report.records == 10_000


@pytest.mark.parametrize(
    ("count", "per_second", "every"),
    [
        (1, None, 1),
        (1000, None, 1),
        (1001, None, 47),
        (100_000, None, 47),
        (100_001, None, 97),
        (10_000_000, 10_000, 10),
        (1_000_000, 10_000, 1),
        (1_000_000, 10_001, 97),
        (1_000_000_000, None, 1000),
    ],
)
def test_which_records_are_measured(count: int, per_second: float | None, every: int) -> None:
    assert sampled_every(count, per_second) == every


def test_records_that_fail_are_counted_measured_or_not() -> None:
    for count in (1000, 2000):
        _, run = perf(count, [b"good", b"bad"])
        report = run.run()
        assert (report.records, report.failed) == (count // 2, count // 2)
        assert report.bytes == round(count / 2 * 3.5)
        assert str(report.first_error) == "bad"


def test_percentiles_are_values_that_were_measured() -> None:
    ordered = [float(number) for number in range(1, 1001)]
    assert [percentile(ordered, percent) for percent in (0, 50, 95, 99, 99.9, 100)] == [1, 500, 950, 990, 999, 1000]
    assert [percentile([7.0], percent) for percent in (0, 50, 99.9, 100)] == [7.0] * 4
    latencies = Latencies.of([number / 1000 for number in reversed(ordered)])
    assert latencies.percentiles_ms == pytest.approx((500, 950, 990, 999))
    assert [latencies.count, latencies.mean_ms, latencies.max_ms] == pytest.approx([1000, 500.5, 1000])
    assert Latencies.of([]) == Latencies(0, 0.0, 0.0, (0.0, 0.0, 0.0, 0.0))


def test_windows_hold_what_came_since_the_last() -> None:
    windows: list[PerfWindow] = []
    _, run = perf(1000, on_window=windows.append, window_seconds=2)
    run.run()
    # 6 ms each: the first one after 2 s is the 335th.
    assert [window.records for window in windows] == [334, 334]
    assert [window.seconds for window in windows] == pytest.approx([2.004, 2.004])
    assert [window.latencies.count for window in windows] == [334, 334]
    assert windows[0].records_per_second == pytest.approx(334 / 2.004)


def test_a_limit_spaces_the_records() -> None:
    clock = ManualClock()
    producer = Timed(clock)
    pace = Pace(100, clock, lambda seconds: clock.advance(max(round(seconds * 1000), 1)))
    report = ProducerPerf(producer, "bench", [b"x"], 500, clock=clock, pace=pace).run()
    assert report.sampled_every == 1
    assert report.records_per_second == pytest.approx(100, rel=0.02)


def test_transactions_are_committed_by_age_and_at_the_end() -> None:
    producer, run = perf(1000, transaction_seconds=2.5)
    run.run()
    assert producer.calls == ["init", *["begin", "commit"] * 3, "flush"]


def test_an_interrupted_run_says_what_was_delivered() -> None:
    def interrupt(window: PerfWindow) -> None:
        raise KeyboardInterrupt

    producer, run = perf(1000, on_window=interrupt, window_seconds=1)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert producer.calls == ["flush"]
    assert run.report().records == len(producer.values) == 167


def test_a_run_of_nothing_is_refused() -> None:
    producer = Timed(ManualClock())
    for payloads, count in (([], 1), ([b"x"], 0)):
        with pytest.raises(ConfigError):
            ProducerPerf(producer, "bench", payloads, count)


def test_random_payloads_are_letters_the_same_each_time() -> None:
    payloads = random_payloads(100)
    assert payloads == random_payloads(100)
    assert len(payloads) == len(set(payloads)) == 1000
    assert {len(payload) for payload in payloads} == {100}
    assert set(b"".join(payloads)) == set(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert [len(payload) for payload in random_payloads(20 << 20)] == [20 << 20]


def test_payloads_from_a_file_are_all_used() -> None:
    assert sorted(payloads_from(b"a\nb\n\nc\n")) == [b"", b"a", b"b", b"c"]
    assert sorted(payloads_from(b"a\nb||c\n", b"||")) == [b"a\nb", b"c\n"]
    with pytest.raises(ConfigError):
        payloads_from(b"")


# --- the command ------------------------------------------------------------------------------------------------------


def run_perf(capsys: pytest.CaptureFixture[str], data: Path, *arguments: str) -> tuple[int, str, str]:
    status = main(("perf", "producer", str(data), "bench", "--create-topic", "--durability", "os", *arguments))
    return status, *capsys.readouterr()


def test_the_last_line_is_that_of_kafka_s_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_perf(capsys, tmp_path / "data", "--num-records", "2000", "--record-size", "50")
    assert (status, err) == (0, "")
    found = TOTAL.fullmatch(out)
    assert found is not None, out
    assert found[1] == "2000"
    with kstore.open(tmp_path / "data") as store:
        values = list(store.log("bench").read_values())
    assert values[:1000] == values[1000:] == random_payloads(50)


def test_json_says_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "payloads"
    file.write_bytes(b"one;three;")
    status, out, _ = run_perf(
        capsys,
        tmp_path / "data",
        *("--num-records", "500", "--payload-file", str(file), "--payload-delimiter", ";", "--format", "json"),
        *("--config", "compression.type=lz4", "--throughput", "100000"),
    )
    report = json.loads(out)
    assert (status, report["records"], report["failed"], report["bytes"]) == (0, 500, 0, 2000)
    assert report["first_error"] is None
    latency = report["latency_ms"]
    assert (latency["samples"], latency["sampled_every"]) == (500, 1)
    assert latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]


def test_transactions_are_committed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--num-records", "50", "--record-size", "10", "--transactional-id", "t")
    assert run_perf(capsys, tmp_path / "data", *options)[0] == 0
    with kstore.open(tmp_path / "data") as store:
        log = store.log("bench")
        assert len(list(log.read(isolation_level="read_committed"))) == 50


def test_failures_are_reported_and_fail_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--num-records", "20", "--record-size", "500", "--config", "max_request_size=100")
    status, out, err = run_perf(capsys, tmp_path / "data", *options)
    assert status == 1
    assert out.startswith("0 records sent, ")
    assert "kstore: 20 records failed; the first: record batch of 597 bytes" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--record-size", "1"), "--num-records"),
        (("--num-records", "1"), "give one of them"),
        (("--num-records", "1", "--record-size", "1", "--payload-file", __file__), "give one of them"),
        (("--num-records", "1", "--payload-file", __file__, "--payload-delimiter", ""), "is empty"),
        (("--num-records", "1", "--record-size", "1", "--throughput", "0"), "expected 0.001 or more, or -1"),
        (("--num-records", "1", "--record-size", "1", "--throughput", "nan"), "expected a number"),
        (("--num-records", "1", "--record-size", "1", "--config", "lingerms=1"), "did you mean 'linger_ms'"),
        (("--num-records", "1", "--record-size", "1", "--config", "acks"), "--config acks"),
        (("--num-records", "1", "--record-size", "1", "--transaction-duration-ms", "5"), "--transactional-id"),
    ],
)
def test_options_that_make_no_sense_are_bad_usage(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = run_perf(capsys, tmp_path / "data", *arguments)
    assert status == 2
    assert said in err
    assert not (tmp_path / "data").exists()


def test_an_empty_payload_file_is_bad_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "empty"
    file.touch()
    status, _, err = run_perf(capsys, tmp_path / "data", "--num-records", "1", "--payload-file", str(file))
    assert status == 2
    assert "no payload" in err


# --- the live line ----------------------------------------------------------------------------------------------------


def as_terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> None:
    for name in ("NO_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", "COLUMNS": "20", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)


def test_on_a_terminal_a_line_is_written_in_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    as_terminal(monkeypatch)
    line = LiveLine()
    assert line.is_in_place
    line.show("x" * 30)
    line.show("bad", "red")
    line.end()
    line.end()
    start = "\r\x1b[K"
    assert capsys.readouterr().err == f"{start}{'x' * 19}{start}\x1b[31mbad\x1b[0m{start}"


def test_no_color_takes_the_colour(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    as_terminal(monkeypatch, NO_COLOR="1")
    LiveLine().show("bad", "red")
    assert capsys.readouterr().err == "\r\x1b[Kbad"


@pytest.mark.parametrize("term", ["dumb", ""])
def test_elsewhere_each_line_has_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], term: str
) -> None:
    as_terminal(monkeypatch, TERM=term)
    line = LiveLine()
    assert not line.is_in_place
    line.show("one")
    line.show("two")
    line.end()
    assert capsys.readouterr().err == "one\ntwo\n"
