"""What jobs send to tasks and back: JSON by declared types, which never creates anything else."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pytest

from kstore.errors import ConfigError
from kstore.spark.jobs.logs import LogAt, Segment
from kstore.spark.jobs.plain import from_json, item_type, result_type, to_json
from kstore.spark.jobs.spread import _Results, _Work
from kstore.upkeep.distribution import Distribution
from kstore.upkeep.stats import Stats
from kstore.upkeep.verify import Finding

Kind = Literal["a", "b"]


class Inner(NamedTuple):
    number: int
    name: str | None = None


@dataclass(slots=True)
class Outer:
    inner: Inner
    path: Path
    kind: Kind
    ratio: float
    flag: bool
    by_number: dict[int, list[Inner]] = field(default_factory=dict)
    pairs: tuple[tuple[int, int], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    inners: Sequence[Inner] = ()
    again: Outer | None = None


FULL = Outer(
    Inner(1 << 62, "a\udcffb"),
    Path("/data/ä"),
    "b",
    2,
    True,
    {-1: [Inner(0)], 5: []},
    ((1, 2), (3, 4)),
    {"anon": True, "nested": {"list": [1, "two", None]}},
    (Inner(7, "seven"),),
    Outer(Inner(0), Path(), "a", 0.5, False),
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (FULL, Outer),
        ([FULL, FULL], list[Outer]),
        ((Path("/x"), 5, "t"), tuple[Path, int, str]),
        ((), tuple[str, ...]),
        (None, int | None),
        (LogAt("hdfs://n/x", (("user", "me"), ("retries", 3))), LogAt),
        (Finding("damage", "batch", "/a.log", "bad crc", 5, 1, 2), Finding),
        ({"a": [1, 2.5, None, "x"]}, Any),
    ],
)
def test_what_is_sent_is_what_arrives(value: Any, kind: Any) -> None:
    assert from_json(to_json(value, kind), kind) == value
    json.loads(to_json(value, kind))


def test_counts_are_what_they_were() -> None:
    counted = Stats("/a.log")
    for value in (0, 1, 17, 1 << 40):
        counted.batch_sizes.add(value)
    counted.formats[2] = 7
    there = from_json(to_json(counted, Stats), Stats)
    assert there == counted
    there.batch_sizes.merge(counted.batch_sizes)
    assert (there.batch_sizes.count, counted.batch_sizes.count) == (8, 4)
    assert from_json(to_json(Distribution(), Distribution), Distribution).percentile(50) == 0


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"session": object()}, dict[str, Any]),
        ({"key": b"secret"}, Any),
        ({1: "one"}, Any),
        ("5", int),
        (True, int),
        ("c", Kind),
        ((1, 2, 3), tuple[int, int]),
        ((1, "x"), Inner),
    ],
)
def test_a_value_that_is_not_what_was_declared_is_refused_and_not_shown(value: Any, kind: Any) -> None:
    with pytest.raises(ConfigError, match="cannot travel between driver and executors") as caught:
        to_json(value, kind)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('["1"]', list[int]),
        ("{}", Inner),
        ("[1]", Inner),
        ("[1,2]", Inner),
        ("5", Path),
        ('"c"', Kind),
        ("7", list[int]),
    ],
)
def test_a_text_that_is_not_what_was_declared_is_refused(text: str, kind: Any) -> None:
    with pytest.raises(ConfigError, match="cannot travel between driver and executors"):
        from_json(text, kind)


def test_a_class_without_declared_fields_is_no_type_for_a_job() -> None:
    with pytest.raises(TypeError, match="is no type that a job may declare"):
        to_json(object(), object)


def count_of(options: dict[str, Any], segment: Segment) -> list[Segment]:
    return [segment._replace(size=segment.size + len(options))]


def rows_of(segment: Segment) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"size": [segment.size]})


def sent(kind: Any, *groups: list[Any]) -> Iterator[pa.RecordBatch]:
    """The rows that a task gets: one for each group."""
    first = 0
    for group in groups:
        yield pa.record_batch({"slot": [0], "first": [first], "items": [to_json(group, list[kind])]})
        first += len(group)


def test_a_function_declares_its_items_and_results() -> None:
    work = partial(count_of, {"a": 1})
    assert item_type(work) is Segment
    assert result_type(work) == list[Segment]
    assert item_type(partial(partial(count_of), {})) is Segment


def test_a_task_runs_its_items_and_numbers_the_results() -> None:
    segments = [Segment(number, number + 1, 10 * number) for number in range(5)]
    found = list(_Results(partial(count_of, {"a": 1}))(sent(Segment, segments[:2], segments[2:])))
    assert [batch["number"].to_pylist() for batch in found] == [[number] for number in range(5)]
    assert [from_json(batch["result"][0].as_py(), list[Segment])[0].size for batch in found] == [1, 11, 21, 31, 41]
    assert [batch["size"][0].as_py() for batch in _Work(rows_of)(sent(Segment, segments))] == [0, 10, 20, 30, 40]


def fails(segment: Segment) -> int:
    try:
        raise OSError("the library's words")
    except OSError as error:
        raise ConfigError("kstore's sentence") from error


@pytest.mark.parametrize("run", [_Results, _Work])
def test_an_error_of_a_task_leaves_it_without_its_causes(run: Any) -> None:
    with pytest.raises(ConfigError, match="kstore's sentence") as caught:
        list(run(fails)(sent(Segment, [Segment(0, 1, 1)])))
    assert "the library's words" not in "".join(traceback.format_exception(caught.value))


def test_nothing_of_kstore_unpickles() -> None:
    package = Path(__file__).parents[3] / "kstore"
    for path in package.rglob("*.py"):
        assert "import pickle" not in path.read_text(encoding="utf-8"), path
