"""``kstore ui``: every page of every kind of log, its JSON, its links; damage at its byte."""

from __future__ import annotations

import html
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import classify
from kstore.rules.notebook import visible
from kstore.transactions.group_records import OffsetAndMetadata
from kstore.ui.segments import OVERLAP_BYTES, segment_of
from kstore.upkeep.verify import verify_log
from kstore.upkeep.verify.partition import verify_head
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.ui_parts import Site, site
from tests.unit.reports.test_report import Seen

TIME = 1_700_000_000_000


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A store with several topics, and an empty log."""
    root = tmp_path_factory.mktemp("own")
    with kstore.open(root) as store:
        store.create_topic("orders", partitions=2)
        with store.producer(transactional_id="t", compression_type="lz4") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(250):
                producer.send(
                    "orders", b'{"number": %d}' % number, key=b"k%d" % number, partition=0, headers=[("h", b"v")]
                )
            producer.commit_transaction()
        jobs = store.queue("jobs")
        jobs.put(b"job")
    with kstore.Log(root / "rolled-0", segment_bytes=2000, index_interval_bytes=0) as log:
        for number in range(40):
            log.append(b"x" * 200, timestamp=TIME + number)
    kstore.Log(root / "empty-0").close()
    with site([root]) as made:
        yield made


@pytest.fixture(scope="module")
def damaged() -> Iterator[Site]:
    with site([golden_root() / "damaged"]) as made:
        yield made


def links(text: str) -> list[str]:
    return [html.unescape(found) for found in re.findall(r'(?:href|src|action)="([^"]*)"', text)]


def crawled(pages: Site, first: str, count: int) -> dict[str, str]:
    """Pages by address, from ``first`` on, the nearest ones first; every link must lead somewhere."""
    found: dict[str, str] = {}
    wanted = [first]
    for url in wanted:
        if len(found) == count:
            break
        answer = pages.get(url)
        if answer.status == 303:
            wanted.append(answer.headers["location"])
            continue
        assert answer.status == 200, url
        if "html" not in answer.headers["content-type"]:
            continue
        found[url] = answer.text
        for link in links(answer.text):
            if link.startswith("#") or "/check" in link:
                continue  # of the page itself, or sent with POST
            assert link.startswith("/"), link
            assert not link.startswith("//"), link
            if link not in wanted and not link.endswith(("/jump", "/explain")):
                wanted.append(link)
    return found


def assert_harmless(text: str) -> Seen:
    """Well-formed, and without anything that the Content-Security-Policy would block."""
    seen = Seen(text)
    for tag, attributes in seen.elements:
        assert "style" not in attributes, attributes
        assert not [name for name in attributes if name.startswith("on")], attributes
        assert tag not in ("style", "iframe", "object", "base"), tag
        assert tag != "script" or attributes == {"src": "/static/ui.js", "defer": None}
    return seen


# --- pages ------------------------------------------------------------------------------------------------------------


def test_the_pages_lead_from_all_logs_down_to_a_record(own: Site) -> None:
    url = "/"
    for pattern in (r"/logs/0/orders", r"\1/0", r"\1/0", r"\1/0", r"\1/0"):
        pattern = pattern.replace(r"\1", re.escape(url))
        found = [link for link in links(own.page(url)) if re.fullmatch(pattern, link)]
        assert found, (url, pattern)
        url = found[0]
    assert url == "/logs/0/orders/0/0/0/0"
    text = Seen(own.page(url)).text
    assert '"number": 0' in text
    assert "k0" in text


@pytest.mark.parametrize("topic", ["orders", "rolled", "empty", "jobs", "__transaction_state"])
def test_every_page_of_a_log_is_whole_and_its_links_lead_somewhere(own: Site, topic: str) -> None:
    found = crawled(own, f"/logs/0/{topic}", 15)
    for text in found.values():
        assert_harmless(text)
    assert len(found) >= (3 if topic == "empty" else 8)


@pytest.mark.parametrize("name", golden_partitions("clean"))
@pytest.mark.sampled(1, keep=("txn-0", "compacted-0"))
def test_every_page_of_a_broker_s_log_is_whole(name: str) -> None:
    with site([golden_root() / "clean" / name]) as pages:
        for text in crawled(pages, "/", 8).values():
            assert_harmless(text)


@pytest.mark.parametrize("tree", ["old", "crashed"])
def test_a_directory_of_a_broker_s_is_shown_whatever_its_state(tree: str) -> None:
    with site([golden_root() / tree]) as pages:
        assert_harmless(pages.page("/"))
        document = pages.json("/overview.json")
        assert document["pending"] == 0
        for topic in document["topics"]:
            assert_harmless(pages.page(topic["url"]))


def test_every_page_has_the_same_as_json(own: Site) -> None:
    base = "/logs/0/orders"
    for url, fields in {
        base: {"topic", "partitions"},
        f"{base}/0": {"log", "segments", "counted"},
        f"{base}/0/0": {"batches", "damages", "index"},
        f"{base}/0/0/0": {"batch", "records", "view"},
        f"{base}/0/0/0/0": {"key", "value", "headers"},
        f"{base}/0/live": {"end", "records"},
        f"{base}/0/explain?to=7": {"steps", "found", "url"},
    }.items():
        path, _, query = url.partition("?")
        assert fields <= own.json(f"{path}.json?{query}").keys()
        assert f"{path}.json" in own.page(url)
    assert {"topics", "total", "pending"} <= own.json("/overview.json").keys()


def test_the_numbers_are_those_of_the_report(own: Site) -> None:
    (root,) = own.survey.paths
    document = kstore.report(root).document
    seen = own.json("/overview.json")["total"]
    assert seen == {name: document["total"][name] for name in seen}
    for log in document["partitions"]:
        counted = own.json(f"/logs/0/{log['topic']}/{log['partition']}.json")["counted"]
        # The report also compresses a sample of the log, and knows its topic's settings.
        every = counted.keys() - {"at", "findings"}
        assert {"records", "batch_bytes", "segment_list", "timeline"} <= every
        assert log.keys() - every <= {"findings", "savings", "compaction"}
        assert {name: counted[name] for name in every} == {name: log[name] for name in every}


def test_a_group_has_its_lag_where_every_record_was_deleted(tmp_path: Path) -> None:
    with kstore.open(tmp_path, durability="os") as store:
        store.create_topic("orders", partitions=1)
        log = store.log("orders")
        log.append_many([b"%d" % number for number in range(10)])
        store.consumer_offsets.commit("billing", {kstore.TopicPartition("orders", 0): 3})
        log.roll()
        log.delete_records(10)
    with site([tmp_path]) as pages:
        (row,) = pages.json("/overview.json")["groups"]
    assert (row["committed"], row["end"], row["lag"]) == (3, 10, 7)


def test_a_group_has_its_lag_on_the_first_page_and_a_page_of_its_own(tmp_path: Path) -> None:
    names = ("billing", "<b>q\u202e/../", "a.json")
    with kstore.open(tmp_path, durability="os") as store:
        for topic in ("orders", "clicks"):
            store.create_topic(topic, partitions=2)
            for partition in range(2):
                store.log(topic, partition).append_many([b"%d" % number for number in range(10)])
        for name in names:
            store.consumer_offsets.commit(name, {kstore.TopicPartition("orders", 1): 3})
        some = {kstore.TopicPartition("clicks", 0): 9, kstore.TopicPartition("gone", 0): 5}
        store.consumer_offsets.commit("billing", some)
    with site([tmp_path]) as pages:
        assert_harmless(pages.page("/"))
        listed = {row["group"]: row for row in pages.json("/overview.json")["group_list"]}
        assert set(listed) == set(names)
        billing = listed["billing"]
        assert [billing[name] for name in ("lag", "lag_max", "topics", "partitions", "unknown")] == [8, 7, 3, 3, 1]
        for name, row in listed.items():
            assert visible(name) in assert_harmless(pages.page(row["url"])).text, name
            assert pages.json(f"{row['url']}.json")["group"] == name
        found = pages.json("/groups/0/billing.json")["positions"]
        assert [(row["topic"], row["partition"], row["lag"]) for row in found] == [
            ("orders", 1, 7), ("clicks", 0, 1), ("gone", 0, None)
        ]  # fmt: skip
        for url in ("/groups/0/nothing", "/groups/1/billing", "/groups/x/billing", "/groups/0/..", "/groups/0/~"):
            assert pages.get(url).status == 404, url


@pytest.mark.long
def test_damaged_checkpoints_groups_and_queues_are_on_the_first_page(tmp_path: Path) -> None:
    with kstore.open(tmp_path) as store:
        store.topic("orders")
        with store.producer() as producer:
            for number in range(10):
                producer.send("orders", b"%d" % number)
        store.consumer_offsets.commit("<b>billing", {kstore.TopicPartition("orders", 0): OffsetAndMetadata(4)})
        store.queue("jobs").put(b"job")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("no checkpoint")
    with site([tmp_path], deep=True) as pages:
        page = pages.json("/overview.json")
        assert page["pending"] is False
        assert page["total"]["damage"] == 1
        (finding,) = page["findings"]
        (group,) = page["groups"]
        assert finding["kind"] == "checkpoint"
        assert (group["group"], group["committed"], group["end"], group["lag"]) == ("<b>billing", 4, 10, 6)
        assert [(queue["queue"], queue["pending"]) for queue in page["queues"]] == [("jobs", 1)]
        seen = assert_harmless(pages.page("/"))
        for text in ("<b>billing", finding["reason"], "jobs"):
            assert text in seen.text


def test_a_filter_lists_the_topics_with_a_text_in_their_names(own: Site) -> None:
    assert [topic["topic"] for topic in own.json("/overview.json?q=ORD")["topics"]] == ["orders"]
    assert 'value="&lt;script&gt;"' in own.page("/?q=<script>")


def test_all_segments_are_listed_in_pages(own: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    (root,) = own.survey.paths
    monkeypatch.setattr("kstore.ui.pages.SEGMENTS_MAX", 3)
    bases: list[int] = []
    start: int | None = 0
    while start is not None:
        page = own.json(f"/logs/0/rolled/0.json?from={start}")
        bases += [segment["base"] for segment in page["segments"]]
        start = page["next_segment"]
    assert bases == classify(SYSTEM_FS.list(root / "rolled-0")).bases[".log"]
    assert len(bases) > 4


def test_the_transactions_of_a_log_are_drawn(own: Site) -> None:
    assert "1 committed" in Seen(own.page("/logs/0/orders/0")).text
    assert "committed" not in Seen(own.page("/logs/0/rolled/0")).text


def test_a_segment_that_retention_removed_is_not_found(own: Site) -> None:
    assert own.get("/logs/0/rolled/0/1").status == 404


def test_nothing_is_written_and_no_lock_is_taken(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "live-0") as log:
        log.append(b"before")
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "live-0").iterdir()}
        with site([tmp_path]) as pages:
            crawled(pages, "/", 20)
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "live-0").iterdir()} == before
        log.append(b"after")


def test_a_log_that_grows_is_shown_with_its_new_records(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "live-0") as log:
        log.append(b"one")
        with site([tmp_path]) as pages:
            assert pages.json("/logs/0/live/0.json")["ends"]["high_watermark"] == 1
            log.append(b"two")
            assert pages.json("/logs/0/live/0.json")["ends"]["high_watermark"] == 2
            assert [batch["last"] for batch in pages.json("/logs/0/live/0/0.json")["batches"]] == [0, 1]


def test_a_log_that_is_gone_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "gone-0") as log:
        log.append(b"one")
    with site([tmp_path]) as pages:
        for path in (tmp_path / "gone-0").iterdir():
            path.unlink()
        (tmp_path / "gone-0").rmdir()
        for url in ("/logs/0/gone/0", "/logs/0/gone/0/0", "/logs/0/gone/0/live", "/logs/0/gone/0/explain?to=0"):
            answer = pages.get(url)
            assert answer.status in (404, 503)
            assert_harmless(answer.text)


class Slow:
    """The system's files; a request for the size of a ``.log`` waits for ``let``."""

    def __init__(self) -> None:
        self.let = threading.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(SYSTEM_FS, name)

        def stat(path: Any, **named: Any) -> Any:
            if str(path).endswith(".log"):
                assert self.let.wait(60)
            return found(path, **named)

        return stat if name == "stat" else found


