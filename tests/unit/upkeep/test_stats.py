"""Statistics of logs on disk: what is counted, the effect of damage, and the limits."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.files.local import SYSTEM_FS
from kstore.files.paths import LOG_SUFFIX
from kstore.record.batch import BATCH_HEADER
from kstore.record.builder import build_batch
from kstore.record.headers import READ_BATCH_BYTES_MAX, walk_headers
from kstore.record.scan import BufferSource
from kstore.record.walk import Damage, walk
from kstore.types import OFFSET_MAX
from kstore.upkeep.distribution import Distribution
from kstore.upkeep.stat_fields import stat_fields
from kstore.upkeep.stats import FINDINGS_MAX, Stats, log_stats, segment_stats, total
from kstore.upkeep.verify import find_logs
from tests.support.fakes.fake_fs import FailingFs, Fault, Operation, WatchedFs
from tests.support.harness.evidence import Hung
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.lives.log_cases import edit

Item = tuple[int, object] | Damage


def batch_of(base_offset: int, *values: bytes) -> bytes:
    records = [kstore.Record(base_offset + number, 1000, value=value) for number, value in enumerate(values)]
    return bytes(build_batch(records))


def walked(data: bytes, **bounds: int) -> list[Item]:
    return list(walk_headers(BufferSource(data), len(data), **{"next_offset": 0, **bounds}))


def offsets(items: list[Item]) -> list[object]:
    """Base offsets of batches, and the damage between them as (position, stop)."""
    return [item[:2] if isinstance(item, Damage) else item[1].base_offset for item in items]  # type: ignore[attr-defined]


THREE = [batch_of(0, b"a"), batch_of(1, b"b", b"c"), batch_of(3, b"d")]
ENDS = [len(b"".join(THREE[: number + 1])) for number in range(3)]


# --- the walk over headers --------------------------------------------------------------------------------------------


def test_whole_batches_are_walked_by_their_headers() -> None:
    assert offsets(walked(b"".join(THREE))) == [0, 1, 3]


def test_an_empty_segment_has_nothing() -> None:
    assert walked(b"") == []


@pytest.mark.parametrize("cut", [1, 16, 17, 40, 61, 68])
def test_a_torn_end_is_damage_after_whole_batches(cut: int) -> None:
    data = b"".join(THREE)[: ENDS[1] + cut]
    last = walked(data)[-1]
    assert offsets(walked(data)[:2]) == [0, 1]
    assert isinstance(last, Damage)
    assert (last.position, last.stop, last.next_offset) == (ENDS[1], len(data), None)


def test_a_size_that_lies_costs_its_batch_alone() -> None:
    data = bytearray(b"".join(THREE))
    data[ENDS[0] + 11] ^= 4  # within the file, but not at a header
    assert offsets(walked(bytes(data))) == [0, (ENDS[0], ENDS[1]), 3]


def test_a_base_offset_that_lies_costs_its_batch_alone() -> None:
    data = bytearray(b"".join(THREE))
    data[ENDS[0] + 6] ^= 1
    assert offsets(walked(bytes(data))) == [0, (ENDS[0], ENDS[1]), 3]


def test_offsets_of_the_next_segment_are_damage() -> None:
    assert offsets(walked(b"".join(THREE), offset_stop=3)) == [0, 1, (ENDS[1], ENDS[2])]


def test_every_byte_of_every_header_flipped_costs_no_more_than_a_walk_with_crcs(tried: Callable[..., None]) -> None:
    data = b"".join(THREE)
    for start in (0, *ENDS[:2]):
        for at in range(start, start + 61):
            flipped = bytearray(data)
            flipped[at] ^= 0xFF
            found = [item for item in walked(bytes(flipped)) if not isinstance(item, Damage)]
            source = BufferSource(flipped)
            whole = [item for item in walk(source, 0, len(flipped), next_offset=0) if not isinstance(item, Damage)]
            assert {position for position, _ in whole} <= {position for position, _ in found}
            tried("flips")


def test_a_large_batch_is_not_read_for_its_header() -> None:
    sizes: list[int] = []

    class Counting(BufferSource):
        def pread(self, size: int, position: int) -> bytes:
            data = super().pread(size, position)
            sizes.append(len(data))
            return data

    data = batch_of(0, b"x" * (1 << 20)) + batch_of(1, b"x" * (1 << 20))
    assert len(list(walk_headers(Counting(data), len(data), next_offset=0))) == 2
    assert sum(sizes) <= 2 * (64 << 10)


# --- what is counted --------------------------------------------------------------------------------------------------


def test_a_log_s_batches_are_counted(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", compression_type="lz4", durability="os") as log:
        log.append_many([b"a" * 1000] * 10, timestamps=list(range(5_000, 5_010)))
        log.roll()
        sizes = [log.append_many([b"b"] * 3, timestamps=[9_000] * 3).size]
    found = log_stats(tmp_path / "log", with_segments=True)
    assert (found.log_count, found.segment_count, found.batch_count, found.record_count) == (1, 2, 2, 13)
    assert (found.start_offset, found.end_offset) == (0, 13)
    assert (found.first_timestamp, found.last_timestamp) == (5_000, 9_000)
    assert found.size == sum(path.stat().st_size for path in (tmp_path / "log").glob("*.log"))
    assert (found.batch_records.minimum, found.batch_records.maximum) == (3, 10)
    assert found.batch_sizes.sum == found.size
    assert found.codecs["lz4"].batch_count == 2
    assert found.codecs["lz4"].ratio is None
    assert [segment.record_count for segment in found.segments] == [10, 3]
    assert found.segments[1].size == sizes[0]
    assert found.side_sizes[".index"] == sum(path.stat().st_size for path in (tmp_path / "log").glob("*.index"))
    assert found.is_sound


def test_a_deep_look_counts_keys_and_how_well_compression_does(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", compression_type="zstd", durability="os") as log:
        log.append_many(
            [b"v" * 10_000, None, b"w", None],
            keys=[b"k", b"kk", None, None],
            headers=[[("h", b"1")], None, [("h", None), ("i", b"")], None],
        )
    found = log_stats(tmp_path / "log", deep=True)
    records, codec = found.records, found.codecs["zstd"]
    assert records is not None
    assert (records.record_count, records.keyed_count, records.tombstone_count, records.header_count) == (4, 2, 1, 3)
    assert (records.key_sizes.count, records.key_sizes.sum, records.key_sizes.maximum) == (2, 3, 2)
    assert (records.value_sizes.count, records.value_sizes.sum) == (2, 10_001)
    assert codec.ratio is not None
    assert codec.ratio > 50
    assert codec.uncompressed_size > 10_000


def counted(path: Path) -> dict[str, object]:
    """Everything that a deep count of the log counts."""

    def plain(value: object) -> object:
        if isinstance(value, Distribution):
            return value.count, value.sum, value.minimum, value.maximum, value.histogram(), value.percentile(99)
        fields = getattr(value, "__dataclass_fields__", None)
        return value if fields is None else {name: plain(getattr(value, name)) for name in fields}

    found = plain(log_stats(path, deep=True))
    assert isinstance(found, dict)
    return found


def fill_with_everything(path: Path, seed: int) -> None:
    """Batches of all kinds: compressed, of producers, with markers, keys, headers and tombstones."""
    generator = random.Random(seed)
    with kstore.Log(path, durability="os", segment_bytes=20_000) as log:
        for number in range(generator.randrange(5, 40)):
            offset = log.end_offset + generator.choice([0, 0, 3])
            records = [
                kstore.Record(
                    offset + at,
                    generator.choice([-1, 1_000 + number]),
                    key=generator.choice([None, b"", b"key"]),
                    value=generator.choice([None, bytes(generator.randrange(300))]),
                    headers=generator.choice([(), (("h", b"1"), ("i", None))]),
                )
                for at in range(generator.choice([1, 1, 1, 7, 60]))
            ]
            kind = generator.choice(["plain", "plain", "zstd", "transaction"])
            if kind == "transaction":
                batch = build_batch(
                    records, producer_id=number, producer_epoch=0, base_sequence=0, is_transactional=True
                )
                log.append_batches(batch, assign_offsets=False)
                log.end_transaction(number, 0, commit=generator.random() < 0.5)
            else:
                batch = build_batch(records, codec="zstd" if kind == "zstd" else "none")
                log.append_batches(batch, assign_offsets=False)


def counted_by_headers(path: Path) -> dict[str, object]:
    """What the headers alone show of the only segment in ``path``, batch by batch."""
    [log] = path.glob("*.log")
    every = Stats(str(log), segment_count=1)
    found = segment_stats(
        SYSTEM_FS,
        str(log),
        base_offset=int(log.stem),
        offset_stop=OFFSET_MAX,
        is_live_end=False,
        part_of=lambda _: every,
    )
    assert found is not None
    every.merge(found)
    every.segment_count = 1
    return stat_fields(every)


@pytest.mark.parametrize("tree", ["clean", "damaged", "old"])
def test_headers_of_small_batches_tell_the_same_in_compiled_code(tree: str) -> None:
    for name in golden_partitions(tree):
        path = golden_root() / tree / name
        if len([*path.glob("*.log")]) == 1:
            found = stat_fields(log_stats(path))
            expected = counted_by_headers(path)
            names = found.keys() - {"side_bytes", "index_bytes"}
            assert {each: found[each] for each in names} == {each: expected[each] for each in names}, name


@pytest.mark.parametrize("size", [10, 20_000, 200_000])
def test_headers_of_large_batches_are_read_alone(tmp_path: Path, size: int) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        for _ in range(40):
            log.append(b"v" * size)

    class Counting(WatchedFs):
        read_bytes = 0

        def perform(self, operation: Operation, action: Callable[[], Any]) -> Any:
            result = action()
            if operation.kind == "pread" and operation.path.endswith(LOG_SUFFIX):
                self.read_bytes += len(result)
            return result

    fs = Counting()
    found = log_stats(tmp_path / "log", fs=fs)
    assert 0 < fs.read_bytes < 256 << 10
    assert found.batch_count == 40
    assert found.codecs["none"].ratio is None
    assert found.records is None


@pytest.mark.parametrize("seed", range(8))
def test_compiled_counts_are_those_of_single_batches(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    fill_with_everything(path, seed)
    generator = random.Random(seed)
    for damaged in (False, True):
        if damaged:
            victim = generator.choice(sorted(path.glob("*.log")))
            at = generator.randrange(victim.stat().st_size)
            edit(victim, lambda content, at=at: content.__setitem__(at, content[at] ^ 1))  # type: ignore[misc]
        found = counted(path)
        with monkeypatch.context() as patch:
            patch.setattr("kstore.upkeep.stats._Counting.count_runs", lambda self, offset, advance: (0, offset))
            assert counted(path) == found


def test_a_segment_that_is_cut_while_it_is_counted_ends_there(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        log.append_many([bytes(100)] * 10)

    class Cutting(WatchedFs):
        def perform(self, operation: Operation, action: Callable[[], Any]) -> Any:
            return b"" if operation.kind == "pread" and operation.path.endswith(LOG_SUFFIX) else action()

    assert log_stats(tmp_path / "log", deep=True, fs=Cutting()).batch_count == 0


def test_transactions_are_counted(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        for sequence, commit in ((0, True), (1, False)):
            record = kstore.Record(0, 1_000, value=b"v")
            log.append_batches(
                build_batch([record], producer_id=7, producer_epoch=0, base_sequence=sequence, is_transactional=True)
            )
            log.end_transaction(7, 0, commit=commit)
        log.append(b"plain")
    found = log_stats(tmp_path / "log", deep=True)
    assert (found.commit_count, found.abort_count, found.control_batch_count) == (1, 1, 2)
    assert (found.transactional_batch_count, found.producer_batch_count, found.batch_count) == (4, 4, 5)
    assert found.records is not None
    assert found.records.record_count == 3


def test_an_empty_log_has_nothing(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log"):
        pass
    found = log_stats(tmp_path / "log", deep=True)
    assert (found.batch_count, found.end_offset, found.first_timestamp, found.size) == (0, -1, -1, 0)
    assert found.batch_sizes.percentile(50) == 0
    assert found.batch_sizes.histogram() == []


@pytest.mark.parametrize("tree", ["clean", "crashed", "recovered", "old"])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.sampled(3)
def test_a_broker_s_directories_are_counted_as_a_walk_of_every_batch_counts_them(
    tree: str, deep: bool, tried: Callable[..., None]
) -> None:
    for name in golden_partitions(tree):
        directory = golden_root() / tree / name
        expected: Counter[str] = Counter()
        bases = sorted(int(path.stem) for path in directory.glob("*.log"))
        for base in bases:
            file = SYSTEM_FS.open(directory / f"{base:020d}{LOG_SUFFIX}")
            for item in walk(file, 0, file.size(), next_offset=base):
                assert not isinstance(item, Damage)
                batch = item[1]
                records = list(batch.records())
                expected["batches"] += 1
                expected["records"] += len(records)
                expected["control"] += batch.is_control
                if not batch.is_control:
                    expected["keys"] += sum(record.key is not None for record in records)
                    expected["tombstones"] += sum(record.key is not None and record.value is None for record in records)
                expected[batch.codec] += 1
        found = log_stats(directory, deep=deep)
        assert found.is_sound, found.findings
        counts = {
            "batches": found.batch_count,
            "records": found.record_count,
            "control": found.control_batch_count,
            **{codec: stats.batch_count for codec, stats in found.codecs.items()},
        }
        if found.records is not None:
            counts |= {"keys": found.records.keyed_count, "tombstones": found.records.tombstone_count}
        else:
            del expected["keys"], expected["tombstones"]
        assert Counter(counts) == expected
        tried("reads")


def test_all_logs_together_are_their_sums() -> None:
    logs = [log_stats(log, deep=True) for log in find_logs(golden_root() / "clean")]
    every = total(logs)
    assert every.log_count == len(logs) == len(golden_partitions("clean"))
    assert every.batch_count == sum(log.batch_count for log in logs) == every.batch_sizes.count
    assert every.record_count == sum(log.record_count for log in logs)
    assert every.size == sum(log.size for log in logs)
    assert sum(codec.size for codec in every.codecs.values()) == every.batch_sizes.sum
    assert every.end_offset == -1


# --- damage -----------------------------------------------------------------------------------------------------------


def test_damage_is_a_finding_and_the_rest_is_counted(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        for value in (b"a", b"b", b"c"):
            log.append(value)
    size = len(batch_of(0, b"a"))
    edit(tmp_path / "log" / f"{0:020d}.log", lambda content: content.__setitem__(size + 66, 1))
    assert log_stats(tmp_path / "log").is_sound  # no header is touched
    found = log_stats(tmp_path / "log", deep=True)
    assert (found.batch_count, found.damage_count) == (2, 1)
    assert (found.findings[0].position, found.findings[0].first, found.findings[0].last) == (size, 1, 1)


def test_the_damage_that_a_broker_s_directories_hold_is_found() -> None:
    """Except for damage that statistics do not examine: indexes, snapshots, and without ``deep`` records."""
    names = golden_partitions("damaged")
    # Zeros at the end of a log are space that was allocated ahead.
    others = ("snapshot-crc-0", "log-empty-0", "log-ten-bytes-0", "zero-tail-0")
    sound = {name for name in names if log_stats(golden_root() / "damaged" / name).is_sound}
    deep_sound = {name for name in names if log_stats(golden_root() / "damaged" / name, deep=True).is_sound}
    assert deep_sound == {name for name in names if "index" in name or name in others}
    # Damage within records, which headers do not show.
    assert sound - deep_sound == {"flipped-crc-0", "flipped-in-last-batch-0", "flipped-record-0", "gzip-body-0"}


def test_a_state_that_cannot_be_read_does_not_keep_it_from_the_segments(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        log.append(b"a")
    fs = FailingFs(SYSTEM_FS)
    fs.faults.append(Fault(1, kinds=frozenset({"pread"}), suffix="kstore.state"))
    found = log_stats(tmp_path / "log", fs=fs)
    assert (found.batch_count, [finding.kind for finding in found.findings]) == (1, ["state"])


def test_a_segment_that_cannot_be_read_does_not_keep_it_from_the_others(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        log.roll()
        log.append(b"b")
    fs = FailingFs(SYSTEM_FS)
    fs.faults.append(Fault(1, kinds=frozenset({"pread"}), suffix=".log"))
    found = log_stats(tmp_path / "log", fs=fs)
    assert (found.batch_count, found.damage_count, found.end_offset) == (1, 1, 2)
    assert "cannot be read" in found.findings[0].reason


def test_a_directory_that_is_gone_is_a_finding(tmp_path: Path) -> None:
    found = log_stats(tmp_path / "none")
    assert (found.damage_count, found.segment_count) == (1, 0)


def test_a_live_writer_s_half_written_end_is_no_damage(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "log", durability="os") as log:
        log.append(b"a")
        path = tmp_path / "log" / f"{0:020d}.log"
        with path.open("ab") as file:
            file.write(b"\0\0\1")
        assert log_stats(tmp_path / "log").is_sound
        with path.open("r+b") as file:
            file.truncate(69)
    with path.open("ab") as file:
        file.write(b"\0\0\1")
    assert not log_stats(tmp_path / "log").is_sound


def header(base_offset: int, size: int, *, delta: int = 0, attributes: int = 0) -> bytes:
    return BATCH_HEADER.pack(base_offset, size - 12, 0, 2, 0, attributes, delta, 0, 0, -1, -1, -1, 1)


def hostile_contents() -> dict[str, bytes]:
    rng = random.Random(7)
    return {
        "zeros": bytes(1 << 20),
        "noise": rng.randbytes(1 << 20),
        # At every 61st byte, what looks like the header of a large batch.
        "headers everywhere": b"".join(header(number, 1 << 19) for number in range(1 << 14)),
        "small headers everywhere": b"".join(header(0, 61) for _ in range(1 << 14)),
        "damage between all batches": b"".join(batch_of(number, b"x") + b"\xff" for number in range(5_000)),
        "unknown codec": batch_of(0, b"a")[:21] + struct.pack(">h", 7) + batch_of(0, b"a")[23:],
        "times that cannot be": b"".join(
            BATCH_HEADER.pack(number, 49, 0, 2, 0, 0, 0, 2**63 - 1, 2**63 - 1, -1, -1, -1, 1) for number in range(3)
        ),
        "an offset at the end of all": header((1 << 63) - 2, 61),
    }


@pytest.mark.promise("hostile file")
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", hostile_contents())
@pytest.mark.sampled(1)
def test_a_hostile_segment_costs_bounded_time_and_memory(
    tmp_path: Path, name: str, deep: bool, tried: Callable[..., None]
) -> None:
    (tmp_path / f"{0:020d}.log").write_bytes(hostile_contents()[name])
    started = time.process_time()
    tracemalloc.start()
    found = log_stats(tmp_path, deep=deep)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    tried("fuzz inputs")
    if time.process_time() - started > 20:
        raise Hung(f"{name}: {time.process_time() - started:.0f} s for 1 MiB")
    assert peak < 32 << 20, name
    assert len(found.findings) <= FINDINGS_MAX
    # Zeros may be space that was allocated ahead.
    assert found.damage_count or name in ("times that cannot be", "unknown codec", "zeros")


@pytest.mark.promise("hostile file")
def test_a_batch_that_says_it_is_huge_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    size = READ_BATCH_BYTES_MAX + 100
    with path.open("wb") as file:
        file.write(header(0, size))
        file.truncate(size)
    tracemalloc.start()
    found = log_stats(tmp_path, deep=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert f"of which at most {READ_BATCH_BYTES_MAX} are examined" in found.findings[0].reason


@pytest.mark.promise("hostile file")
@pytest.mark.long
def test_a_bomb_is_not_decompressed(tmp_path: Path) -> None:
    bomb = build_batch([kstore.Record(0, 0, value=bytes(READ_BATCH_BYTES_MAX + 1))], codec="gzip")
    (tmp_path / f"{0:020d}.log").write_bytes(bomb)
    found = log_stats(tmp_path, deep=True)
    assert (found.batch_count, found.damage_count) == (0, 1)


@pytest.mark.promise("hostile file")
def test_random_edits_of_a_segment_never_end_it(tmp_path: Path, seed: int, tried: Callable[..., None]) -> None:
    rng = random.Random(seed)
    partitions = [golden_root() / "clean" / name for name in golden_partitions("clean")]
    for _ in range(150):
        source = rng.choice(sorted(rng.choice(partitions).glob("*.log")))
        content = bytearray(source.read_bytes()[: 20 << 10])
        for _ in range(rng.randrange(1, 20)):
            if content:
                content[rng.randrange(len(content))] = rng.randrange(256)
        (tmp_path / source.name).write_bytes(content)
        log_stats(tmp_path, deep=rng.random() < 0.5)
        (tmp_path / source.name).unlink()
        tried("fuzz inputs")


# --- distributions ----------------------------------------------------------------------------------------------------


def test_percentiles_are_right_to_a_sixteenth(seed: int) -> None:
    rng = random.Random(seed)
    values = [rng.randrange(1 << rng.randrange(1, 40)) for _ in range(2_000)] + [0, 1]
    found = Distribution()
    for value in values:
        found.add(value)
    values.sort()
    assert (found.minimum, found.maximum, found.sum, found.count) == (values[0], values[-1], sum(values), len(values))
    for percent in (0, 1, 25, 50, 90, 99, 99.9, 100):
        exact = values[int(max(-(-len(values) * percent // 100), 1)) - 1]
        assert exact <= found.percentile(percent) <= exact + exact // 16 + 1
    bars = found.histogram()
    assert sum(bar.value_count for bar in bars) == len(values)
    for bar in bars:
        assert bar.value_count == sum(bar.low <= value <= bar.high for value in values)


def test_merged_distributions_are_those_of_all_values(seed: int) -> None:
    rng = random.Random(seed)
    one, other, both = Distribution(), Distribution(), Distribution()
    for number in range(500):
        value = rng.randrange(10_000)
        (one if number % 3 else other).add(value)
        both.add(value)
    one.merge(other)
    assert one.histogram() == both.histogram()
    assert [one.percentile(percent) for percent in range(101)] == [both.percentile(percent) for percent in range(101)]


def test_find_logs_is_the_one_of_verify(tmp_path: Path) -> None:
    with pytest.raises(kstore.NotALogError):
        find_logs(tmp_path)
