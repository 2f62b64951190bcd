"""The keys of logs in a report: sketches of fixed memory beside exact counts, and what a compaction would free."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import kstore
from kstore.config import CompressionType
from kstore.record._runs import KeySketch, greatest_bytes, walk_run
from kstore.record.builder import build_batch
from kstore.reports.gathering import examined
from kstore.reports.page import page
from kstore.types import OFFSET_MAX
from kstore.upkeep.observed.keys import DISTINCT_ERROR, KeySummary, distinct_count
from tests.support.harness.cpu_limit import cpu_limit
from tests.support.harness.golden_data import golden_partitions, golden_root


def records_of(log: kstore.Log) -> list[tuple[int, bytes]]:
    """Offsets and keys of all records but markers, by a walk over whole batches."""
    return [(record.offset, record.key) for record in log.read() if record.key is not None]


@pytest.mark.parametrize("name", golden_partitions("clean"))
def test_few_keys_are_counted_exactly(name: str) -> None:
    seen = examined(golden_root() / "clean" / name, deep=True)
    keys = seen.keys
    assert keys is not None
    with kstore.Log(golden_root() / "clean" / name, read_only=True) as log:
        if log.transactions() or seen.stats.start_offset < log.start_offset:
            return  # reads begin after the first batch, or end before the last
        counts = Counter(key for _, key in records_of(log))
    assert keys.keyed_count == counts.total()
    assert distinct_count(keys.registers) == pytest.approx(len(counts), rel=4 * DISTINCT_ERROR, abs=1.5)
    assert keys.missed_count == 0
    assert [each.record_count for each in keys.frequent] == sorted(counts.values(), reverse=True)[:10]
    for each in keys.frequent:
        [key] = [key for key in counts if key.startswith(each.start) and len(key) == each.size]
        assert counts[key] == each.record_count


@pytest.mark.parametrize("count", [0, 1, 100, 40_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_the_number_of_distinct_keys_is_within_its_error(count: int) -> None:
    sketch = KeySketch()
    for number in range(count):
        sketch.add_key(b"user-%d" % number, 10)
    assert distinct_count(sketch.registers()) == pytest.approx(count, rel=4 * DISTINCT_ERROR, abs=0.5)


def test_the_count_of_a_frequent_key_is_at_most_as_much_too_low_as_said() -> None:
    sketch, counts = KeySketch(), Counter[bytes]()
    for number in range(30_000):
        for key in (b"rare-%d" % number, b"hot-%d" % (number % 7)):
            sketch.add_key(key, 10)
            counts[key] += 1
    rows = sketch.frequent(10)
    assert {row[3] for row in rows[:7]} == {b"hot-%d" % number for number in range(7)}
    assert 0 < sketch.missed_count < 200
    for found, _, size, start in rows:
        assert size == len(start)
        assert found <= counts[start] <= found + sketch.missed_count


def test_long_keys_are_cut_and_differ_beyond_the_cut() -> None:
    sketch = KeySketch()
    for end in (b"a", b"b", b"b"):
        sketch.add_key(b"x" * 100 + end, 200)
    assert [(row[0], row[2], len(row[3])) for row in sketch.frequent(10)] == [(2, 101, 48), (1, 101, 48)]


def test_keys_of_every_length_have_different_hashes() -> None:
    sketch = KeySketch()
    for size in range(100):
        sketch.add_key(b"\0" * size, 10)
    assert len({row[1] for row in sketch.frequent(200)}) == 100


def key_with_hash(hashed: int) -> bytes:
    """The key of eight bytes that has this hash, which can be inverted."""
    mask, factor = 2**64 - 1, 0xC6A4A7935BD1E995
    inverse = pow(factor, -1, 2**64)

    def shifted_back(number: int) -> int:
        return number ^ (number >> 47)  # its own inverse, since 2 * 47 > 64

    word = shifted_back(hashed) * inverse & mask
    word = shifted_back(word) * inverse & mask
    word = (word ^ 8 * factor) & mask
    word = shifted_back(word * inverse & mask) * inverse & mask
    return word.to_bytes(8, "big")


def colliding_keys(count: int) -> list[bytes]:
    """Keys whose searches begin in one slot of the table of frequent keys."""
    slot_inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    return [key_with_hash((5 << 53 | number) * slot_inverse % 2**64) for number in range(count)]  # slot 5


def test_keys_made_to_collide_are_counted_within_the_error(tmp_path: Path) -> None:
    sketch = KeySketch()
    keys = colliding_keys(3000)
    for key in keys:
        sketch.add_key(key, 10)
    assert len({row[1] * 0x9E3779B97F4A7C15 % 2**64 >> 53 for row in sketch.frequent(3000)}) == 1
    for _ in range(50):
        sketch.add_key(keys[-1], 10)
        sketch.add_key(b"user-7", 10)
    rows = {row[3]: row[0] for row in sketch.frequent(3000)}
    # A search covers 128 slots: the other keys are just missed.
    assert len(rows) <= 129
    assert rows[b"user-7"] == 50
    assert rows.get(keys[-1], 0) <= 51 <= rows.get(keys[-1], 0) + sketch.missed_count
    assert distinct_count(sketch.registers()) < 2 * len(keys)


def test_a_sample_of_keys_tells_what_later_records_replace() -> None:
    sketch = KeySketch()
    sketch.add_key(b"not sampled", 1000)
    sketch.is_sampling = True
    for version in range(4):
        for number in range(20_000):
            sketch.add_key(b"user-%d" % number, 10 + version)
    assert sketch.level > 0
    summary = KeySummary.of(sketch)
    assert summary.sampled_count <= 8192
    assert summary.superseded_share == pytest.approx(33 / 46)
    assert summary.sampled_bytes == pytest.approx(20_000 * 46, rel=0.1)


def test_keys_made_to_stay_in_the_sample_cannot_make_it_slow() -> None:
    sketch = KeySketch()
    sketch.is_sampling = True
    # All bits that choose the sample are 0.
    keys = [key_with_hash(number << 50) for number in range(9000)]
    data = bytes(build_batch([kstore.Record(number, 0, key=keys[number % 9000]) for number in range(200_000)]))
    run = walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, OFFSET_MAX)
    with cpu_limit(5):
        sketch.add(run)
    assert sketch.level == 50
    summary = KeySummary.of(sketch)
    assert 8192 <= summary.sampled_count < 8300
    assert sketch.keyed_count == 200_000


def test_a_sketch_refuses_what_it_cannot_count() -> None:
    records = [kstore.Record(number, 1000, key=b"k", value=b"v" * 500) for number in range(9)]
    data = bytes(build_batch(records, codec="gzip"))
    run = walk_run(data, 0, len(data), 0, 0, len(data), OFFSET_MAX, 0, OFFSET_MAX, True)
    assert run.is_compressed
    with pytest.raises(ValueError, match="compressed"):
        KeySketch().add(run)
    with pytest.raises(ValueError, match="at least 1"):
        KeySketch().add_key(b"k", 0)
    with pytest.raises(ValueError, match="expected 2"):
        greatest_bytes(b"ab", b"abc")
    sketch = KeySketch()
    sketch.add_records(b"\xff" * 20, 3, 2)
    assert sketch.keyed_count == 0


def test_partitions_of_a_topic_are_counted_together() -> None:
    one, other = KeySketch(), KeySketch()
    for number in range(300):
        one.add_key(b"%d" % number, 10)
        other.add_key(b"%d" % (number + 100), 10)
    together = KeySummary()
    for sketch in (one, other, KeySketch()):
        together.merge(KeySummary.of(sketch))
    assert together.keyed_count == 600
    assert distinct_count(together.registers) == pytest.approx(400, rel=4 * DISTINCT_ERROR)


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
def test_a_compaction_frees_about_what_the_report_says(tmp_path: Path, codec: CompressionType) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("t", cleanup_policy="compact", segment_bytes="64KiB", compression_type=codec)
        log = store.log("t")
        for number in range(60):
            keys = [b"user-%d" % ((number * 100 + at) * 7919 % 1500) for at in range(100)]
            log.append_many([b"value %d" % (number * at) * 4 for at in range(100)], keys=keys)
        log.roll()
        [before] = kstore.report(tmp_path / "data", deep=True).document["partitions"]
        log.compact()
        [after] = kstore.report(tmp_path / "data", deep=True).document["partitions"]
    assert before["compaction"]["dirty_ratio"] == 1.0
    freed = before["bytes"] - after["bytes"]
    assert freed > 0
    assert before["compaction"]["would_free"] == pytest.approx(freed, rel=0.15)
    assert after["compaction"]["dirty_ratio"] == 0.0
    assert after["compaction"]["would_free"] == 0


def test_without_deep_the_dirty_ratio_is_known_and_the_rest_is_not(tmp_path: Path) -> None:
    with kstore.open(tmp_path / "data", durability="os", background=False) as store:
        store.create_topic("t", cleanup_policy="compact")
        store.create_topic("plain")
        for topic in ("t", "plain"):
            store.log(topic).append(b"v", key=b"k")
            store.log(topic).roll()
            store.log(topic).append(b"v", key=b"k")
    plain, compacted = kstore.report(tmp_path / "data").document["partitions"]
    assert "compaction" not in plain
    assert compacted["compaction"]["dirty_ratio"] == 1.0
    assert compacted["compaction"]["would_free"] is None
    assert "key_sketch" not in compacted


def test_keys_are_listed_only_with_payload(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    secret = b"<b>tell-no-one</b>\x1b\xff"
    with kstore.Log(tmp_path / "t-0", durability="os") as log:
        log.append_many([b"v"] * 3, keys=[secret] * 3)
    closed, open_one = (kstore.report(tmp_path, deep=True, with_payload=shown) for shown in (False, True))
    assert "tell-no-one" not in closed.json() + closed.html()
    [topic] = open_one.document["topics"]
    assert topic["key_sketch"]["frequent_keys"] == [
        {"key": "<b>tell-no-one</b>\x1b\\xff", "cut": False, "size": len(secret), "records": 3}
    ]
    text = page(open_one.document)
    assert "&lt;b&gt;tell-no-one&lt;/b&gt;\\u001b\\xff" in text
    assert "<b>tell" not in text
