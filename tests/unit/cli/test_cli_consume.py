"""``kstore consume``, ``kstore groups`` and ``kstore perf consumer``."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import kstore
from kstore import TopicPartition
from kstore.cli.command import FAILED, OK, USAGE
from kstore.cli.groups import reset_offsets
from kstore.cli.main import main
from kstore.cli.record_format import FormatError, RecordFormat
from kstore.cli.value_types import OffsetType, Place
from kstore.record._codec import Record
from kstore.store import coordinator_of

Run = Callable[..., tuple[int, str, str]]

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
HOUR = 1_700_000_000_000


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return status, out.decode("utf-8", "backslashreplace"), err.decode()

    return call


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with kstore.open(tmp_path / "data", durability="os") as store:
        store.create_topic("orders", partitions=2)
        for number in range(5):
            for partition in range(2):
                store.log("orders", partition).append(
                    b"v%d" % number, key=b"k%d" % partition, timestamp=HOUR + number * 1000, headers=[("h", b"1")]
                )
        coordinator_of(store).commit_offsets("billing", {T0: 3, T1: 5})
    return tmp_path / "data"


# --- consume ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-p", 0], "01234"),
        (["-p", 0, "-o", "beginning"], "01234"),
        (["-p", 0, "-o", "end"], ""),
        (["-p", 0, "-o", "3"], "34"),
        (["-p", 0, "-o", "-2"], "34"),
        (["-p", 0, "-o", "-99"], "01234"),
        (["-p", 0, "-o", "99"], ""),
        (["-p", 0, "-o", f"s@{HOUR + 1500}"], "234"),
        (["-p", 0, "-o", f"s@{HOUR + 10**9}"], ""),
        (["-p", 0, "-o", f"e@{HOUR + 2000}"], "01"),
        (["-p", 0, "-o", f"s@{HOUR + 1000}", "-o", f"e@{HOUR + 3000}"], "12"),
        (["-p", 0, "-c", 2], "01"),
        (["-p", 0, "-c", 0], ""),
        (["-o", "-1"], "44"),
        ([], "0123401234"),
    ],
)
def test_what_is_printed_begins_and_ends_as_kcat_says(
    run: Run, data: Path, arguments: list[object], expected: str
) -> None:
    status, out, err = run("consume", "-e", *arguments, data, "orders")
    assert (status, err) == (OK, "")
    assert out == "".join(f"v{number}\n" for number in expected)


def test_a_record_is_printed_as_the_format_says(run: Run, data: Path) -> None:
    form = r"%t-%p %o %T %k/%K %s/%S [%h] 100%%\t\x21\n"
    _, out, _ = run("consume", "-e", "-c", 1, "-f", form, data, "orders")
    assert out == f"orders-0 0 {HOUR} k0/2 v0/2 [h=1] 100%\t!\n"
    _, out, _ = run("consume", "-e", "-c", 2, "-K", ":", "-D", ";", data, "orders")
    assert out == "k0:v0;k0:v1;"


def test_json_has_kcats_names_and_base64_for_what_is_no_text(run: Run, data: Path) -> None:
    with kstore.open(data) as store:
        store.log("orders", 1).append(b"\xff", key=None, timestamp=HOUR)
    _, out, _ = run("consume", "-J", "-e", "-p", 1, "-o", 4, data, "orders")
    first, second = map(json.loads, out.splitlines())
    assert first == {
        "topic": "orders",
        "partition": 1,
        "offset": 4,
        "tstype": "create",
        "ts": HOUR + 4000,
        "headers": [{"key": "h", "value": "1"}],
        "key": "k1",
        "payload": "v4",
    }
    assert (second["key"], second["payload_base64"], second["headers"]) == (None, "/w==", [])


def test_null_is_nothing_or_NULL() -> None:
    record = Record(7, 5)
    assert RecordFormat("%s|%S|%k|%K")(T0, record) == b"|-1||-1"
    assert RecordFormat("%s|%k", null=b"NULL")(T0, record) == b"NULL|NULL"
    assert RecordFormat("%R")(T0, Record(7, 5, value=b"abc")) == b"\x00\x00\x00\x03"
    for wrong in ("%y", "%", r"\q", "\\", r"\x2"):
        with pytest.raises(FormatError, match="is not a placeholder"):
            RecordFormat(wrong)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place("beginning")),
        ("latest", Place("end")),
        ("stored", Place("stored")),
        ("12", Place("offset", 12)),
        ("-12", Place("back", 12)),
        ("s@12345678901", Place("since", 12345678901)),
        ("e@1970-01-01T00:00Z", Place("until", 0)),
    ],
)
def test_places_are_those_of_kcat(text: str, place: Place) -> None:
    assert OffsetType().convert(text, None, None) == place


@pytest.mark.parametrize(
    "arguments",
    [
        ["-o", "middle"],
        ["-o", "1", "-o", "2"],
        ["-o", "e@now", "-o", "e@now"],
        ["-o", "stored"],
        ["-G", "g", "-p", "0"],
        ["-G", "g", "-o", "5"],
        ["-J", "-f", "%s"],
        ["-f", "%y"],
    ],
)
def test_options_that_contradict_each_other_are_refused(run: Run, data: Path, arguments: list[str]) -> None:
    status, out, _ = run("consume", *arguments, data, "orders")
    assert (status, out) == (USAGE, "")


@pytest.mark.parametrize("arguments", [["gone"], ["-p", 7, "orders"]])
def test_a_missing_topic_is_reported(run: Run, data: Path, arguments: list[object]) -> None:
    status, _, err = run("consume", "-e", data, *arguments)
    assert status == FAILED
    assert err.startswith("kstore: ")


def test_it_follows_until_there_are_as_many_as_wanted(run: Run, data: Path) -> None:
    with kstore.open(data, durability="os") as store:
        appender = threading.Timer(0.2, lambda: store.log("orders", 1).append_many([b"new", b"newer"]))
        appender.start()
        _, out, _ = run("consume", "-o", "end", "-c", 2, data, "orders")
        appender.join()
    assert out == "new\nnewer\n"


@pytest.mark.skipif(sys.platform != "linux", reason="writers share a store on Linux only")
def test_a_member_of_a_group_goes_on_and_commits(run: Run, data: Path) -> None:
    _, out, _ = run("consume", "-G", "billing", "-e", "-c", 1, data, "orders")
    assert out == "v3\n"
    _, out, _ = run("consume", "-G", "billing", "-e", data, "orders")
    assert out == "v4\n"
    _, out, _ = run("consume", "-G", "billing", "-e", data, "orders")
    assert out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="writers share a store on Linux only")
def test_a_member_opens_the_store_as_the_others_do(run: Run, data: Path) -> None:
    with kstore.open(data, shared=True, durability="os") as store:
        store.log("orders").append(b"x")
        status, _, err = run("consume", "-G", "billing", "-e", data, "orders")
        assert (status, "durability is 'sync', expected 'os'" in err) == (FAILED, True)
        status, out, _ = run("consume", "-G", "billing", "-e", "--durability", "os", data, "orders")
        assert (status, out) == (OK, "v3\nv4\nx\n")


# --- groups -----------------------------------------------------------------------------------------------------------


def test_groups_are_listed_and_described(run: Run, data: Path) -> None:
    assert run("groups", data)[:2] == (OK, "billing\n")
    assert run("groups", data, "--format", "json")[1] == '{"group":"billing"}\n'
    status, out, _ = run("groups", data, "--describe", "billing")
    assert status == OK
    assert [line.split() for line in out.splitlines()] == [
        ["group", "topic", "partition", "committed", "end", "lag", "member"],
        ["billing", "orders", "0", "3", "5", "2", "-"],
        ["billing", "orders", "1", "5", "5", "0", "-"],
    ]
    _, out, _ = run("groups", data, "--describe", "billing", "--format", "json")
    assert json.loads(out.splitlines()[0]) == {
        "group": "billing",
        "topic": "orders",
        "partition": 0,
        "committed": 3,
        "start_offset": 0,
        "high_watermark": 5,
        "end_offset": 5,
        "lag": 2,
        "metadata": "",
        "member": "",
    }
    assert "has committed nothing" in run("groups", data, "--describe", "other")[2]


def test_of_a_topic_that_is_not_here_only_what_was_committed_is_known(run: Run, data: Path) -> None:
    with kstore.open(data) as store:
        coordinator_of(store).commit_offsets("other", {TopicPartition("elsewhere", 2): 7})
    _, out, _ = run("groups", data, "--describe", "other")
    assert out.splitlines()[1].split() == ["other", "elsewhere", "2", "7", "-", "-", "-"]


@pytest.mark.skipif(sys.platform != "linux", reason="writers share a store on Linux only")
def test_members_in_any_process_are_named_and_keep_offsets_from_being_reset(run: Run, data: Path) -> None:
    with (
        kstore.open(data, shared=True) as store,
        store.consumer("orders", group="billing", client_id="me") as one,
        store.consumer("orders", group="billing", client_id="me") as other,
    ):
        for consumer in (one, other, one, other):
            consumer.poll()
        _, out, _ = run("groups", data, "--describe", "billing")
        # Members whose clients share a name can also be told apart.
        named = [one.group_metadata().member_id, other.group_metadata().member_id]
        assert sorted(line.split()[-1] for line in out.splitlines()[1:]) == sorted(named)
        status, _, err = run("groups", data, "--reset-offsets", "billing", "--to-latest", "--execute")
        assert status == FAILED
        assert "locked" in err
        with pytest.raises(kstore.ConsumerStateError, match="has members: me-"):
            reset_offsets(store, "billing", [])
    _, out, _ = run("groups", data, "--describe", "billing")
    assert [line.split()[-1] for line in out.splitlines()[1:]] == ["-", "-"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--to-earliest"], {0: 0, 1: 0}),
        (["--to-latest"], {0: 5, 1: 5}),
        (["--to-offset", 4], {0: 4, 1: 4}),
        (["--to-offset", 99], {0: 5, 1: 5}),
        (["--to-datetime", HOUR + 1000], {0: 1, 1: 1}),
        (["--shift-by", -2], {0: 1, 1: 3}),
        (["--shift-by", 1], {0: 4, 1: 5}),
        (["--to-earliest", "--topic", "orders:1"], {0: 3, 1: 0}),
        (["--to-earliest", "--topic", "orders"], {0: 0, 1: 0}),
    ],
)
def test_offsets_are_reset_only_when_that_is_said(
    run: Run, data: Path, arguments: list[object], expected: dict[int, int]
) -> None:
    def committed() -> dict[int, int]:
        with kstore.open(data, read_only=True) as store:
            return {owner.partition: one.offset for owner, one in store.consumer_offsets.committed("billing").items()}

    status, shown, err = run("groups", data, "--reset-offsets", "billing", *arguments)
    assert status == OK
    assert "nothing was changed" in err
    assert committed() == {0: 3, 1: 5}
    assert run("groups", data, "--reset-offsets", "billing", *arguments, "--execute")[:2] == (OK, shown)
    assert committed() == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["--reset-offsets", "g"],
        ["--reset-offsets", "g", "--to-earliest", "--to-latest"],
        ["--reset-offsets", "g", "--to-earliest", "--execute", "--dry-run"],
        ["--reset-offsets", "g", "--to-earliest", "--topic", "orders:x"],
        ["--reset-offsets", "g", "--to-earliest", "--describe", "g"],
        ["--to-earliest"],
        ["--execute"],
    ],
)
def test_a_reset_that_is_not_clear_is_refused(run: Run, data: Path, arguments: list[str]) -> None:
    assert run("groups", data, *arguments)[0] == USAGE


# --- perf -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["records", "values", "arrow"])
def test_perf_prints_the_lines_of_kafkas_tool(run: Run, data: Path, kind: str) -> None:
    if kind == "arrow":
        pytest.importorskip("pyarrow")
    status, out, _ = run("perf", "consumer", data, "orders", "--messages", 10, "--as", kind)
    assert status == OK
    names, values = (line.split(", ") for line in out.splitlines())
    assert names[0] == "start.time"
    assert len(names) == len(values) == 10
    assert values[4] == "10"


def test_perf_says_where_there_was_less(run: Run, data: Path) -> None:
    status, out, err = run("perf", "consumer", data, "orders", "--messages", 11, "--format", "json")
    assert (status, json.loads(out)["records"]) == (FAILED, 10)
    assert "there were 10 records, expected 11" in err
    assert json.loads(out)["bytes"] == 20
    _, out, _ = run("perf", "consumer", data, "orders", "--messages", 3, "--hide-header")
    assert out.split(", ")[4] == "3"
