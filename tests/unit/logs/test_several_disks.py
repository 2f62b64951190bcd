"""A directory that is one of several disks of a broker has some of the partitions: what it cannot show, it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import kstore
from kstore import TopicPartition
from kstore.cli.main import cli
from kstore.reports.readers import readers_of
from kstore.store import Store

# Kafka's rule puts them into these of 50 partitions.
GROUPS = {"audit": 5, "search": 6, "billing": 9, "mail": 49}
OWNER = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disks") / "whole"
    with kstore.open(path, durability="os") as store:
        store.create_topic("orders")
        for group, number in GROUPS.items():
            store.consumer_offsets.commit(group, {OWNER: number})
            assert store.consumer_offsets.place(group).partition == number
    return path


def disk(whole: Path, target: Path, is_here: Callable[[int], bool]) -> Path:
    """A directory as a broker's, with some of the partitions of ``__consumer_offsets``."""
    for number in filter(is_here, range(50)):
        name = f"__consumer_offsets-{number}"
        shutil.copytree(whole / name, target / name, ignore=lambda _, names: [n for n in names if "kstore" in n])
    return target


def groups(path: Path, *options: str) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["groups", str(path), *options])
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_a_store_with_all_partitions_says_nothing(whole: Path) -> None:
    listed, told = groups(whole)
    assert listed.split() == sorted(GROUPS)
    assert told == ""
    assert readers_of(whole, with_queues=False).problem == ""


def test_missing_partitions_are_told_of_where_groups_are_shown(whole: Path, tmp_path: Path) -> None:
    odd = disk(whole, tmp_path / "odd", lambda number: number % 2 == 1)
    listed, told = groups(odd)
    assert listed.split() == ["audit", "billing", "mail"]
    assert "25 of the partitions 0 to 49 of __consumer_offsets are not in this directory" in told
    assert "log.dirs" in told
    assert told == groups(odd, "--describe", "search")[1].replace("kstore: group 'search' has committed nothing\n", "")
    readers = readers_of(odd, with_queues=False)
    assert {each.group for each in readers.positions} == {"audit", "billing", "mail"}
    assert f"kstore: {readers.problem}\n" == told


@pytest.mark.parametrize("stop", [7, 10, 25, 50])
def test_a_group_is_found_where_it_is_although_the_count_is_not_known(whole: Path, tmp_path: Path, stop: int) -> None:
    first = disk(whole, tmp_path / "first", lambda number: number < stop)
    for group, number in GROUPS.items():
        described, _ = groups(first, "--describe", group, "--format", "json")
        assert [json.loads(line)["committed"] for line in described.splitlines()] == [number] * (number < stop)
    with Store(first, read_only=True) as store:
        offsets = store.consumer_offsets
        found = {group: [each.offset for each in offsets.committed(group).values()] for group in offsets.groups()}
    assert found == {group: [number] for group, number in GROUPS.items() if number < stop}


def test_what_a_directory_lacks_is_known_without_reading_its_partitions(whole: Path, tmp_path: Path) -> None:
    """A broker's may be large."""
    with Store(disk(whole, tmp_path / "odd", lambda number: number % 2 == 1), read_only=True) as store:
        assert store.consumer_offsets.committed("audit")
        assert store.consumer_offsets.unseen()
        assert [str(owner) for owner in store.status().open_logs] == ["__consumer_offsets-5"]


def test_groups_in_other_places_than_the_partitions_here_would_give_them_show_that_there_are_more(
    whole: Path, tmp_path: Path
) -> None:
    _, told = groups(disk(whole, tmp_path / "first", lambda number: number < 7))
    assert "__consumer_offsets has more than the 7 partitions in this directory" in told