def test_the_first_page_does_not_wait_for_the_count(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "some-0") as log:
        log.append(b"one")
    files = Slow()
    with site([tmp_path], fs=files, counted=False) as pages:
        try:
            text = pages.page("/")
        finally:
            files.let.set()
        assert "some" in text
        assert "data-pending" in text
        assert pages.survey.wait(60)
        assert "data-pending" not in pages.page("/")
        assert pages.json("/overview.json")["total"]["records"] == 1


def test_a_search_that_fails_leaves_no_page_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: object) -> None:
        raise RuntimeError("a mistake of our own")

    monkeypatch.setattr("kstore.ui.survey.find_places", failing)
    with site([tmp_path]) as pages:
        assert pages.json("/overview.json")["topics"] == []
        assert pages.get("/logs/0/some/0").status == 404


def test_a_topic_that_is_created_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.ui.survey.FIND_SECONDS_MIN", 0)
    monkeypatch.setattr("kstore.ui.survey.REPEAT_COST_FACTOR", 0)
    kstore.Log(tmp_path / "first-0").close()
    with site([tmp_path]) as pages:
        kstore.Log(tmp_path / "another-0").close()
        pages.page("/")
        assert pages.survey.wait(60)
        assert {topic["topic"] for topic in pages.json("/overview.json")["topics"]} == {"first", "another"}


