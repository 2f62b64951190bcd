"""``kstore dump-log`` prints every dump of Kafka's DumpLogSegments of a broker's files, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

from kstore.cli.main import main
from tests.support.harness.golden_data import golden_partitions, golden_root
from tests.support.oracles.older_release import as_older

OPTIONS = {
    "shallow": [],
    "data": ["--print-data-log"],
    "deep": ["--deep-iteration"],
    "skip": ["--print-data-log", "--skip-record-metadata"],
    "bytes": ["--max-bytes", "3000", "--print-data-log"],
    "entries": [],
    "verify": ["--verify-index-only"],
    "sanity": ["--index-sanity-check"],
}
DECODERS = {"__consumer_offsets-0": "--offsets-decoder", "__transaction_state-0": "--transaction-log-decoder"}
WHOLE_TREES = ("clean", "crashed", "recovered", "old")
# Stands for an exception of Kafka's tool.
THREW = re.compile(rb"threw (?:java|org)\.")
ERROR = re.compile(rb"(Error at (?:offset )?\d+, skipping\.).*")
GAPS = re.compile(rb"Non-consecutive offsets in (.*)")


class Expected(NamedTuple):
    """A run of Kafka's tool: the options, its output, and whether it ended in an exception."""

    name: str
    arguments: list[str]
    out: bytes
    err: bytes
    threw: bool

    @property
    def path(self) -> bytes:
        return self.arguments[2].encode()


def expected_runs(tree: str, partition: str) -> Iterator[Expected]:
    dumped = golden_root() / f"{tree}.dumped"
    for path in sorted((dumped / tree / partition).glob("*.txt")):
        if path.name.endswith(".stderr.txt"):
            continue
        file, kind = path.name.removesuffix(".txt").rsplit(".", 1)
        options = [DECODERS[partition]] if kind == "decoded" else OPTIONS[kind]
        out, *threw = THREW.split(path.read_bytes(), maxsplit=1)
        error = path.with_name(f"{file}.{kind}.stderr.txt")
        yield Expected(
            f"{partition}/{path.name}",
            ["dump-log", "--files", f"{tree}/{partition}/{file}", *options],
            out,
            without_defect(error.read_bytes()) if error.exists() else b"",
            bool(threw),
        )


def without_defect(err: bytes) -> bytes:
    """Kafka's tool takes -1 for the offset before every file, and reports a gap at the start of all but the first."""
    lines = err.splitlines(keepends=True)
    kept: list[bytes] = []
    base_offset = 0
    for line in lines:
        heading = GAPS.fullmatch(line.rstrip(b"\n"))
        if heading:
            base_offset = int(Path(heading[1].decode()).name.split(".")[0])
        elif line.startswith(b"  -1 is followed by") and base_offset:
            continue
        kept.append(line)
    return b"".join(
        line
        for line, behind in zip(kept, [*kept[1:], b""], strict=True)
        if not GAPS.match(line) or behind.startswith(b"  ")
    )


def partitions(*trees: str) -> list[tuple[str, str]]:
    return [(tree, partition) for tree in trees for partition in golden_partitions(tree)]


class Run(Protocol):
    def __call__(self, arguments: list[str]) -> tuple[int, bytes, bytes]:
        """Exit status, standard output and standard error of ``kstore`` with these arguments."""
        ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    monkeypatch.chdir(golden_root())

    def run_one(arguments: list[str]) -> tuple[int, bytes, bytes]:
        status = main(arguments)
        out, err = capfdbinary.readouterr()
        return status, out, err

    return run_one


@pytest.mark.parametrize(("tree", "partition"), partitions(*WHOLE_TREES))
@pytest.mark.sampled(8)
def test_a_whole_partition_is_dumped_as_kafka_dumps_it(tree: str, partition: str, run: Run) -> None:
    count = 0
    for expected in expected_runs(tree, partition):
        count += 1
        status, out, err = run(expected.arguments)
        assert as_older(out) == expected.out, expected.name
        if expected.threw:
            assert status == 1, expected.name
            assert expected.path in err, expected.name
        else:
            assert err == expected.err, expected.name
            # A crash leaves zeros that count as entries; elsewhere the dump reports no damage.
            assert status == (1 if tree == "crashed" and b"ndex" in expected.err else 0), expected.name
    assert count


@pytest.mark.parametrize(("tree", "partition"), partitions("damaged"))
@pytest.mark.sampled(10)
def test_a_damaged_partition_is_dumped_up_to_the_damage(tree: str, partition: str, run: Run) -> None:
    statuses = set()
    for expected in expected_runs(tree, partition):
        status, out, err = run(expected.arguments)
        statuses.add(status)
        # If Kafka's tool stops within a line, ours ends the line.
        assert out.removesuffix(b"\n") == expected.out.removesuffix(b"\n"), expected.name
        assert set(expected.err.splitlines()) <= set(err.splitlines()), expected.name
        # Kafka's tool throws at zeros, too, which a broker may have allocated ahead.
        if expected.threw and partition != "zero-tail-0":
            assert status == 1, expected.name
            assert expected.path in err, expected.name
    # A missing time index leaves nothing damaged to dump; zeros are damage to the index dumps only.
    assert (1 in statuses) == (partition != "timeindex-missing-0")


# By tree of dumps: whether the tool of 4.4 made them, which kstore follows.
DECODED = {"decoded": False, "coordinators": False, "kafka44": True}


def decoded_files() -> list[tuple[str, str]]:
    trees = {tree: golden_root() / f"{tree}.dumped" for tree in DECODED}
    return sorted((tree, str(path.relative_to(root))) for tree, root in trees.items() for path in root.rglob("*.txt"))


@pytest.mark.parametrize(("tree", "name"), decoded_files())
def test_records_of_kafka_s_own_topics_are_decoded_as_kafka_decodes_them(tree: str, name: str, run: Run) -> None:
    file, option = name.removesuffix(".txt").rsplit(".", 1)
    status, out, err = run(["dump-log", "--files", file, f"--{option}"])
    assert status == 0
    assert not err
    expected = (golden_root() / f"{tree}.dumped" / name).read_bytes()
    # Each tool describes an undecodable record in its own words.
    assert ERROR.sub(rb"\1", out if DECODED[tree] else as_older(out)) == ERROR.sub(rb"\1", expected)
