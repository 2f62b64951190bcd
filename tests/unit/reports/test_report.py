"""``kstore.report``: its numbers are those of stats and verify, it leaks nothing, and its page cannot be disturbed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli.main import main
from kstore.errors import ConfigError, MissingExtraError, NotALogError
from kstore.reports import drawing
from kstore.reports.document import Document
from kstore.reports.page import page
from kstore.upkeep.numbers import size_text, time_text
from kstore.upkeep.observed.timeline import BUCKETS_MAX, Bucket, Timeline, clusters_of, usual_times
from kstore.upkeep.stat_fields import stat_fields
from kstore.upkeep.stats import log_stats, total
from kstore.upkeep.verify import verify_log
from kstore.upkeep.verify.findings import consequence
from tests.support.harness.golden_data import copy_partition, golden_partitions, golden_root
from tools.pictures.reports import PICTURES, document, make_store

GUIDE = Path(__file__).parents[3] / "docs" / "report.md"
VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}
SECRET = "tell-this-to-no-one"
HOSTILE_NAMES = (
    "<script>alert(1)<",
    "\"onload='alert(1)'",
    "a\u202egpj.exe",
    "{{ 7 * 7 }}{% raw %}",
    "a\x1b[31mred\x07",
    "-->&lt;]]><!--",
    os.fsdecode(b"\xff\xfe-latin"),
    "long" * 60,
)


class Seen(HTMLParser):
    """Reads a page, and refuses one that is not well-formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = "".join(self.texts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, attrs)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(name)) is not None]


def seen(document: Document) -> Seen:
    pytest.importorskip("jinja2")
    return Seen(page(document))


def page_if_possible(document: Document) -> str:
    """The page, or "" without Jinja2: the page cannot show more than the document holds."""
    return page(document) if find_spec("jinja2") else ""


@cache
def report_on(tree: str, deep: bool = True) -> Document:
    return kstore.report(golden_root() / tree, deep=deep).document


def log_with(path: Path, value: bytes, **headers: bytes) -> Path:
    with kstore.Log(path, durability="os") as log:
        for number in range(4):
            log.append(value * 20, key=value + b"%d" % number, headers=list(headers.items()))
    return path


def spoil(log: Path, number: int, at: int, new: bytes) -> None:
    """Overwrites bytes of the batch ``number``."""
    path = next(log.glob("*.log"))
    data = bytearray(path.read_bytes())
    start = 0
    for _ in range(number):
        start += 12 + int.from_bytes(data[start + 8 : start + 12], "big")
    data[start + at : start + at + len(new)] = new
    path.write_bytes(data)


@pytest.mark.parametrize("deep", [False, True], ids=["headers", "deep"])
@pytest.mark.parametrize("name", golden_partitions("clean"))
@pytest.mark.sampled(4, keep=("empty-0",))
def test_every_log_alone_has_a_page(name: str, deep: bool) -> None:
    assert name in seen(kstore.report(golden_root() / "clean" / name, deep=deep).document).text


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_its_numbers_are_those_of_stats_and_verify() -> None:
    document = report_on("clean")
    logs = {log["name"]: log for log in document["partitions"]}
    assert sorted(logs) == golden_partitions("clean")
    all_stats = [log_stats(golden_root() / "clean" / name, deep=True) for name in sorted(logs)]
    for name, stats in zip(sorted(logs), all_stats, strict=True):
        log, fields = logs[name], stat_fields(stats)
        assert {key: log[key] for key in fields} == fields
        verified = verify_log(golden_root() / "clean" / name)
        assert log["verified"]["batches"] == verified.batch_count == log["batches"]
        assert log["verified"]["end"] == verified.end_offset
        assert log["segment_list"][0]["base"] == int(min((golden_root() / "clean" / name).glob("*.log")).stem)
        for key in ("bytes", "batches", "records"):
            assert sum(segment[key] for segment in log["segment_list"]) == log[key]
    fields = stat_fields(total(all_stats))
    assert {key: document["total"][key] for key in fields} == fields
    assert sum(topic["bytes"] for topic in document["topics"]) == document["total"]["bytes"]


def test_the_page_shows_the_document_s_numbers() -> None:
    document = report_on("clean")
    text = seen(document).text
    for log in document["partitions"]:
        assert log["name"] in text
        assert f"{log['records']:,}" in text
    for name in ("records", "decoded_records", "keyed_records", "tombstones", "commits", "aborts"):
        assert f"{document['total'][name]:,}" in text
    assert "no damage found" in text


