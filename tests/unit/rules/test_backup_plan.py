"""Which pieces of a segment stay, and which files no manifest names."""

from __future__ import annotations

import random
from collections.abc import Callable

from kstore.archive.manifest import LogEntry, Manifest, SegmentEntry, StoredFile
from kstore.backup.plan import MERGED_BYTES_MAX, NamedFiles, kept_count
from kstore.files.paths import LOG_SUFFIX, TopicPartition
from kstore.rules.losses import NO_LOSSES
from tests.support.harness.selection import tries

# Each round joins smaller pieces.
SMALL_BYTES = 1 << 18
OWNERS = [TopicPartition("orders", number) for number in range(2)]


def grown(steps: list[int]) -> tuple[list[StoredFile], int]:
    """The pieces of an active segment after rounds that each add some bytes, and how many bytes were copied."""
    pieces: list[StoredFile] = []
    size = copied = 0
    for step in steps:
        size += step
        pieces = with_rest(pieces, size, is_sealed=False)
        copied += pieces[-1].size
    return pieces, copied


def with_rest(pieces: list[StoredFile], size: int, *, is_sealed: bool) -> list[StoredFile]:
    kept = pieces[: kept_count(pieces, size, is_sealed=is_sealed)]
    start = kept[-1].stop if kept else 0
    assert start <= size
    return kept if start == size else [*kept, StoredFile(0, LOG_SUFFIX, size - start, 0, start)]


def test_a_segment_that_grows_in_small_steps_has_few_pieces_and_is_copied_a_few_times() -> None:
    for step in (100, 10_000, 1_000_000):
        pieces, copied = grown([step] * 2000)
        assert len(pieces) <= 80, step
        assert copied <= 5 * 2000 * step + 2000 * SMALL_BYTES // 7, step


def test_no_merge_makes_a_large_piece(seed: int) -> None:
    draw = random.Random(f"plan {seed}")
    for _ in range(tries(50, quick=10)):
        steps = [draw.choice((10, 1000, 300_000, 5 << 20, 90 << 20)) for _ in range(200)]
        pieces, _ = grown(steps)
        assert [piece.position for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
        assert pieces[-1].stop == sum(steps)
        assert all(piece.size <= MERGED_BYTES_MAX or piece.size == 90 << 20 for piece in pieces)
        sealed = with_rest(pieces, sum(steps), is_sealed=True)
        assert all(piece.size <= MERGED_BYTES_MAX or piece in pieces for piece in sealed)
        assert with_rest(sealed, sum(steps), is_sealed=True) == sealed


def test_a_sealed_segment_of_moderate_size_becomes_one_piece() -> None:
    pieces, _ = grown([1000] * 10)
    (whole,) = with_rest(pieces, 11_000, is_sealed=True)
    assert (whole.position, whole.size) == (0, 11_000)
    assert with_rest([whole], 11_000, is_sealed=True) == [whole]


def random_manifest(draw: random.Random, time_ms: int) -> Manifest:
    logs = []
    for owner in draw.sample(OWNERS, draw.randrange(3)):
        files = (StoredFile(0, LOG_SUFFIX, 1, 0), *(StoredFile(0, f".{name}", 1, 0) for name in draw.sample("abc", 2)))
        logs.append(LogEntry(owner, 0, 1, NO_LOSSES, (), (SegmentEntry(0, 0, 0, files),), ()))
    return Manifest(time_ms, b"", {}, tuple(logs))


def named_by(manifests: list[Manifest]) -> set[tuple[TopicPartition, str]]:
    return {(log.owner, file.name) for one in manifests for log in one.logs for file in log.files}


def test_a_dropped_manifest_gives_up_what_no_other_one_names(seed: int, tried: Callable[[str, int], None]) -> None:
    draw = random.Random(f"named {seed}")
    for _ in range(tries(200, quick=20)):
        named, staying = NamedFiles(), [random_manifest(draw, 0)]
        replicas: list[Manifest] = []
        named.keep(staying[0])
        for time_ms in range(1, 20):
            manifest = random_manifest(draw, time_ms)
            if replicas and draw.random() < 0.5:
                manifest = replicas[-1]._replace(time_ms=time_ms)  # the same entries
            named.add(manifest)
            replicas.append(manifest)
            while len(replicas) > 1 and draw.random() < 0.6:
                before = named_by(staying + replicas)
                dropped = replicas.pop(0)
                assert named.oldest_time == dropped.time_ms
                gone = named.drop_oldest()
                assert set(gone) == before - named_by(staying + replicas)
                assert len(set(gone)) == len(gone)
            every = [(owner, file.name) for owner in OWNERS for file in all_files()]
            assert {key for key in every if key in named} == named_by(staying + replicas)
            assert named.replica_count == len(replicas)
        tried("states", 1)


def all_files() -> list[StoredFile]:
    return [StoredFile(0, suffix, 1, 0) for suffix in (LOG_SUFFIX, ".a", ".b", ".c")]
