"""The benchmarks: they measure what they say, and their page says what was missed."""

from __future__ import annotations

import os
import sys
import time
from itertools import chain
from pathlib import Path

import pytest

import kstore
from tools.bench import producer_lines
from tools.bench.comparison import Workload, compare
from tools.bench.logs import many_segments, values
from tools.bench.machine import file_system, machine_words
from tools.bench.measure import Line, Run, in_turn, percentile, rate_line, rows_as_table
from tools.bench.memory_lines import Shape, fill_compressed, grown_most
from tools.bench.peers import PEERS, Peer
from tools.bench.producer_lines import CASES, Case, send_rate
from tools.bench.producer_memory import ABOVE_BYTES, BUFFER_BYTES, blocked_growth
from tools.bench.producer_memory import Shape as ProducerShape
from tools.bench.producer_peer_lines import Workload as ProducerWorkload
from tools.bench.producer_peer_lines import rates_of
from tools.bench.producer_peers import PEERS as PRODUCER_PEERS
from tools.bench.producer_peers import Peer as ProducerPeer
from tools.bench.producer_peers import Unavailable
from tools.bench.producers_child import Span
from tools.bench.producers_table import producers, span_rate
from tools.bench.report import TABLES, report
from tools.bench.slow_fs import SlowSyncFs

MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
28 27 0:24 / /fast rw,relatime shared:1 - tmpfs tmpfs rw
29 27 0:25 / /fast/disk rw,relatime - xfs /dev/vdb rw
"""


def test_the_work_s_median_stands_beside_the_limit_s_upper_quartile() -> None:
    rates, limits = iter([0.0, 3.0, 1.0, 2.0]), iter([0.0, 10.0, 40.0, 30.0])
    assert in_turn(lambda: next(rates), lambda: next(limits), rounds=3) == (2.0, 40.0)


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile([3, 1, 2], 0.99) == 3
    assert percentile([3], 0.0) == 3


def test_a_rate_is_held_to_a_share_of_the_limit_or_to_a_rate() -> None:
    assert rate_line("a", 5e6, 10e6, "limit", ratio_min=0.5).reached is True
    assert rate_line("a", 4.9e6, 10e6, "limit", ratio_min=0.5).reached is False
    assert rate_line("a", 9e6, 10e6, "limit", rate_min=9e6).reached is True
    assert rate_line("a", 9e6, 10e6, "limit").reached is None


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert rows_as_table([("a", "b"), ("long", "")]) == "| a    | b |\n|------|---|\n| long |   |"


def test_the_page_names_each_number_that_was_not_reached() -> None:
    lines = [
        Line("append", "1/s", "limit 2/s", "0.5", "0.9", False),
        Line("read", "2/s", "limit 2/s", "1.0", "0.9", True),
    ]
    page = report([("processor", "one")], {"Append": lines[:1], "Read": lines[1:], "Queue": []}, {})
    assert "- `  0.5` append: **1/s**, beside limit 2/s; **asked: 0.9, not reached**" in page
    assert "- `  1.0` read: **2/s**, beside limit 2/s; asked: 0.9\n" in page
    assert "Of 2 numbers that are asked, this run reached 1." in page
    assert "### Queue" not in page


def test_the_page_is_at_most_120_columns_wide() -> None:
    line = Line("a name " * 12, "1,000,000 records/s", "what stands beside it, " * 12, "0.5", "0.9 of it", False)
    page = report([("processor", "one")], {"Append": [line]}, dict.fromkeys(TABLES, ""))
    assert max(map(len, page.splitlines())) <= 120


def test_the_machine_s_words_name_no_host_and_no_path(tmp_path: Path) -> None:
    words = dict(machine_words(tmp_path))
    assert {"processor", "kernel", "file system", "Python"} <= set(words)
    told = " ".join(words.values())
    assert str(tmp_path) not in told
    assert os.uname().nodename not in told.split()


def test_the_file_system_is_that_of_the_innermost_mount() -> None:
    assert file_system(Path("/fast/disk/logs"), MOUNTS) == "xfs"
    assert file_system(Path("/fast/logs"), MOUNTS) == "tmpfs"
    assert file_system(Path("/faster"), MOUNTS) == "ext4"


def test_a_slowed_sync_takes_longer_and_keeps_its_bytes(tmp_path: Path) -> None:
    started = time.monotonic()
    with kstore.Log(tmp_path / "log", fs=SlowSyncFs(0.02)) as log:
        log.append(b"a")
        assert time.monotonic() - started >= 0.02
    with kstore.Log(tmp_path / "log", read_only=True) as log:
        assert list(log.read_values()) == [b"a"]


def test_the_log_of_many_segments_has_them(tmp_path: Path) -> None:
    many_segments(tmp_path / "log", 5)
    assert len(list((tmp_path / "log").glob("*.log"))) == 5


PACKAGES = {"lmdb": ["lmdb"], "RocksDB": ["rocksdict"], "LevelDB": ["plyvel"]}


@pytest.mark.parametrize("synced", [True, False], ids=["synced", "not synced"])
@pytest.mark.parametrize("peer", PEERS, ids=[peer.name for peer in PEERS])
def test_a_peer_gives_back_what_was_appended(tmp_path: Path, peer: Peer, synced: bool) -> None:
    for package in PACKAGES.get(peer.name, ()):
        pytest.importorskip(package)
    batch = values(10)
    store = peer.open(tmp_path / "peer", synced)
    store.append_many(batch)
    store.append(batch[3])
    store.append_many(batch)
    assert list(store.values()) == [*batch, batch[3], *batch]
    assert [store.value_at(number) for number in (0, 9, 10, 20)] == [batch[0], batch[9], batch[3], batch[9]]
    store.close()


def test_the_comparison_has_a_row_for_each_peer(tmp_path: Path) -> None:
    for package in chain.from_iterable(PACKAGES.values()):
        pytest.importorskip(package)
    table = compare(Run(tmp_path, 1), Workload("few", 1_000, 2_000, 1_000)).splitlines()
    assert [row.split("|")[1].strip() for row in table[2:]] == [peer.name for peer in PEERS]


@pytest.mark.long
def test_the_memory_of_a_reader_is_that_of_what_it_reads(tmp_path: Path) -> None:
    small, large = Shape(1 << 20, 100, 2), Shape(16 << 20, 100, 2)
    grown = []
    for shape in (small, large):
        path = tmp_path / str(shape.batch_bytes)
        grown.append(grown_most(path, fill_compressed(path, shape)))
    assert grown[1] - grown[0] > large.batch_bytes - 2 * small.batch_bytes


# librdkafka's mock broker has no disk: it is not compared with synced writes.
PEERS_TRIED = [
    pytest.param(peer, synced, id=f"{peer.name}-{'synced' if synced else 'not synced'}")
    for peer in PRODUCER_PEERS
    for synced in (True, False)
    if not (synced and peer.name.startswith("confluent-kafka"))
]


@pytest.mark.parametrize(("peer", "synced"), PEERS_TRIED)
def test_a_peer_of_the_producer_has_what_was_sent(tmp_path: Path, peer: ProducerPeer, synced: bool) -> None:
    try:
        target = peer.open(tmp_path / "peer", synced)
    except Unavailable as reason:
        pytest.skip(str(reason))
    batch = values(10)
    target.send(batch)
    target.commit()
    target.send_many(batch)
    target.commit()
    assert target.count() == 20
    target.close()


def test_a_peer_that_is_not_there_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setitem(sys.modules, "persistqueue", None)
    rates = rates_of(Run(tmp_path, 1), ProducerWorkload("few", False, 1, True))
    assert set(rates.peers) == {"sqlite3"}
    assert rates.missing["lmdb"] == "not installed"
    assert set(rates.missing) == {peer.name for peer in PRODUCER_PEERS} - {"kstore", "sqlite3"}


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_rate_of_the_producer_counts_what_was_delivered(
    tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_lines, "RECORDS", 8_000)
    monkeypatch.setattr(producer_lines, "WARM_COUNT", 1_000)
    assert send_rate(Run(tmp_path, 1), case) > 0


@pytest.mark.long
def test_producers_and_readers_stand_side_by_side(tmp_path: Path) -> None:
    rows = producers(Run(tmp_path, 1), 2_000, (2,)).splitlines()
    assert [row.split("|")[1].strip() for row in rows[2:]] == [
        "2 producers and 2 readers, threads",
        "2 producers and 2 readers, processes",
    ]


def test_a_rate_of_several_lasts_from_the_first_start_to_the_last_end() -> None:
    assert span_rate([Span(1.0, 3.0), Span(2.0, 5.0)], 8) == 2.0


@pytest.mark.long
def test_a_producer_whose_sender_is_held_up_keeps_what_its_memory_takes(tmp_path: Path) -> None:
    assert blocked_growth(Run(tmp_path, 1), ProducerShape(500_000, "none", "")) <= BUFFER_BYTES + ABOVE_BYTES