def test_a_log_that_has_grown_is_counted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kstore.ui.survey.RECOUNT_SECONDS_MIN", 0)
    monkeypatch.setattr("kstore.ui.survey.REPEAT_COST_FACTOR", 0)
    with kstore.Log(tmp_path / "live-0") as log:
        log.append(b"one")
        with site([tmp_path]) as pages:
            log.append(b"two")
            pages.page("/logs/0/live/0")  # asks for it
            assert pages.survey.wait(60)
            page = pages.json("/logs/0/live/0.json")
            assert page["counted"]["records"] == 2


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", golden_partitions("damaged"))
@pytest.mark.sampled(6)
def test_the_page_of_a_segment_names_damage_at_its_byte(damaged: Site, name: str) -> None:
    """As ``verify`` does; the page of the damaged place also shows its bytes."""
    directory = golden_root() / "damaged" / name
    topic = name.rpartition("-")[0]
    expected = {
        (int(Path(each.path).stem), each.position)
        for each in verify_log(directory).findings
        if each.path.endswith(".log") and each.kind in ("batch", "tail")
    }
    shown_at = set()
    for base in classify(SYSTEM_FS.list(directory)).bases[".log"]:
        page = damaged.json(f"/logs/0/{topic}/0/{base}.json")
        text = damaged.page(f"/logs/0/{topic}/0/{base}")
        for damage in page["damages"]:
            shown_at.add((base, damage["position"]))
            assert html.escape(damage["reason"]) in text
            batch = damaged.json(f"{damage['url']}.json")
            assert batch["damage"]["reason"] == damage["reason"]
            assert batch["view"]["position"] == damage["position"]
            assert_harmless(damaged.page(damage["url"]))
        assert_harmless(text)
    assert shown_at == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("index-missing", "The index: cannot be read"),
        ("index-position", "where no batch with it starts"),
        ("timeindex-missing", "The time index: cannot be read"),
        ("timeindex-unordered", "does not follow the one before it"),
    ],
)
def test_the_page_of_a_segment_names_what_its_indexes_get_wrong(damaged: Site, name: str, said: str) -> None:
    assert said in damaged.page(f"/logs/0/{name}/0/0")


