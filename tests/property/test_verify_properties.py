"""Verification by runs is compared with verification by batches: sound, damaged and hostile logs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kstore.errors import KstoreError
from kstore.log import Log
from kstore.record.batch import Batch
from kstore.record.walk import Damage, walk
from kstore.types import OFFSET_MAX
from kstore.upkeep.verify import LogVerification, segment_files, verify_log
from kstore.upkeep.verify.partition import verify_head
from kstore.upkeep.verify.pieces import PieceVerification, pieces_of, verify_piece
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.harness.selection import tries
from tests.support.lives.foreign_batches import tampered
from tests.support.lives.log_cases import data, transaction
from tests.support.oracles.oracle_index_checks import PlainOffsetCheck, PlainTimeCheck
from tools.fuzz.directory import MUTATORS

pytestmark = pytest.mark.promise("hostile file")

LOGS = tries(40, quick=3)
DAMAGED_EACH = tries(20, quick=4)
COPIES_OF_BROKERS = tries(8, quick=1)
# Only one partition in this many is tried in a quick run.
ONE_IN = tries(1, quick=23)
PRODUCERS = (5, 6, 7)


def by_batches(source: Any, start: int, stop: int, **bounds: Any) -> Iterator[tuple[int, Batch] | Damage]:
    del bounds["run_bytes"], bounds["with_compressed"]
    return walk(source, start, stop, **bounds)


def looked_at(path: Path) -> tuple[LogVerification | str, list[PieceVerification]]:
    pieces = []
    with suppress(KstoreError):
        pieces = [verify_piece(piece) for piece in pieces_of(verify_head(path))]
    try:
        return verify_log(path), pieces
    except KstoreError as error:
        return str(error), pieces


def assert_alike(path: Path) -> LogVerification | str:
    """Verifies a log both ways; returns the findings."""
    found, pieces = looked_at(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_files, "walk_runs", by_batches)
        patch.setattr(segment_files, "OffsetCheck", PlainOffsetCheck)
        patch.setattr(segment_files, "TimeCheck", PlainTimeCheck)
        assert (found, pieces) == looked_at(path)
    return found


def written(path: Path, generator: random.Random) -> None:
    """A log of small batches: producers, transactions, some of them aborted, gaps, codecs, leader epochs."""
    settings = {
        "segment_bytes": generator.choice([1024, 2000, 1 << 20]),
        "index_interval_bytes": generator.choice([0, 90, 300]),
    }
    open_ones: set[int] = set()
    sequences = dict.fromkeys(PRODUCERS, 0)
    epoch = 0
    with Log(path, durability="os", **settings) as log:  # type: ignore[arg-type]
        for _ in range(generator.choice([3, 20, 60])):
            at = log.end_offset + generator.choice([0] * 8 + [1, 5])
            count = generator.choice([1, 1, 2, 4])
            wanted = tuple(range(at, at + count))
            producer_id = generator.choice(PRODUCERS)
            kind = generator.randrange(6)
            batch = data(*wanted, timestamp=generator.choice([0, 0, 7000, 10**9]))
            if kind == 1:
                batch = data(*wanted, codec=generator.choice(["gzip", "zstd"]))
            elif kind in (2, 3) and producer_id not in open_ones:
                owned = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequences[producer_id]}
                batch = data(*wanted, codec=generator.choice(["none", "none", "lz4"]), **owned)
                sequences[producer_id] += count
            elif kind == 4:
                batch = transaction(
                    producer_id,
                    *wanted,
                    sequence=sequences[producer_id],
                    codec=generator.choice(["none", "none", "lz4"]),
                )
                sequences[producer_id] += count
                open_ones.add(producer_id)
            elif kind == 5 and open_ones:
                producer_id = generator.choice(sorted(open_ones))
                open_ones.remove(producer_id)
                log.end_transaction(producer_id, 0, commit=generator.random() < 0.6)
                continue
            epoch += generator.random() < 0.1
            log.append_batches(tampered(batch, leader_epoch=epoch), assign_offsets=False)
        if generator.random() < 0.3 and log.end_offset:
            log.delete_records(generator.randrange(log.high_watermark + 1))


def damage(path: Path, generator: random.Random) -> None:
    for _ in range(generator.choice([1, 1, 2])):
        names = sorted(each.name for each in path.iterdir() if each.is_file() and each.name != ".lock")
        if not names:
            return
        logs = [name for name in names if name.endswith(".log")]
        name = generator.choice(logs if logs and generator.random() < 0.4 else names)
        match generator.randrange(12):
            case 0:
                (path / name).unlink()
            case 1:
                base = generator.choice([0, 3, 12, 40, 2**31, OFFSET_MAX])
                (path / f"{base:020d}{Path(name).suffix}").write_bytes((path / name).read_bytes())
            case _:
                mutator = next(mutator for end, mutator in MUTATORS if name.endswith(end))
                (path / name).write_bytes(mutator((path / name).read_bytes(), generator, ()))


def test_logs_and_their_damaged_copies(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    damages = 0
    for _ in range(LOGS):
        path = tmp_path / "log"
        written(path, generator)
        found = assert_alike(path)
        assert isinstance(found, LogVerification)
        assert found.is_sound
        for _ in range(DAMAGED_EACH):
            shutil.copytree(path, tmp_path / "copy", copy_function=shutil.copyfile)  # not read-only
            damage(tmp_path / "copy", generator)
            found = assert_alike(tmp_path / "copy")
            damages += isinstance(found, LogVerification) and len(found.damages)
            shutil.rmtree(tmp_path / "copy")
        shutil.rmtree(path)
    assert damages


def test_what_a_broker_wrote_and_damaged_copies_of_it(seed: int, tmp_path: Path) -> None:
    generator = random.Random(seed)
    trees = ("clean", "crashed", "recovered", "old", "damaged", "started")
    for path in [golden_root() / tree / name for tree in trees for name in golden_partitions(tree)][::ONE_IN]:
        assert_alike(path)
        for _ in range(COPIES_OF_BROKERS):
            shutil.copytree(path, tmp_path / "copy", copy_function=shutil.copyfile)  # not read-only
            damage(tmp_path / "copy", generator)
            assert_alike(tmp_path / "copy")
            shutil.rmtree(tmp_path / "copy")
