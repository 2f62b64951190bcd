"""The rules of a handover, without files."""

from __future__ import annotations

import uuid

import pytest

from kstore.files.checkpoint import EpochEntry
from kstore.files.paths import (
    KSTORE_STATE,
    LEADER_EPOCHS,
    PARTITION_METADATA,
)
from kstore.rules.handover import (
    EpochTrack,
    broker_chokes_on,
    choose_topic_ids,
    format_topic_id,
    is_broker_last,
    parse_topic_id,
    sort_store,
)
from tests.support.lives.handover_parts import ID_A, ID_B, A, B

# --- the rules --------------------------------------------------------------------------------------------------------


def test_a_stores_directories_are_sorted_out() -> None:
    delete = f"x-1.{'a' * 32}-delete"
    names = sort_store(["b-1", "b-0", "lost+found", "remote-log-index-cache", "__cluster_metadata-0", delete])
    assert names == ([("b", 0), ("b", 1)], [delete], ["__cluster_metadata-0", "remote-log-index-cache"], ["lost+found"])


def test_names_that_a_broker_chokes_on() -> None:
    assert len(broker_chokes_on(["x.log", "y.snapshot", "z.deleted"])) == 3
    assert broker_chokes_on([PARTITION_METADATA, LEADER_EPOCHS, KSTORE_STATE, ".lock", "x.checkpoint.deleted"]) == []


@pytest.mark.parametrize("text", ["", "A" * 22, "short", "a" * 23, "a" * 21 + "=", "é" * 22, "a/" * 11])
def test_what_is_no_topic_id_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="topic"):
        parse_topic_id(text)


def test_a_topic_id_is_read_as_it_is_printed() -> None:
    topic_id = uuid.uuid4()
    assert parse_topic_id(format_topic_id(topic_id)) == topic_id


def test_a_given_id_goes_before_one_that_is_found() -> None:
    assert choose_topic_ids(["a"], {"a": ID_B}, {A: ID_A}).ids == {"a": ID_B}
    assert choose_topic_ids(["a"], {}, {A: ID_A}).ids == {"a": ID_A}
    assert choose_topic_ids(["a"], {}, {B: ID_B}).problems


def test_a_state_is_old_only_where_a_broker_closed_the_log_since() -> None:
    assert is_broker_last(state_fits=False, marker=True, recovery_point=5, end_offset=5)
    assert not is_broker_last(state_fits=True, marker=True, recovery_point=5, end_offset=5)
    assert not is_broker_last(state_fits=False, marker=False, recovery_point=5, end_offset=5)
    assert not is_broker_last(state_fits=False, marker=True, recovery_point=5, end_offset=6)
    assert not is_broker_last(state_fits=False, marker=True, recovery_point=None, end_offset=None)


def epochs(*batches: tuple[int, int]) -> EpochTrack:
    track = EpochTrack()
    for epoch, base_offset in batches:
        track.note(2, epoch, base_offset)
    return track


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ([], [(0, 0), (3, 20)]),
        ([(0, 0), (3, 20)], [(0, 0), (3, 20)]),
        ([(0, 0), (2, 15), (3, 18)], [(0, 0), (2, 15), (3, 18)]),  # batches of epoch 2 were compacted away
        ([(0, 0), (3, 20), (5, 40)], [(0, 0), (3, 20), (5, 40)]),  # a leader that has not written yet
        ([(0, 0), (3, 20), (5, 41)], [(0, 0), (3, 20)]),  # beyond the log's end
        ([(0, 0), (3, 30)], [(0, 0), (3, 20)]),
        ([(0, 0), (3, 20), (4, 30)], [(0, 0), (3, 20)]),  # a batch at 35 is of epoch 3
        ([(0, 5), (3, 20)], [(0, 0), (3, 20)]),
        ([(3, 0)], [(0, 0), (3, 20)]),
        ([(3, 20), (0, 0)], [(0, 0), (3, 20)]),
    ],
)
def test_leader_epochs_are_kept_where_the_batches_agree(
    stored: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    track = epochs((0, 0), (0, 10), (3, 20), (3, 35))
    assert track.entries(0, 40, [EpochEntry(*entry) for entry in stored]) == expected


def test_leader_epochs_begin_at_the_logs_start() -> None:
    track = epochs((0, 0), (1, 10), (3, 20))
    assert track.entries(15, 30, []) == [(1, 15), (3, 20)]
    assert track.entries(15, 30, [EpochEntry(1, 15), EpochEntry(3, 20)]) == [(1, 15), (3, 20)]


def test_old_formats_and_batches_without_an_epoch_have_none() -> None:
    track = epochs((2, 0), (-1, 5))
    track.note(1, -1, 10)
    assert track.entries(0, 20, []) == []
    track.note(2, 4, 12)
    assert track.entries(0, 20, []) == [(4, 12)]