def test_previous_and_next_lead_through_every_batch_and_damage_of_a_log(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "orders-0", segment_bytes=2000, index_interval_bytes=400) as log:
        for number in range(40):
            log.append(b"x" * 200, timestamp=TIME + number)
    second = sorted((tmp_path / "orders-0").glob("*.log"))[1]
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(data)
    with site([tmp_path]) as pages:
        url: str | None = "/logs/0/orders/0/0/0"
        forth: list[str] = []
        while url is not None:
            forth.append(url)
            url = pages.json(f"{url}.json")["next_url"]
        back: list[str] = []
        url = forth[-1]
        while url is not None:
            back.append(url)
            url = pages.json(f"{url}.json")["previous_url"]
        assert back == forth[::-1]
        assert len(forth) == 40
        assert sum(pages.json(f"{each}.json")["damage"] is not None for each in forth) == 1
        assert 'rel="prev"' not in pages.page(forth[0])
        assert f'href="{forth[0]}" rel="prev"' in pages.page(forth[1])
        assert f'href="{forth[2]}" rel="next"' in pages.page(forth[1])
        assert 'rel="next"' not in pages.page(forth[-1])


def test_the_path_at_the_top_names_its_parts(own: Site) -> None:
    text = own.page("/logs/0/orders/0/0/0/0")
    path = [" ".join(Seen(part).text.split()) for part in re.findall(r"<li>.*?</li>", text.partition("</nav>")[0])]
    assert path == ["All logs", "topic orders", "partition 0", "segment 0", "batch at 0", "record 0"]
    assert text.count('aria-current="page"') == 1


