"""What commands print for programs: docs/commands.schema.json describes each line, with one name for one thing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import kstore
from kstore.cli.json_fields import OLD_NAMES, damage_fields, log_fields
from kstore.cli.main import cli
from kstore.types import CorruptRange
from kstore.upkeep import stat_fields
from tests.support.harness.json_schema import problems
from tests.support.lives.log_cases import edit
from tests.unit.cli.test_cli_grammar import COMMANDS, options_of

SCHEMA: dict[str, Any] = json.loads(
    (Path(__file__).resolve().parents[3] / "docs" / "commands.schema.json").read_text(encoding="utf-8")
)["$defs"]
# By what the schema calls a line: commands that print such lines. {0} is a directory with a store "data", a copy of it
# with an open transaction, "open", and one with damage, "damaged".
CALLS = {
    "backup": ["backup {0}/data {0}/new-backup", "backup {0}/data {0}/new-backup"],
    "backup --verify": ["backup --verify {0}/backups"],
    "checkpoints": ["checkpoints {0}/data"],
    "compact": ["compact --dry-run --roll {0}/data", "compact --dry-run --roll {0}/damaged"],
    "delete-records": ["delete-records {0}/data orders-0 --stop 1"],
    "describe": ["describe {0}/data"],
    "dump-log": ["dump-log {0}/data/orders-0", "dump-log {0}/damaged/orders-0"],
    "explain": ["explain --offset 1 {0}/data/orders-0", "explain --offset 1 {0}/data", "explain --time now {0}/data"],
    "grep": ["grep v {0}/data", "grep --keys k {0}/open"],
    "grep --count": ["grep -c v {0}/data", "grep -l v {0}/data"],
    "groups": ["groups {0}/data"],
    "groups --describe": ["groups {0}/data --describe g"],
    "groups --reset-offsets": ["groups {0}/data --reset-offsets g --to-earliest"],
    "handover": ["handover {0}/data --to-broker --dry-run", "handover {0}/damaged --to-broker --dry-run"],
    "mirror": ["mirror {0}/data {0}/new-mirror", "mirror --dry-run {0}/damaged {0}/other-mirror"],
    "perf consumer": ["perf consumer {0}/data orders --messages 3"],
    "perf producer": ["perf producer {0}/data bench --create-topic --num-records 10 --record-size 10"],
    "producers": ["producers {0}/data", "producers {0}/open"],
    "queue peek": ["queue peek {0}/data jobs"],
    "queue stats": ["queue stats {0}/data jobs"],
    "read": ["read {0}/data/orders-0", "read {0}/data"],
    "recover": ["recover --dry-run {0}/data", "recover --dry-run {0}/damaged"],
    "replicate": ["replicate --once {0}/data {0}/new-replica"],
    "report": ["report {0}/data", "report --deep {0}/damaged"],
    "restore": ["restore {0}/backups {0}/new-restored"],
    "stats": ["stats --segments {0}/data", "stats --deep {0}/damaged"],
    "topics": ["topics {0}/data"],
    "transactions": ["transactions {0}/data", "transactions {0}/open"],
    "transactions --abort": ["transactions --abort {1} {0}/open/orders-1"],
    "verify": ["verify {0}/data", "verify {0}/damaged"],
}
# Their formats are those of files.
OTHER_FORMATS = {"export", "import"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("json")
    with kstore.open(root / "data", durability="os", background=False) as store:
        store.create_topic("orders", 2)
        store.create_topic("__consumer_offsets", 1, cleanup_policy="compact")  # it would have 50
        store.log("orders", 0).append_many([b"v0", b"\xff", None], keys=[b"k0", None, b"k0"], headers=[{"h": b"1"}] * 3)
        with store.producer(transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", b"v1", key=b"k", partition=1)
            producer.commit_transaction()
            producer.begin_transaction()
            producer.send("orders", b"v2", key=b"k", partition=1)
            producer.flush()
            with store.consumer("orders", group="g") as consumer:
                consumer.poll(1)
                consumer.commit()
            store.queue("jobs").put(b"item")
            shutil.copytree(root / "data", root / "open")
            producer.abort_transaction()
        store.backup(root / "backups")
    shutil.copytree(root / "data", root / "damaged")
    edit(root / "damaged" / "orders-0" / f"{0:020d}.log", lambda content: content.__setitem__(70, content[70] ^ 1))
    (root / "damaged" / "orders-0" / "kstore.state").unlink()
    return root


def lines(call: str, place: Path) -> Iterator[dict[str, Any]]:
    producer_id = kstore.Log(place / "open" / "orders-1", read_only=True).producers()[0].producer_id
    arguments = call.format(place, producer_id).split()
    result = CliRunner().invoke(cli, [*arguments, "--format", "json"])
    assert result.exit_code in (0, 1), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    text = result.stdout
    yield from [json.loads(text)] if text.startswith("{\n") else map(json.loads, text.splitlines())


@pytest.mark.parametrize("kind", CALLS)
def test_every_line_is_as_the_schema_says(kind: str, place: Path) -> None:
    found = [line for call in CALLS[kind] for line in lines(call, place)]
    assert found
    assert [problem for line in found for problem in problems(line, SCHEMA[kind])] == []


def test_the_schema_has_every_command_that_prints_json() -> None:
    printing = {
        name
        for name, command in COMMANDS.items()
        if isinstance(kind := getattr(options_of(command).get("--format"), "type", None), click.Choice)
        and "json" in kind.choices
    }
    assert {kind.partition(" --")[0] for kind in SCHEMA} == printing - OTHER_FORMATS
    assert set(CALLS) == set(SCHEMA)


def variants(kind: str) -> list[dict[str, Any]]:
    """The objects that the lines of a kind may be."""
    found: list[dict[str, Any]] = SCHEMA[kind].get("anyOf", [SCHEMA[kind]])
    return found


def test_a_name_means_one_thing_in_every_command() -> None:
    types: dict[str, dict[str, str]] = {}
    for kind in SCHEMA:
        for variant in variants(kind):
            for name, what in variant.get("properties", {}).items():
                given = what.get("type", "string")  # that of a constant
                bare = sorted({given} if isinstance(given, str) else set(given) - {"null"})
                if not what.get("deprecated"):
                    types.setdefault(name, {})[",".join(bare)] = kind
    assert {name: those for name, those in types.items() if len(those) > 1} == {}
    assert types["partition"].keys() == {"integer"}
    assert types["damage"].keys() == {"array"}


def test_the_deprecated_names_are_those_of_the_code() -> None:
    for kind in SCHEMA:
        said = {
            name
            for variant in variants(kind)
            for name, what in variant.get("properties", {}).items()
            if what.get("deprecated")
        }
        command = kind.partition(" --")[0]
        known = set(OLD_NAMES.get("perf" if command.startswith("perf") else command, {}).values())
        if kind in ("groups", "groups --reset-offsets"):
            known = set()
        if kind == "perf consumer":
            known -= {"failed"}
        if command == "stats":
            known |= set(stat_fields.OLD_NAMES.values())
        if command in ("compact", "recover"):
            known = {"corrupt"}
        assert said == known, kind


def test_old_names_have_the_values_of_the_new_ones(place: Path) -> None:
    for kind, names in OLD_NAMES.items():
        for call in CALLS.get("groups --describe" if kind == "groups" else kind, ()):
            for line in lines(call, place):
                assert {line[new] == line[old] for new, old in names.items() if new in line} <= {True}
    (total,) = [line for line in lines("stats {0}/data", place) if line["type"] == "total"]
    assert [total[old] for old in stat_fields.OLD_NAMES.values() if old in total] == [
        total[new] for new in stat_fields.OLD_NAMES if new in total
    ]


def test_a_log_is_named_with_its_topic_and_partition() -> None:
    assert log_fields("data/or-ders-12") == {"log": "data/or-ders-12", "topic": "or-ders", "partition": 12}
    assert log_fields("data/lone") == {"log": "data/lone"}
    assert damage_fields([CorruptRange(1, 2, 3, "why", "p")]) == [
        {"path": "p", "first": 1, "last": 2, "position": 3, "reason": "why"}
    ]


def test_the_checker_finds_what_is_wrong() -> None:
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": False,
    }
    assert list(problems({"a": 1}, schema)) == []
    wrongs: list[Any] = [{}, {"a": True}, {"a": "1"}, {"a": 1, "b": 2}, []]
    for wrong in wrongs:
        assert list(problems(wrong, schema))
