"""How far a query is behind its logs: the numbers of Spark's Kafka source, out of a progress of any form."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kstore.errors import ConfigError
from kstore.spark import Behind, behind


def progress(latest: Any, end: Any) -> dict[str, Any]:
    return {"batchId": 3, "sources": [{"description": "kstore", "endOffset": end, "latestOffset": latest}]}


LATEST = {"a": {"0": 100, "1": 50}, "b": {"0": 7}}
END = {"a": {"0": 90, "1": 50}}


@pytest.mark.parametrize("form", ["a dict", "JSON", "an object", "offsets as text"])
def test_offsets_behind_are_counted_over_all_partitions(form: str) -> None:
    given: Any = progress(LATEST, END)
    if form == "offsets as text":
        given = progress(json.dumps(LATEST), json.dumps(END))
    elif form == "JSON":
        given = json.dumps(given)
    elif form == "an object":
        given = SimpleNamespace(json=json.dumps(given))
    # b-0 is new: all of its records are to come.
    assert behind(given) == Behind(avg=17 / 3, max=10, min=0)


def test_nothing_is_known_before_a_source_has_reported() -> None:
    assert behind(None) is None
    assert behind(progress(None, END)) is None
    assert behind(progress({}, None)) is None


def test_a_query_that_is_ahead_of_a_shorter_log_is_not_behind() -> None:
    assert behind(progress({"a": {"0": 5}}, {"a": {"0": 9}})) == Behind(0, 0, 0)


@pytest.mark.parametrize(
    ("given", "source", "said"),
    [
        (progress(LATEST, END), 1, "the query has 1 sources, expected source 1 among them"),
        ({"sources": []}, 0, "the query has 0 sources"),
        (progress({"a": 3}, END), 0, "not of kstore's form"),
        (progress("17", END), 0, "not of kstore's form"),
        ("[]", 0, "a progress is a JSON object, found list"),
    ],
)
def test_what_is_no_progress_of_a_kstore_source_is_refused(given: Any, source: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        behind(given, source=source)
