"""The compiled search for records that hold a text, compared with a plain one."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from kstore.config import CompressionType
from kstore.errors import ConfigError, CorruptRecordError
from kstore.log import Log
from kstore.record._codec import Record
from kstore.record._runs import Texts
from kstore.record.batch import RecordBatch, parse_v2
from kstore.record.builder import build_batch
from kstore.record.control import ControlRecordType, EndTransactionMarker
from kstore.types import OFFSET_MAX
from kstore.upkeep.search import Match, Pattern, Piece, required_text, search
from tests.support.harness.selection import tries
from tests.support.lives.run_helpers import TIME, marker, small_batch, tally
from tests.unit.record.test_runs import run_of

ROUNDS = tries(3000, quick=300)
FIELDS = ("keys", "values", "headers")


def some_bytes(chance: random.Random, size_max: int) -> bytes:
    return bytes(chance.choices(b"aAb\x00{[", k=chance.randrange(size_max)))


def some_records(chance: random.Random, base_offset: int) -> list[Record]:
    return [
        Record(
            base_offset + number,
            TIME,
            key=chance.choice([None, some_bytes(chance, 5)]),
            value=chance.choice([None, some_bytes(chance, chance.choice([4, 300]))]),
            headers=[(some_bytes(chance, 4).decode(), chance.choice([None, some_bytes(chance, 4)]))]
            * chance.choice([0, 0, 2]),
        )
        for number in range(chance.randrange(1, 12))
    ]


def holds(record: Record, texts: list[bytes], fields: set[str], *, folds: bool) -> bool:
    found = [record.key] * ("keys" in fields) + [record.value] * ("values" in fields)
    for name, value in record.headers if "headers" in fields else ():
        found += [name.encode(), value]
    held = [(data or b"").lower() if folds else data or b"" for data in found]
    return any((text.lower() if folds else text) in data for text in texts for data in held)


@pytest.mark.promise("hostile file")
def test_a_text_is_found_where_a_plain_search_finds_it() -> None:
    chance = random.Random(1)
    for _ in range(ROUNDS):
        data = some_bytes(chance, chance.choice([3, 20, 400]))
        texts = [some_bytes(chance, chance.choice([3, 8, 70])) or b"a" for _ in range(chance.randrange(1, 5))]
        start, stop = sorted(chance.choices(range(len(data) + 1), k=2))
        found = [at for text in texts if (at := data.find(text, start, stop)) >= 0]
        assert Texts(texts).find(data, start, stop) == min(found, default=-1)
        folded = [at for text in texts if (at := data.lower().find(text.lower(), start, stop)) >= 0]
        assert Texts(texts, True).find(data, start, stop) == min(folded, default=-1)


def test_the_sample_of_the_first_data_decides_nothing_but_speed() -> None:
    texts = Texts([b"needle"])
    assert texts.find(b"") == -1
    assert texts.find(b"x" * 100_000 + b"needle") == 100_000
    assert Texts([b"eed"]).find(b"n" * 20_000 + b"eed" * 20_000) == 20_000


def test_the_records_of_a_run_that_hold_a_text_are_found() -> None:
    chance = random.Random(2)
    for _ in range(ROUNDS):
        records = [some_records(chance, base) for base in range(0, 12 * chance.randrange(1, 5), 12)]
        run = run_of(b"".join(map(build_batch, records)))
        texts = [some_bytes(chance, 4) or b"b" for _ in range(chance.randrange(1, 3))]
        fields, folds = set(chance.choices(FIELDS, k=3)), chance.random() < 0.5
        looked_for = Texts(texts, folds, *(name in fields for name in FIELDS))
        start, stop = sorted(chance.choices(range(50), k=2))
        found = list(looked_for.records_of_run(run, start, stop, tally()))
        expected = [record for record in run.records(start, stop, tally()) if holds(record, texts, fields, folds=folds)]
        if "headers" in fields:
            # The sizes of headers may look like the text: callers check again.
            found = [record for record in found if holds(record, texts, fields, folds=folds)]
        assert found == expected


def test_batches_without_the_text_are_not_counted_as_read() -> None:
    data = b"".join(small_batch(number, 1, 9) for number in range(5))
    count = tally()
    found = Texts([b"\x00" * 9], headers=False).records_of_run(run_of(data), 0, OFFSET_MAX, count)
    assert [record.offset for record in found] == [0, 1, 2, 3, 4]
    assert count[0] == 5
    count = tally()
    assert not list(Texts([b"other"]).records_of_run(run_of(data), 0, OFFSET_MAX, count))
    assert list(count) == [0, 0, 0]


def test_markers_are_not_searched() -> None:
    data = small_batch(0) + marker(2, 1, 0, EndTransactionMarker(ControlRecordType.COMMIT, 0)) + small_batch(3)
    found = Texts([b"\x00"]).records_of_run(run_of(data), 0, OFFSET_MAX, tally())
    assert 2 not in [record.offset for record in found]


def payload_search(batch: RecordBatch, text: bytes, *, count: int | None = None) -> list[Record]:
    data, start, stop = batch.payload(1 << 20)
    header = batch.header
    found = Texts([text]).records_of_payload(
        bytes(data),
        start,
        stop,
        header.record_count if count is None else count,
        header.base_offset,
        header.base_timestamp,
        header.last_offset_delta,
        False,
        header.max_timestamp,
        header.leader_epoch,
        0,
        OFFSET_MAX,
    )
    return list(found)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd", "snappy", "gzip"])
def test_the_records_of_a_payload_that_hold_a_text_are_found(codec: str) -> None:
    batch = parse_v2(small_batch(7, 20, codec=codec))
    assert payload_search(batch, b"\x05\x05\x05") == [record for record in batch.records() if record.offset == 12]
    assert payload_search(batch, b"nothing") == []


@pytest.mark.promise("hostile file")
def test_a_payload_whose_records_do_not_hold_together_is_refused() -> None:
    batch = parse_v2(small_batch(7, 20))
    for count in (-1, 0, 19, 21, 1 << 30):
        with pytest.raises(CorruptRecordError):
            payload_search(batch, b"\x05\x05\x05", count=count)
    with pytest.raises(ValueError, match="expected some of the 3 there are"):
        Texts([b"a"]).records_of_payload(b"aaa", 0, 4, 1, 0, 0, 0, False, 0, 0, 0, 1)


@pytest.mark.parametrize("texts", [[], [b""], [b"a", b""], [b"a"] * 5])
def test_no_text_and_too_many_are_refused(texts: list[bytes]) -> None:
    with pytest.raises(ValueError, match="expected 1 to 4, none of them empty"):
        Texts(texts)


@pytest.mark.parametrize("codec", ["uncompressed", "lz4"])
@pytest.mark.parametrize("size", [10, 3000])
def test_batches_of_any_kind_are_searched(tmp_path: Path, codec: CompressionType, size: int) -> None:
    with Log(tmp_path / "a-0", compression_type=codec, durability="os") as log:
        for start in range(0, 200, 50):
            log.append_many([b"n%d " % number + b"x" * size for number in range(start, start + 50)])
        found = list(search(log, Pattern(b"n77 "), Piece(0, 200)))
        assert [one.record.offset for one in found if isinstance(one, Match)] == [77]
        found = list(search(log, Pattern(b"N1"), Piece(120, 200)))
        assert found == []
        found = list(search(log, Pattern(b"N1", ignore_case=True), Piece(120, 199)))
        assert [one.record.offset for one in found if isinstance(one, Match)] == list(range(120, 199))


# --- what a regular expression requires -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"(", b"a{99999999999999999999}", b"(" * 900 + b")" * 900, b"[z-a]", b"(" * 9000])
def test_what_is_no_regular_expression_is_a_config_error(text: bytes) -> None:
    with pytest.raises(ConfigError, match="regular expression") as raised:
        Pattern(text, is_regex=True).check()
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (rb"time(d )?out after [0-9]{4,} ms", b"out after "),
        (rb"^abc$", b"abc"),
        (rb"abc|d", b""),
        (rb"(abc|d)ef", b"ef"),
        (rb"(?i)abc", b""),
        (rb"abc*", b"ab"),
        (rb"ab{0}cdd+?e", b"cd"),
        (rb"a\.b\-c", b"a.b-c"),
        (rb"\x41bc\101de\w", b"bc"),
        (rb"[]abc]d[^]abc]ef", b"ef"),
        (rb"[\]abc]d", b"d"),
        ("é?x".encode(), b"\xc3"),
        (rb"\(abc\)", b"(abc)"),
    ],
)
def test_the_text_that_an_expression_requires_is_seen(expression: bytes, expected: bytes) -> None:
    assert required_text(expression) == expected


@pytest.mark.filterwarnings("ignore:Possible")
def test_what_matches_an_expression_holds_the_text_that_it_requires() -> None:
    chance = random.Random(3)
    parts = [*b"abc01{},-", *rb".^$|?*+()[]\^"]
    parts_of = [bytes([part]) for part in parts] + [
        rb"\d",
        rb"\x61",
        rb"\141",
        rb"\.",
        b"{1,2}",
        b"[ab]",
        b"(a|b)",
        b"ab",
    ]
    matched = 0
    for _ in range(tries(60_000, quick=6_000)):
        expression = b"".join(chance.choices(parts_of, k=chance.randrange(1, 7)))
        try:
            compiled = re.compile(expression, re.DOTALL)
        except re.error:
            continue
        required = required_text(expression)
        for _ in range(6):
            data = bytes(chance.choices(b"abc01{},-.\\", k=chance.randrange(8)))
            if compiled.search(data):
                matched += 1
                assert required in data, (expression, data)
    assert matched > 1000
