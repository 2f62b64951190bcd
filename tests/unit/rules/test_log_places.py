"""Finding logs: stores, broker directories, single partitions and globs, on a disk and in a store."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import fsspec
import pytest

import kstore
from kstore.errors import ConfigError, LogNotFoundError, NotALogError, UnsupportedFormatError
from kstore.log import Log
from kstore.rules.topics import KSTORE_TOPICS, TopicEntry, encode_topics
from kstore.spark.places import LogPlace, find_places, open_place
from tests.support.harness.golden_data import golden_partitions, golden_root

HEX = "0123456789abcdef0123456789abcdef"


def make(*paths: Path) -> None:
    for path in paths:
        Log(path).close()


def owners(*urls: str | Path, **options: object) -> list[str]:
    places = find_places([str(url) for url in urls], **options)  # type: ignore[arg-type]
    return [f"{place.topic}-{place.partition}" for place in places]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with kstore.open(tmp_path / "store") as made:
        made.create_topic("orders", partitions=11)
        made.create_topic("pay.ments")
        made.create_topic("__transaction_state")
    return tmp_path / "store"


# --- what there is in a directory -------------------------------------------------------------------------------------


def test_a_store_is_its_partitions_by_topic_and_number(store: Path) -> None:
    places = find_places([str(store)])
    assert places == [
        *(LogPlace(str(store / f"orders-{number}"), "orders", number) for number in range(11)),
        LogPlace(str(store / "pay.ments-0"), "pay.ments", 0),
    ]
    assert pickle.loads(pickle.dumps(places)) == places


def test_a_broker_directory_is_what_its_partitions_are(store: Path) -> None:
    for tree in ("clean", "crashed", "recovered"):
        expected = sorted(name for name in golden_partitions(tree) if not name.startswith("__"))
        assert sorted(owners(golden_root() / tree)) == expected


def test_internal_topics_are_read_if_they_are_named(store: Path) -> None:
    assert owners(store, named=["__transaction_state", "orders"])[0] == "__transaction_state-0"
    assert owners(store / "__transaction_state-0") == ["__transaction_state-0"]
    metadata = "__cluster_metadata"
    assert owners(golden_root() / "clean", named=[metadata])[0] == f"{metadata}-0"


def test_a_partition_is_itself_and_another_log_the_only_one_of_its_name(tmp_path: Path) -> None:
    make(tmp_path / "a-b-7", tmp_path / "journal", tmp_path / "a-07")
    assert find_places([str(tmp_path / "a-b-7")]) == [LogPlace(str(tmp_path / "a-b-7"), "a-b", 7)]
    assert find_places([str(tmp_path / "journal") + "/"]) == [LogPlace(str(tmp_path / "journal"), "journal", 0)]
    assert owners(tmp_path / "a-07") == ["a-07-0"]
    # In a directory of many, only those that are named like partitions.
    assert owners(tmp_path) == ["a-b-7"]


def test_what_is_on_its_way_out_or_in_is_not_there(tmp_path: Path) -> None:
    make(tmp_path / "a-0", *(tmp_path / f"a-{number}.{HEX}-{mark}" for number, mark in enumerate(MARKS, 1)))
    (tmp_path / "b-0").write_bytes(b"a file")
    (tmp_path / "checkpoint").mkdir()
    assert owners(tmp_path) == ["a-0"]
    assert owners(tmp_path / "*") == ["a-0"]


MARKS = ("delete", "stray", "future")


def test_topics_that_are_deleted_or_half_made_are_not_there(tmp_path: Path) -> None:
    make(*(tmp_path / f"{topic}-{number}" for topic in ("gone", "new", "whole") for number in range(3)))
    entries = {"gone": TopicEntry(3, 3, deleting=True), "new": TopicEntry(3, 1, UUID(int=1)), "whole": TopicEntry(3, 3)}
    (tmp_path / KSTORE_TOPICS).write_bytes(encode_topics(entries))
    assert owners(tmp_path) == ["new-0", "whole-0", "whole-1", "whole-2"]
    # A damaged file counts as absent, but one of a later version must not be ignored.
    (tmp_path / KSTORE_TOPICS).write_bytes(b"damaged")
    assert len(owners(tmp_path)) == 9
    (tmp_path / KSTORE_TOPICS).write_bytes(encode_topics(entries).replace(b"topics 1", b"topics 2"))
    with pytest.raises(UnsupportedFormatError):
        owners(tmp_path)


def test_an_empty_directory_has_no_logs(tmp_path: Path) -> None:
    assert owners(tmp_path) == []
    assert owners() == []


def test_paths_are_absolute_whatever_they_were(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    assert find_places(["store"]) == find_places([f"file://{store}"]) == find_places([f"{store}/"])


def test_where_nothing_is_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LogNotFoundError, match=r"no log.*nowhere"):
        find_places([str(tmp_path / "nowhere")])
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotALogError, match="a file, expected a directory"):
        find_places([str(tmp_path / "file")])
    with pytest.raises(NotALogError, match="a file, expected a directory"):
        find_places([str(tmp_path / "file" / "below")])


# --- several of them --------------------------------------------------------------------------------------------------


def test_several_paths_are_one_list(tmp_path: Path) -> None:
    make(tmp_path / "one" / "b-0", tmp_path / "other" / "a-0", tmp_path / "one" / "a-1")
    assert owners(tmp_path / "one", tmp_path / "other") == ["a-0", "a-1", "b-0"]
    assert owners(tmp_path / "one", tmp_path / "one" / "b-0", tmp_path / "o*e") == ["a-1", "b-0"]


def test_two_logs_of_one_partition_are_an_error_that_names_both(tmp_path: Path) -> None:
    make(tmp_path / "one" / "a-0", tmp_path / "other" / "a-0")
    with pytest.raises(ConfigError, match=r"a-0 exists twice.*one/a-0 and .*other/a-0"):
        find_places([str(tmp_path / "one"), str(tmp_path / "other")])


def test_an_error_that_names_places_leaves_passwords_out() -> None:
    remote = fsspec.filesystem("memory")
    for name in ("one", "other"):
        remote.pipe(f"/user:secret@host/{name}/a-0/00000000000000000000.log", b"")
    with pytest.raises(ConfigError, match="memory://user@host/one/a-0 and memory://user@host/other/a-0") as caught:
        find_places([f"memory://user:secret@host/{name}" for name in ("one", "other")])
    assert "secret" not in str(caught.value)


# --- globs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("one/a-*", ["a-0", "a-1", "a-12"]),
        ("one/a-?", ["a-0", "a-1"]),
        ("one/a-[1-9]*", ["a-1", "a-12"]),
        ("one/{a-0,b-0}", ["a-0", "b-0"]),
        ("one/{a-{0,12},b-0}", ["a-0", "a-12", "b-0"]),
        ("*/c-0", ["c-0"]),
        ("o*", ["a-0", "a-1", "a-12", "b-0", "c-0"]),
        ("{one,other}", ["a-0", "a-1", "a-12", "b-0", "c-0"]),
        ("*/*", ["a-0", "a-1", "a-12", "b-0", "c-0"]),
        ("one/__consumer*", []),
        ("one/__consumer_offsets-0", ["__consumer_offsets-0"]),
    ],
)
def test_a_pattern_is_every_log_and_store_that_it_names(pattern: str, expected: list[str], tmp_path: Path) -> None:
    make(*(tmp_path / "one" / name for name in ("a-0", "a-1", "a-12", "b-0", "__consumer_offsets-0")))
    make(tmp_path / "other" / "c-0", tmp_path / ".hidden" / "d-0")
    assert owners(tmp_path / pattern) == expected


def test_a_name_that_looks_like_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    make(tmp_path / "[ab]" / "x-0", tmp_path / "a" / "y-0")
    assert owners(tmp_path / "[ab]") == ["x-0"]


def test_a_pattern_that_nothing_has_is_an_error(tmp_path: Path) -> None:
    for pattern in ("no*", "no*/a-0", "*/*/*"):
        with pytest.raises(LogNotFoundError, match="nothing matches this pattern"):
            find_places([str(tmp_path / pattern)])
    with pytest.raises(ConfigError, match="expands to over"):
        find_places([str(tmp_path) + "/{a,b}" * 20])


# --- in a store -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(store: Path) -> Iterator[str]:
    """The same store in memory, through fsspec."""
    filesystem = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem()
    for file in sorted(store.rglob("*")):
        if file.is_file():
            filesystem.pipe_file(f"/bucket/logs/{file.relative_to(store)}", file.read_bytes())
    yield "memory://bucket/logs"
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]


def test_a_store_elsewhere_has_urls_that_lead_there_again(bucket: str, store: Path) -> None:
    places = find_places([bucket])
    assert [(place.topic, place.partition) for place in places] == [
        (place.topic, place.partition) for place in find_places([str(store)])
    ]
    assert places[0].url == f"{bucket}/orders-0"
    for place in places[:2]:
        assert find_places([place.url]) == [place]
        with open_place(place) as log:
            assert (log.read_only, log.high_watermark) == (True, 0)
    assert owners(f"{bucket}/orders-{{1,2}}") == ["orders-1", "orders-2"]
    assert owners(f"{bucket}/pay*") == owners("memory://bucket/*/pay*-0/") == ["pay.ments-0"]
    with pytest.raises(LogNotFoundError, match="memory://bucket/nowhere"):
        find_places(["memory://bucket/nowhere"])


def test_a_log_is_opened_beside_its_writer(tmp_path: Path) -> None:
    with Log(tmp_path / "a-0") as log:
        log.append_many([b"one", b"two"])
        (place,) = find_places([str(tmp_path)])
        with open_place(place) as found:
            assert [record.value for record in found.read()] == [b"one", b"two"]
            with pytest.raises(kstore.ReadOnlyError):
                found.append(b"three")
