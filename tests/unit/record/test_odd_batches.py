"""Batches that kstore does not write and a broker stores: every reader and every copy takes them as Kafka does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kstore
from kstore.cli.main import main
from kstore.record.parse import parse_batch
from kstore.record.scan import parse_batches
from tests.support.lives.odd_batches import LATIN, ODD, ODD_LEGACY, Odd

ALL = {**ODD, **ODD_LEGACY}
WITH_RECORDS = [name for name, odd in ALL.items() if odd.records]
SENT = [name for name, odd in ODD.items() if odd.records]
TEXT = "gr\ufffd\ufffde"


@pytest.fixture(params=ALL, ids=str)
def odd(request: pytest.FixtureRequest) -> Odd:
    return ALL[request.param]


@pytest.fixture
def directory(odd: Odd, tmp_path: Path) -> Path:
    path = tmp_path / "t-0"
    path.mkdir()
    (path / f"{0:020d}.log").write_bytes(odd.data)
    return path


def headers_of(odd: Odd) -> list[tuple[tuple[bytes, bytes | None], ...]]:
    has_headers = parse_batch(odd.data).magic == 2
    return [((LATIN, b"h"),) if has_headers else () for _ in odd.records]


def found(log: kstore.Log) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.read(0)]


def test_every_reader_gives_the_records(odd: Odd, directory: Path) -> None:
    with kstore.Log(directory, read_only=True) as log:
        records = list(log.read(log.start_offset))
        assert [(record.offset, record.value) for record in records] == odd.records
        assert [record.header_bytes for record in records] == headers_of(odd)
        for record in records:
            assert record.headers == tuple([(TEXT, value) for _, value in record.header_bytes])
            assert log.get(record.offset) == record
        assert list(log.read_values(log.start_offset)) == [value for _, value in odd.records]


@pytest.mark.parametrize("headers_type", ["list", "map"])
def test_columns_give_keys_as_text_or_as_bytes(odd: Odd, directory: Path, headers_type: Any) -> None:
    pytest.importorskip("pyarrow")
    with kstore.Log(directory, read_only=True) as log:
        for header_keys, key in (("string", TEXT), ("binary", LATIN)):
            table = log.to_arrow(header_keys=header_keys, headers_type=headers_type)  # type: ignore[arg-type]
            table.validate(full=True)
            assert list(zip(*[table.column(name).to_pylist() for name in ("offset", "value")], strict=True)) == (
                odd.records
            )
            rows = table.column("headers").to_pylist()
            pairs = [
                None if row is None else [tuple(one.values()) if isinstance(one, dict) else one for one in row]
                for row in rows
            ]
            assert pairs == [[(key, b"h")] if headers else None for headers in headers_of(odd)]


def test_no_command_calls_it_damaged(odd: Odd, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", "--rebuild-indexes", str(directory)]) == 0, capsys.readouterr()
    assert main(["verify", str(directory)]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert main(["dump-log", "--print-data-log", "--files", str(directory / f"{0:020d}.log")]) == 0
    printed = capsys.readouterr()
    # Gaps between offsets are noted, the first one before the first offset.
    notes = [line for line in printed.err.splitlines() if "is followed by" not in line]
    assert [line for line in notes if not line.startswith("Non-consecutive offsets")] == []
    for offset, value in odd.records:
        assert f"offset: {offset} " in printed.out
        assert f"payload: {(value or b'').decode()}" in printed.out
    assert main(["stats", "--deep", str(directory)]) == 0, capsys.readouterr()


@pytest.mark.parametrize("odd", [odd for odd in ALL.values() if odd.records], ids=WITH_RECORDS)
def test_compaction_keeps_the_records_and_their_bytes(odd: Odd, tmp_path: Path) -> None:
    with kstore.Log(tmp_path / "c-0", cleanup_policy="compact", max_message_bytes=1 << 20) as log:
        log.append_batches(odd.data, assign_offsets=False)
        # The batch is rewritten: another record replaces the first of its keys.
        log.append(b"new", key=b"key 0", timestamp=1_700_000_000_000)
        log.roll()
        report = log.compact()
        assert report.corrupt == []
        records = list(log.read(log.start_offset))
        assert [(r.offset, r.value) for r in records[:-1]] == odd.records[1:]
        assert [r.header_bytes for r in records[:-1]] == headers_of(odd)[1:]


@pytest.mark.parametrize("odd", [odd for odd in ODD.values() if odd.records], ids=SENT)
@pytest.mark.parametrize("compression_type", ["producer", "uncompressed", "zstd", "gzip"])
def test_appended_batches_keep_their_bytes_whatever_the_codec(odd: Odd, tmp_path: Path, compression_type: Any) -> None:
    with kstore.Log(tmp_path / "c-0", compression_type=compression_type) as log:
        log.append_batches(odd.data)
        assert found(log) == odd.records
        assert [record.header_bytes for record in log.read(0)] == headers_of(odd)
        segment = next((tmp_path / "c-0").glob("*.log")).read_bytes()
        (batch,) = parse_batches(segment)
        batch.ensure_valid()


def test_a_mirror_has_the_same_bytes(odd: Odd, directory: Path, tmp_path: Path) -> None:
    assert main(["mirror", str(directory.parent), str(tmp_path / "copy")]) == 0
    copied = next((tmp_path / "copy" / "t-0").glob("*.log")).read_bytes()
    assert copied == odd.data