def test_a_jump_into_damage_leads_to_its_place(damaged: Site) -> None:
    (damage,) = damaged.json("/logs/0/flipped-crc/0/0.json")["damages"]
    for offset in (damage["first"], damage["next_offset"] - 1):
        assert damaged.get(f"/logs/0/flipped-crc/0/jump?to={offset}").headers["location"] == damage["url"]
        answer = damaged.json(f"/logs/0/flipped-crc/0/explain.json?to={offset}")
        assert any(step["step"] == "damage" for step in answer["steps"])
        assert (answer["found"], answer["url"]) == (False, damage["url"])
        assert_harmless(damaged.page(f"/logs/0/flipped-crc/0/explain?to={offset}"))
    after = damaged.get(f"/logs/0/flipped-crc/0/jump?to={damage['next_offset']}").headers["location"]
    assert after.endswith(f"/{damage['stop']}/{damage['next_offset']}")


def test_the_survey_lists_what_verify_finds_if_it_is_deep() -> None:
    with site([golden_root() / "damaged" / "flipped-record-0"], deep=True) as pages:
        found = pages.json("/logs/0/flipped-record/0.json")["counted"]["findings"]
        assert 4070 in [finding.get("position") for finding in found if finding["kind"] == "batch"]
        assert "bad crc" in pages.page("/logs/0/flipped-record/0")


# --- a part of a segment ----------------------------------------------------------------------------------------------


def window_positions(pages: Site, url: str) -> list[list[int]]:
    """The positions of the batches on each page of a segment."""
    found = []
    position: int | None = 0
    while position is not None:
        page = pages.json(f"{url}.json?position={position}")
        found.append([batch["position"] for batch in page["batches"]])
        position = page["next"]
    return found


@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "without an index"])
def test_pages_of_a_segment_show_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_indexed: bool
) -> None:
    monkeypatch.setattr("kstore.ui.segments.BATCHES_MAX", 7)
    monkeypatch.setattr("kstore.ui.segments.SEEK_BYTES", 300)
    with kstore.Log(tmp_path / "many-0", index_interval_bytes=100) as log:
        for number in range(60):
            log.append(b"x" * number)
    if not is_indexed:
        (tmp_path / "many-0" / f"{0:020}.index").unlink()
    head = verify_head(tmp_path / "many-0")
    segment = segment_of(SYSTEM_FS, head, tmp_path / "many-0", 0)
    assert segment is not None
    every = [at for at, _ in segment.window(0, segment.offset_entries(), batches_max=100).batches]
    assert len(every) == 60
    with site([tmp_path]) as pages:
        found = window_positions(pages, "/logs/0/many/0/0")
        assert [position for page in found for position in page] == every
        assert max(map(len, found)) <= 7
        # A position within a batch shows that batch.
        assert pages.json(f"/logs/0/many/0/0.json?position={every[5] + 3}")["batches"][0]["position"] in every