@pytest.mark.parametrize("deep", [False, True], ids=["headers", "deep"])
@pytest.mark.sampled(1)
def test_what_a_broker_wrote_has_no_damage(deep: bool) -> None:
    assert report_on("clean", deep)["total"]["damage"] == 0
    assert seen(report_on("clean", deep)).text


def test_the_timeline_holds_every_batch() -> None:
    document = report_on("clean")
    for part in (document["total"], *document["partitions"]):
        every = [*(bucket[:4] for bucket in part["timeline"]["buckets"]), [-1, *part["timeline"]["untimed"]]]
        assert [sum(column) for column in list(zip(*every, strict=True))[2:]] == [part["records"], part["batches"]]
        assert len(every) <= BUCKETS_MAX + 1
    text = seen(document).text
    assert "2023-11-14" in text
    start, size, *_ = max(document["total"]["timeline"]["buckets"], key=lambda bucket: bucket[1])
    rate = size_text(size * 1000 // document["total"]["timeline"]["width"])
    assert f"{rate} a second, from {time_text(start)}" in text


def test_a_timeline_takes_fixed_memory_whatever_the_times_are() -> None:
    timeline, other = Timeline(), Timeline()
    for number in range(2000):
        timeline.add(1_700_000_000_000 + number * 60_000, 10, 2)
    for timestamp in (-1, 0, 2**63 - 1):
        other.add(timestamp, 10, 2)
    timeline.merge(other)
    assert timeline.untimed == Bucket(-1, 10, 2, 1)
    buckets = timeline.buckets()
    assert len(buckets) <= BUCKETS_MAX
    assert [sum(column) for column in zip(*buckets, strict=True)][1:4] == [20_020, 4_004, 2_002]
    assert drawing.timeline(timeline.fields(), titled=True).count("<rect") == len(buckets)


def test_a_picture_breaks_its_axis_at_a_long_gap() -> None:
    def bucket(start: int) -> Bucket:
        return Bucket(start * 1000, 1, 1, 1)

    today = [bucket(100_000 + at) for at in range(50)]
    assert clusters_of([bucket(7), *today], 1000) == [[bucket(7)], today]
    assert clusters_of(today, 1000) == [today]
    assert clusters_of([], 1000) == []
    assert drawing.timeline({"buckets": [], "width": 1000}, titled=True).startswith("<svg")


def test_producers_are_those_of_the_log() -> None:
    document = report_on("clean")
    [log] = [log for log in document["partitions"] if log["name"] == "txn-open-0"]
    with kstore.Log(golden_root() / "clean" / "txn-open-0", read_only=True) as opened:
        assert log["producers"] == [producer._asdict() for producer in opened.producers()]
    assert [producer for producer in log["producers"] if producer["transaction_start"] is not None]
    assert "open transaction from" in seen(document).text


@pytest.mark.parametrize("deep", [False, True])
def test_a_group_has_its_lag_where_every_record_was_deleted(tmp_path: Path, deep: bool) -> None:
    with kstore.open(tmp_path, durability="os") as store:
        store.create_topic("orders", partitions=1)
        log = store.log("orders")
        log.append_many([b"%d" % number for number in range(10)])
        store.consumer_offsets.commit("billing", {kstore.TopicPartition("orders", 0): 3})
        log.roll()
        log.delete_records(10)
        assert log.end_offset == 10
    document = kstore.report(tmp_path, deep=deep, with_payload=True).document
    (row,) = document["groups"]
    assert (row["committed"], row["end"], row["lag"]) == (3, 10, 7)
    (found,) = (log for log in document["partitions"] if log["topic"] == "orders")
    assert (found["records"], found["end"], "start" in found) == (0, 10, False)


@pytest.mark.long
def test_groups_have_the_offsets_that_they_committed() -> None:
    document = report_on("clean", False)
    with kstore.open(golden_root() / "clean", read_only=True) as store:
        committed = store.consumer_offsets.committed("billing")
        names = store.consumer_offsets.groups()
        ends = {owner: store.log(*owner).end_offset for owner in committed}
    open_one = kstore.report(golden_root() / "clean", with_payload=True).document["groups"]
    mine = {(row["topic"], row["partition"]): row for row in open_one if row["group"] == "billing"}
    assert {owner: row["committed"] for owner, row in mine.items()} == {
        tuple(owner): one.offset for owner, one in committed.items()
    }
    for owner, one in committed.items():
        assert mine[owner]["lag"] == ends[owner] - one.offset
    assert len({row["group"] for row in document["groups"]}) == len(names)
    assert not {row["group"] for row in document["groups"]} & set(names)
    assert "Consumer groups" in seen(document).text


def test_queues_have_the_items_that_they_hold(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os") as store:
        queue = store.queue("jobs")
        for number in range(3):
            queue.put(b"%d" % number)
        with queue.get():
            pass
        queue.put(b"later", delay=3600)
    document = kstore.report(tmp_path / "data", deep=True).document
    [row] = document["queues"]
    assert (row["queue"], row["pending"], row["delayed"], row["dead_letters"]) == ("jobs", 3, 1, 0)
    assert "oldest item" in seen(document).text
    assert kstore.report(tmp_path / "data" / "jobs-0", deep=True).document["queues"] == []


# --- findings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", golden_partitions("damaged"))
@pytest.mark.sampled(6)
def test_each_damage_is_named_at_its_byte(name: str) -> None:
    directory = golden_root() / "damaged" / name
    document = kstore.report(directory, deep=True).document
    [log] = document["partitions"]
    expected = verify_log(directory)
    assert log["damage"] == len(expected.damages)
    shown = [{name: found[name] for name in found if name not in ("view", "consequence")} for found in log["findings"]]
    assert shown == [finding.fields() for finding in expected.findings]
    assert [found.get("consequence", "") for found in log["findings"]] == [
        consequence(finding, is_dense=expected.is_dense) for finding in expected.findings
    ]
    text = seen(document).text
    for found, finding in zip(log["findings"], expected.findings, strict=True):
        assert finding.reason in text
        assert finding.repair in text
        if finding.severity == "note":
            continue
        if finding.position >= 0:
            assert f"position {finding.position}" in text
            assert found["view"]["position"] == finding.position
        if "view" in found:
            view, data = found["view"], Path(finding.path).read_bytes()
            held = bytes.fromhex(view["bytes"])
            assert data[view["position"] :].startswith(held)
            assert view["position"] + len(held) + view["hidden"] == len(data)
    assert log["damage"] == 0 or "recovery" in log


WRONG_FIELDS = {
    "codec-unknown-0": {"attributes", "crc"},
    "count-huge-0": {"record_count", "crc"},
    "flipped-crc-0": {"crc"},
    "flipped-record-0": {"crc"},
    "gzip-body-0": {"crc"},
    "length-huge-0": {"batch_length"},
    "length-negative-0": {"batch_length"},
    "length-small-0": {"batch_length"},
    "length-zero-0": {"batch_length"},
    "magic-unknown-0": {"magic"},
    "offset-backwards-0": {"base_offset"},
    "torn-tail-0": {"batch_length"},
}


@pytest.mark.parametrize("name", WRONG_FIELDS)
def test_the_wrong_field_of_a_header_is_marked(name: str) -> None:
    [found, *_] = kstore.report(golden_root() / "damaged" / name, deep=True).document["partitions"][0]["findings"]
    fields = found["view"]["fields"]
    assert {field["name"] for field in fields if field["wrong"]} == WRONG_FIELDS[name]
    assert len(fields) == 13
    assert [field["position"] for field in fields][:3] == [found["position"] + at for at in (0, 8, 12)]


def test_headers_alone_show_damage_that_headers_show(tmp_path: Path) -> None:
    copy_partition("damaged", "length-zero-0", tmp_path)
    copy_partition("clean", "plain-0", tmp_path)
    made = kstore.report(tmp_path)
    assert not made.is_sound
    # The batch, and the records after it that the snapshot of the broker's close proves.
    assert [log["damage"] for log in made.document["partitions"]] == [2, 0]
    assert "verified" not in made.document["partitions"][0]


@pytest.mark.parametrize("deep", [False, True], ids=["headers", "deep"])
def test_a_log_that_cannot_be_read_is_one_finding(tmp_path: Path, deep: bool) -> None:
    copy_partition("clean", "plain-0", tmp_path)
    (tmp_path / "odd-0" / f"{0:020d}.log").mkdir(parents=True)
    odd, plain = kstore.report(tmp_path, deep=deep).document["partitions"]
    assert [found["reason"].partition(":")[0] for found in odd["findings"]] == ["cannot be read"]
    assert (odd["damage"], plain["damage"]) == (1, 0)


def test_a_damaged_checkpoint_of_a_store_is_a_finding(tmp_path: Path) -> None:
    copy_partition("clean", "plain-0", tmp_path)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nnot an entry\n")
    document = kstore.report(tmp_path).document
    assert [found["kind"] for found in document["findings"]] == ["checkpoint"]
    assert document["total"]["damage"] == 1
    hashed = kstore.report(tmp_path, hash_names=True).json()
    assert "not an entry" not in hashed


# --- what it does not reveal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "new"), [(70, b"X"), (8, b"\x7f"), (0, SECRET.encode() * 4)], ids=["record", "length", "header"]
)
def test_no_key_value_or_header_is_told_unless_it_is_asked_for(tmp_path: Path, at: int, new: bytes) -> None:
    log = log_with(tmp_path / "orders-0", SECRET.encode(), **{SECRET: SECRET.encode()})
    spoil(log, 2, at, new)
    made = kstore.report(log, deep=True)
    assert made.document["total"]["damage"] == 1
    [found] = [found for found in made.document["partitions"][0]["findings"] if found["severity"] == "damage"]
    assert SECRET.encode()[:6] not in bytes.fromhex(found["view"]["bytes"])
    assert SECRET[:6] not in made.json()
    assert SECRET[:6] not in page_if_possible(made.document)
    open_one = kstore.report(log, deep=True, with_payload=True).document["partitions"][0]["findings"]
    assert SECRET.encode()[:6] in b"".join(bytes.fromhex(each["view"]["bytes"]) for each in open_one if "view" in each)


@pytest.mark.parametrize("deep", [False, True], ids=["headers", "deep"])
def test_hashed_names_are_told_nowhere(tmp_path: Path, deep: bool) -> None:
    root = tmp_path / "customer-acme"
    for name in ("payroll-0", "payroll-1"):
        spoil(log_with(root / name, b"v"), 2, 8, b"\x7f")
    (root / "payroll-0" / "notes about acme").write_bytes(b"")
    made = kstore.report(root, deep=deep, hash_names=True)
    text = made.json() + page_if_possible(made.document)
    assert "payroll" not in text
    assert "acme" not in text
    assert str(tmp_path) not in text
    first, second = made.document["partitions"]
    assert first["topic"] == second["topic"]
    assert first["name"] == f"{first['topic']}-0"
    assert first["damage"] == 1
    assert kstore.report(root, hash_names=True).document["topics"] != made.document["topics"]


def test_the_name_of_a_queue_is_hashed_in_that_of_its_journal_too(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", background=False) as store:
        store.queue("payroll").put(b"v")
        store.queue("payroll.dead").put(b"v")
    made = kstore.report(tmp_path / "data", deep=True, hash_names=True)
    assert "payroll" not in made.json() + page_if_possible(made.document)
    topics = {log["topic"] for log in made.document["partitions"]}
    assert {f"__queue_{topic}" for topic in topics if topic.startswith("topic-")} <= topics


# --- hostile names, and the page --------------------------------------------------------------------------------------


def test_hostile_names_do_not_disturb_the_page(tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE_NAMES):
        log = log_with(tmp_path / name.replace("/", "|"), b"<script>alert(2)</script>")
        if number % 2:
            spoil(log, 2, 8, b"\x7f")
        (log / f"{name.replace('/', '|')[:200]}.txt").write_bytes(b"")
    made = kstore.report(tmp_path, deep=True, with_payload=True)
    assert made.json().isascii()
    shown = seen(made.document)
    assert {tag for tag, _ in shown.elements}.isdisjoint({"script", "img", "iframe", "object", "link", "base", "form"})
    assert not [name for _, attributes in shown.elements for name in attributes if name.startswith("on")]
    assert "49" not in [word.strip() for word in shown.text.split("7 * 7")]
    for hidden in ("\u202e", "\x1b", "\x07"):
        assert hidden not in page(made.document)
    assert "a\\u202egpj.exe" in shown.text
    assert "<script>alert(1)<" in shown.text
    page(made.document).encode("utf-8")


@pytest.mark.parametrize("tree", ["clean", "damaged"])
@pytest.mark.sampled(1)
def test_the_page_asks_for_nothing_and_its_links_lead_somewhere(tree: str) -> None:
    shown = seen(report_on(tree))
    ids = shown.values("id")
    assert len(ids) == len(set(ids))
    links = shown.values("href")
    assert links
    assert {link.removeprefix("#") for link in links} <= set(ids)
    assert shown.values("src") == []
    assert "url(" not in page(report_on(tree))
    policy = [attributes["content"] for tag, attributes in shown.elements if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def many_partitions(count: int) -> Document:
    """A report on ``count`` partitions of 100 segments each, half of them damaged, with many times and producers."""
    document: Document = json.loads(json.dumps(report_on("damaged")))
    damaged = next(log for log in document["partitions"] if log["name"] == "flipped-record-0")
    [segment] = damaged["segment_list"]
    [producer, *_] = [log["producers"][0] for log in document["partitions"] if log["producers"]]
    buckets = [[1_795_233_838_000 + 64_000 * at, 10_000 + at, 12, 3, 99_000 + at] for at in range(BUCKETS_MAX)]
    opened = {"producer_id": 2**40, "first": 10**9, "began": buckets[0][0]}
    damaged |= {
        "producers": [producer] * 50,
        "timeline": {"width": 64_000, "buckets": buckets, "untimed": [0, 0, 0]},
        "transactions": damaged["transactions"]
        | {"committed": 10**6, "open": 99, "open_list": [opened] * 99, "width": 64_000}
        | {"times": [[start, 1000, 7] for start, *_ in buckets]},
        "compaction": {"clean_bytes": 10**9, "dirty_bytes": 10**9, "dirty_ratio": 0.5, "would_free": 10**8},
    }
    logs: list[dict[str, Any]] = []
    for number in range(count):
        segments = [{**segment, "base": 1000 * at, "start": 1000 * at, "end": 1000 * at + 900} for at in range(100)]
        findings = damaged["findings"] * 10 if number % 2 else []
        name = f"a-topic-of-a-usual-length-{number}"
        logs.append({**damaged, "name": name, "segment_list": segments, "findings": findings, "damage": len(findings)})
    topics = [
        {**topic, "topic": f"a-topic-of-a-usual-length-{number}"}
        for number in range(count // 3)
        for topic in document["topics"][:1]
    ]
    return document | {"partitions": logs, "topics": topics}


@pytest.mark.parametrize("count", [60, *(pytest.param(many, marks=pytest.mark.long) for many in (1000, 5000))])
def test_the_page_stays_small(count: int) -> None:
    pytest.importorskip("jinja2")
    text = page(many_partitions(count))
    assert len(text.encode()) < 5_000_000
    shown = text.partition('<section id="partitions">')[2].partition("</section>")[0]
    assert shown.count('<details class="row') == min(count, 1000)
    assert (f"<b>{count - 1000:,} more partitions</b>" in shown) == (count > 1000)
    Seen(text)


# --- what matters comes first -----------------------------------------------------------------------------------------


def test_a_page_about_damage_begins_with_the_damage() -> None:
    shown = seen(report_on("damaged"))
    ids = shown.values("id")
    assert ids[:2] == ["content", "findings"]
    assert ids[-1] == "notes"
    opened = [tag for tag, attributes in shown.elements if tag == "details" and "open" in attributes]
    assert opened == []
    assert "findings" not in seen(report_on("clean")).values("id")


def test_a_row_of_the_damage_says_what_cannot_be_read_where_and_what_to_do(tmp_path: Path) -> None:
    log = log_with(tmp_path / "orders-0", b"v")
    spoil(log, 2, 70, b"X")
    text = page_if_possible(kstore.report(log, deep=True).document)
    row = text.partition('<details class="finding">')[2].partition("</summary>")[0]
    assert "<b>1 record, offset 2, cannot be read</b>" in row
    assert re.search(r"<span>orders-0/0{20}\.log at \d+</span>", row)
    assert "<span>Restore the log from a copy, or let reads continue without these records</span>" in row
    assert "<b>1 of 1 partition is damaged</b>: up to 1 record cannot be read." in text


def test_each_order_of_the_partitions_has_every_place_once(tmp_path: Path) -> None:
    for number, count in enumerate((3, 9, 5)):
        with kstore.Log(tmp_path / f"t-{number}", durability="os") as log:
            log.append_many([b"v"] * count, timestamps=[1000 * (10 - count)] * count)
    spoil(tmp_path / "t-2", 0, 70, b"X")
    rows = re.findall(
        r'class="row([^"]*)" style="([^"]*)"[^>]*><summary><b>([^<]*)',
        page_if_possible(kstore.report(tmp_path, deep=True).document),
    )
    assert [name for _, _, name in rows] == ["t-2", "t-1", "t-0"]
    places = {name: dict(each.split(":") for each in style.split(";")) for _, style, name in rows}
    names = {order: sorted(places, key=lambda name: int(places[name][order])) for order in places["t-0"]}
    assert names == {
        "--d": ["t-2", "t-1", "t-0"],
        "--s": ["t-1", "t-2", "t-0"],
        "--t": ["t-0", "t-1", "t-2"],
        "--n": ["t-0", "t-1", "t-2"],
    }
    assert [css for css, _, _ in rows] == [" in-d in-s in-t in-n damaged", *[" in-d in-s in-t in-n"] * 2]


def test_one_old_record_does_not_make_the_usual_times_long(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os") as log:
        log.append(b"old", timestamp=0)
        for number in range(100):
            log.append(b"new", timestamp=1_700_000_000_000 + 60_000 * number)
    document = kstore.report(tmp_path).document
    shown = seen(document).text
    assert "90 min" in shown
    assert "19,675 days" not in shown
    assert "all: 1970-01-01 00:00:00 to 2023-11-14 23:52:20 UTC" in shown
    assert usual_times({"buckets": [], "width": 1000}) is None
    assert usual_times({"buckets": [[7000, 1, 1, 1, 0]], "width": 1000}) == (7000, 8000)


# --- what it does -----------------------------------------------------------------------------------------------------


def test_it_changes_nothing(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    for name in ("length-zero-0", "index-missing-0"):
        copy_partition("damaged", name, tmp_path / "data")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*")}
    made = kstore.report(tmp_path / "data", deep=True)
    for inside in ("data/page.html", "data/length-zero-0/page.html"):
        with pytest.raises(ConfigError, match=r"page\.html is next to or in the log"):
            made.save(tmp_path / inside)
    made.save(tmp_path / "page.html")
    (tmp_path / "page.html").unlink()
    assert {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*")} | {
        tmp_path / "data": before[tmp_path / "data"]
    } == before


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kstore.Log(tmp_path / "data" / "a-0", durability="os") as log:
        log.append(b"v")
    monkeypatch.setattr(kstore.Report, "html", lambda report: "a page")  # less than a pipe holds
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        kstore.report(tmp_path / "data").save(pipe)
        assert pipe.is_fifo()
        assert os.read(reader, 100) == b"a page"
    finally:
        os.close(reader)


def test_what_is_no_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotALogError):
        kstore.report(tmp_path)


def test_without_jinja2_there_is_json_and_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    made = kstore.report(golden_root() / "clean" / "plain-0")
    assert json.loads(made.json()) == made.document
    with pytest.raises(MissingExtraError, match=r"pip install 'kstore\[report\]'"):
        made.html()


@pytest.mark.long
def test_jinja2_is_loaded_for_the_page_alone() -> None:
    path = golden_root() / "clean" / "plain-0"
    program = f"import kstore, sys\nkstore.report({str(path)!r}).json()\nassert 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    log = golden_root() / "clean" / "plain-0"
    assert main(["report", str(log), "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == ""
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "plain-0" in Seen(text).text
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]
    assert main(["report", str(golden_root() / "damaged" / "length-zero-0")]) == 1
    assert "a batch of 12 bytes" in Seen(capsys.readouterr().out).text
    assert main(["report", str(log), "-o", str(tmp_path / "none" / "page.html")]) == 1


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--deep", "--format", "json", str(golden_root() / "clean" / "plain-0")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["total"]["partitions"] == 1
    assert document["deep"] is True
    assert main(["report", "--format", "json", "-o", "x", str(golden_root() / "clean")]) == 2


# --- docs/report.md ---------------------------------------------------------------------------------------------------


def test_the_guide_s_example_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jinja2")
    [code] = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, str(GUIDE), "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"# -> (.*)", code)
    Seen((tmp_path / "page.html").read_text(encoding="utf-8"))


@pytest.mark.long
def test_the_store_of_the_pictures_shows_every_section(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    make_store(tmp_path / "data")
    page_of_it = seen(document(tmp_path / "data"))
    assert {"findings", "transactions", "savings", "keys", "records", "partitions"} <= set(page_of_it.values("id"))
    text = GUIDE.read_text(encoding="utf-8") + (GUIDE.parents[1] / "README.md").read_text(encoding="utf-8")
    for picture in PICTURES:
        assert f"images/{picture.name}.png" in text
        assert (GUIDE.parent / "images" / f"{picture.name}.png").read_bytes().startswith(b"\x89PNG")
