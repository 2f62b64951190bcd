"""Which member reads what: Kafka's cases of its range and round-robin assignors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kstore.consumer.assignor import STRATEGIES, assign
from kstore.consumer.group_state import GroupMember, GroupState
from kstore.errors import ConfigError
from kstore.files.paths import TopicPartition

Shares = dict[str, list[str]]


def shares(strategy: str, wanted: dict[str, list[str]], counts: dict[str, int]) -> Shares:
    partitions = {topic: range(count) for topic, count in counts.items()}
    found = assign(strategy, wanted, partitions)
    return {member: [str(owner) for owner in share] for member, share in found.items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("wanted", "counts", "expected"),
    [
        pytest.param({"c1": []}, {}, {"c1": []}, id="one member, no topic"),
        pytest.param({"c1": ["t"]}, {}, {"c1": []}, id="a topic that there is not"),
        pytest.param({"c1": ["t"]}, {"t": 0}, {"c1": []}, id="a topic without partitions"),
        pytest.param({"c1": ["t"]}, {"t": 3}, {"c1": ["t-0", "t-1", "t-2"]}, id="one member, one topic"),
        pytest.param({"c1": ["t"]}, {"t": 1, "u": 1}, {"c1": ["t-0"]}, id="only what it subscribes to"),
        pytest.param({"c1": ["t", "u"]}, {"t": 1, "u": 2}, {"c1": ["t-0", "u-0", "u-1"]}, id="several topics"),
        pytest.param(
            {"c1": ["t"], "c2": ["t"]}, {"t": 1}, {"c1": ["t-0"], "c2": []}, id="more members than partitions"
        ),
        pytest.param({"c1": ["t"], "c2": ["t"]}, {"t": 2}, {"c1": ["t-0"], "c2": ["t-1"]}, id="as many"),
    ],
)
def test_both_share_alike(
    strategy: str, wanted: dict[str, list[str]], counts: dict[str, int], expected: Shares
) -> None:
    assert shares(strategy, wanted, counts) == expected


def test_range_gives_runs_topic_by_topic_and_the_first_ones_one_more() -> None:
    wanted = {"c1": ["t"], "c2": ["t", "u"], "c3": ["t"]}
    assert shares("range", wanted, {"t": 3, "u": 2}) == {"c1": ["t-0"], "c2": ["t-1", "u-0", "u-1"], "c3": ["t-2"]}
    both = {"c1": ["t", "u"], "c2": ["t", "u"]}
    assert shares("range", both, {"t": 3, "u": 3}) == {"c1": ["t-0", "t-1", "u-0", "u-1"], "c2": ["t-2", "u-2"]}


def test_round_robin_goes_on_from_one_topic_to_the_next() -> None:
    both = {"c1": ["t", "u"], "c2": ["t", "u"]}
    assert shares("round_robin", both, {"t": 3, "u": 3}) == {"c1": ["t-0", "t-2", "u-1"], "c2": ["t-1", "u-0", "u-2"]}
    mixed = {"c1": ["t"], "c2": ["t", "u"], "c3": ["t"]}
    assert shares("round_robin", mixed, {"t": 3, "u": 2}) == {"c1": ["t-0"], "c2": ["t-1", "u-0", "u-1"], "c3": ["t-2"]}


@given(
    wanted=st.dictionaries(st.sampled_from("abcd"), st.lists(st.sampled_from("tuv"), unique=True)),
    counts=st.dictionaries(st.sampled_from("tuv"), st.integers(0, 9)),
    strategy=st.sampled_from(STRATEGIES),
)
def test_every_requested_partition_has_one_reader(
    wanted: dict[str, list[str]], counts: dict[str, int], strategy: str
) -> None:
    found = shares(strategy, wanted, counts)
    given_out = [owner for share in found.values() for owner in share]
    expected = {
        f"{topic}-{number}"
        for topic, count in counts.items()
        for number in range(count)
        if any(topic in topics for topics in wanted.values())
    }
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == expected
    for member, share in found.items():
        assert {owner.partition("-")[0] for owner in share} <= set(wanted[member])
    if len({tuple(sorted(topics)) for topics in wanted.values()}) == 1:
        # As even as possible: by range in each topic, by round robin over all.
        loads = [len(share) for share in found.values()]
        assert max(loads) - min(loads) <= (len(counts) if strategy == "range" else 1)


# --- the state of a group ---------------------------------------------------------------------------------------------

PARTITIONS = {"t": range(4)}
ALL = [TopicPartition("t", number) for number in range(4)]


def member(strategy: str = "range") -> GroupMember:
    return GroupMember("c", ("t",), strategy, 1000)


def test_a_partition_has_a_new_owner_only_when_the_old_one_has_given_it_up() -> None:
    state = GroupState().joined("a", member(), PARTITIONS)
    state = state.taken("a", state.due("a"))
    assert state.is_settled("a")
    state = state.joined("b", member(), PARTITIONS)
    assert state.generation == 2
    assert state.surplus("a") == frozenset(ALL[2:])
    assert state.due("b") == frozenset()
    state = state.released("a", state.surplus("a"))
    assert state.due("b") == {*ALL[2:]}
    state = state.taken("b", state.due("b"))
    assert state.is_settled("a")
    assert state.is_settled("b")
    state.check()
    state = state.without({"a"}, PARTITIONS)
    assert state.generation == 3
    assert state.due("b") == frozenset(ALL[:2])


def test_what_makes_no_difference_makes_no_generation() -> None:
    state = GroupState().joined("a", member(), PARTITIONS)
    assert state.rebalanced(PARTITIONS) is state
    assert state.without({"z"}, PARTITIONS) is state
    assert state.rebalanced({"t": range(5)}).generation == 2


def test_members_must_agree_how_they_share() -> None:
    state = GroupState().joined("a", member("range"), PARTITIONS)
    with pytest.raises(ConfigError, match="'round_robin', expected 'range' as of the group's other members"):
        state.joined("b", member("round_robin"), PARTITIONS)
    # A member that is alone may change the strategy.
    assert state.joined("a", member("round_robin"), PARTITIONS).generation == 2
