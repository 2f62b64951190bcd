"""What another codec would save: the sizes are real, and the sample is small for any log."""

from __future__ import annotations

from pathlib import Path

import pytest

import kstore
from kstore.config import CompressionType
from kstore.record.batch import Batch
from kstore.record.builder import build_batch
from kstore.record.compression import CODECS_BY_NAME
from kstore.record.parse import parse_batch
from kstore.reports.gathering import SAMPLED_MAX, largest
from kstore.reports.savings import BATCH_BYTES_MAX, LARGER_FACTOR, Savings, measured, savings_of
from tests.support.harness.golden_data import copy_partition, golden_root

HEADER_BYTES = 61


def sampled(path: Path) -> Savings | None:
    with kstore.Log(path, read_only=True) as log:
        return savings_of(log)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_the_codec_that_wrote_the_batches_gets_their_size_again(tmp_path: Path, codec: CompressionType) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os", compression_type=codec) as log:
        for number in range(30):
            log.append_many([b"value %d of %d" % (at * number, number) for at in range(50)])
    found = sampled(tmp_path / "t-0")
    assert found is not None
    assert (found.batch_count, found.record_count) == (30, 1500)
    assert found.sizes[codec] == found.size
    assert set(found.sizes) == set(found.larger_sizes) == set(CODECS_BY_NAME)
    assert found.larger_sizes[codec] < found.size < found.sizes["none"]


def test_larger_batches_are_those_that_a_larger_linger_would_make(tmp_path: Path) -> None:
    counts = (40, 4)
    for name, count in zip(("small-0", "large-0"), counts, strict=True):
        with kstore.Log(tmp_path / name, durability="os") as log:
            for _ in range(count):
                log.append_many([b"the same value"] * (400 // count))
    found = [sampled(tmp_path / name) for name in ("small-0", "large-0")]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].sizes["none"] - found[0].larger_sizes["none"] == (40 - 40 / LARGER_FACTOR) * HEADER_BYTES
    assert found[0].larger_sizes["zstd"] < found[0].sizes["zstd"]


def test_larger_batches_stay_below_the_limit_of_brokers() -> None:
    batches: list[Batch] = []
    for number in range(3):
        record = kstore.Record(number, 0, value=b"v" * (BATCH_BYTES_MAX * 2 // 3))
        batches.append(parse_batch(bytes(build_batch([record]))))
    found = Savings()
    measured(found, batches)
    assert found.larger_sizes["none"] == found.sizes["none"] == found.size


def test_a_sample_of_a_large_log_is_small_and_spread(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os", segment_bytes="1MiB") as log:
        for number in range(100):
            log.append_many([b"%d" % number * 1000] * 50)
    found = sampled(tmp_path / "t-0")
    assert found is not None
    assert 4 <= found.batch_count < 40
    assert found.size < 2 << 20


def test_batches_of_small_segments_are_neighbours_too(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os", segment_bytes=1024) as log:
        for _ in range(60):
            log.append(b"v" * 900)
    found = sampled(tmp_path / "t-0")
    assert found is not None
    assert found.sizes["none"] - found.larger_sizes["none"] >= 30 * HEADER_BYTES


@pytest.mark.parametrize("name", ["empty-0", "crash-txn-0"])
def test_a_log_without_batches_of_data_has_no_sample(name: str) -> None:
    found = sampled(golden_root() / "clean" / name)
    assert found is None or found.record_count


def test_damaged_places_are_left_out(tmp_path: Path) -> None:
    for name in ("flipped-record-0", "codec-unknown-0", "gzip-body-0"):
        copy_partition("damaged", name, tmp_path)
    document = kstore.report(tmp_path).document
    assert document["total"]["savings"]["partitions"] >= 1


def test_only_the_largest_logs_are_sampled() -> None:
    logs = [Path(f"t-{number}") for number in range(SAMPLED_MAX + 5)]
    assert largest(logs, [*range(len(logs))]) == set(logs[5:])


def test_the_total_is_what_the_samples_say_of_their_logs(tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "t-0", durability="os") as log:
        for _ in range(30):
            log.append_many([b"value"] * 50)
    document = kstore.report(tmp_path).document
    [partition] = document["partitions"]
    total = document["total"]["savings"]
    assert total["bytes"] == partition["bytes"] == total["codecs"]["none"]["bytes"]
    assert 0 < total["codecs"]["zstd"]["larger_bytes"] < total["codecs"]["zstd"]["bytes"] < total["bytes"]