def test_a_page_of_a_large_segment_reads_a_part_of_it(tmp_path: Path) -> None:
    """In a sparse file of 1 GiB that ends in one hole."""
    with kstore.Log(tmp_path / "large-0", index_interval_bytes=0, max_message_bytes=60_000) as log:
        for _ in range(30):
            log.append_many([b"x" * 50_000 for _ in range(10)])
    path = tmp_path / "large-0" / f"{0:020}.log"
    os.truncate(path, 1 << 30)
    head = verify_head(tmp_path / "large-0")
    segment = segment_of(SYSTEM_FS, head, tmp_path / "large-0", 0)
    assert segment is not None
    read = Counting(segment.file)
    object.__setattr__(segment, "file", read)
    entries = segment.offset_entries()
    for position in (0, entries.entry(150).value, entries.entry(200).value + 1):
        read.size = 0
        window = segment.window(position, entries)
        assert window.batches
        assert not window.damages
        assert read.size < 8 << 20
    window = segment.window(entries.entry(298).value, entries)
    assert window.is_open
    assert window.next_position == window.stop - OVERLAP_BYTES < segment.size
    assert read.size < 64 << 20


class Counting:
    """A file that counts the bytes read from it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.size = 0

    def pread(self, size: int, position: int) -> bytes:
        data: bytes = self._file.pread(size, position)
        self.size += len(data)
        return data


def test_the_end_that_a_writer_may_be_writing_is_a_note(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "live-0") as log:
        log.append(b"one")
        with (tmp_path / "live-0" / f"{0:020}.log").open("ab") as file:
            file.write(b"half a batch")
        with site([tmp_path]) as pages:
            (damage,) = pages.json("/logs/0/live/0/0.json")["damages"]
            assert damage["severity"] == "note"


# --- lookups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("0", 0),
        ("17", 17),
        (f"@{TIME + 20}", 20),
        ("2023-11-14T22:13:20.025", 25),
        ("2023-11-15 00:13:20.030+02:00", 30),
        (" 5 ", 5),
    ],
)
def test_a_jump_leads_to_the_record_of_an_offset_or_a_time(own: Site, to: str, offset: int) -> None:
    answer = own.get("/logs/0/rolled/0/jump?to=" + to.replace("+", "%2B").replace(" ", "%20"))
    assert answer.status == 303, answer.text
    assert own.json(answer.headers["location"] + ".json")["offset"] == offset


@pytest.mark.parametrize("to", ["", "40000", "-1", "yesterday", "@", f"@{TIME * 2}", "9" * 30, "2023-13-01"])
def test_a_jump_to_nowhere_says_why(own: Site, to: str) -> None:
    for page in ("jump", "explain"):
        answer = own.get(f"/logs/0/rolled/0/{page}?to={to}")
        if answer.status == 200:
            assert page == "explain"  # the drawing shows that nothing is found
            assert not own.json(f"/logs/0/rolled/0/explain.json?to={to}")["found"]
            continue
        assert answer.status == 404
        assert len(Seen(answer.text).text.strip()) > 40


def test_an_offset_that_no_batch_can_have_is_not_there(own: Site) -> None:
    segment = own.json("/logs/0/rolled/0/0.json")
    for form in ("", ".json"):
        assert own.get(f"{segment['batches'][0]['url']}/{2**63 - 1}{form}").status == 404


def test_a_jump_to_the_end_leads_to_what_comes_next(own: Site) -> None:
    assert own.get("/logs/0/rolled/0/jump?to=40").headers["location"] == "/logs/0/rolled/0/live"


def test_the_path_of_a_lookup_is_drawn(own: Site) -> None:
    page = own.json("/logs/0/rolled/0/explain.json?to=17")
    names = [step["step"] for step in page["steps"]]
    assert names[:2] == ["log", "segment"]
    assert names[-2:] == ["batch", "record"]
    text = own.page("/logs/0/rolled/0/explain?to=17")
    for step in page["steps"]:
        assert html.escape(step["text"], quote=True) in text
    assert page["url"] in links(text)
