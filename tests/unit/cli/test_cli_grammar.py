"""One grammar for all commands: an option that docs/commands.md lists has one spelling, one meaning and one type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kstore.cli.main import cli
from kstore.cli.value_types import TimeType
from kstore.log import Log
from tests.support.fakes.fake_clock import ManualClock

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")
# What the tools prescribe whose names and options these commands have.
PRESCRIBED = {
    "consume": "--count --delimiter --exit --format --group --json --key-delimiter --null --offset --partition",
    "dump-log": "--cluster-metadata-decoder --deep-iteration --files --index-sanity-check --key-decoder-class"
    " --max-bytes --max-message-size --offsets-decoder --print-data-log --remote-log-metadata-decoder"
    " --share-group-state-decoder --skip-record-metadata --transaction-log-decoder --value-decoder-class"
    " --verify-index-only --version",
    "grep": "--context --count --ignore-case --invert-match --logs-with-matches --max-count --regex",
    "groups": "--describe --execute --reset-offsets --shift-by --to-datetime --to-earliest --to-latest --to-offset"
    " --topic",
    "perf consumer": "--fetch-size --hide-header --messages --timeout",
    "perf producer": "--num-records --payload-delimiter --payload-file --record-size --throughput"
    " --transaction-duration-ms --transactional-id",
    "topics": "--alter --create --delete --list --partitions",
}
# Options of one command, or of few, for which there is no word yet. Before you add one, read the page's table.
OWN = {
    "append": "--batch --key-separator",
    "backup": "--verify",
    "compact": "--delete-retention --drop-keyless --map-size --roll --whole",
    "dump-log": "--kafka-status --past-damage",
    "export": "--base64 --columns --compression --safe-formulas",
    "grep": "--headers --hex --json-field --keys --values",
    "handover": "--from-broker --mode --to-broker --topic-id",
    "mirror": "--delete",
    "perf consumer": "--as",
    "perf producer": "--create-topic --partitions",
    "produce": "--create-topic --key-separator --partitions --transactional-id",
    "queue drain": "--adopt",
    "queue put": "--adopt --delay",
    "queue retry-dead": "--adopt",
    "read": "--follow --key-separator",
    "recover": "--accept-loss --index-interval-bytes --rebuild-indexes",
    "replicate": "--every --hold-retention --keep --once",
    "report": "--hash-names --output --with-payload",
    "serve": "--advertise --any-user --host --insecure --no-admin --partitions --port --read-only",
    "spark pack": "--package",
    "stats": "--segments",
    "topics": "--reset",
    "transactions": "--abort --hanging",
    "ui": "--port",
    "verify": "--notes",
}
# Old spellings, and the new ones.
RENAMED = {
    ("append", "--set"): "--config",
    ("compact", "--bytes-per-second"): "--rate",
    ("delete-records", "--before"): "--stop",
    ("groups", "--read-only"): "--dry-run",
    ("import", "--set"): "--config",
    ("perf producer", "--producer-config"): "--config",
    ("read", "--offset"): "--start",
    ("read", "--time"): "--since",
    ("restore", "--at"): "--time",
    ("restore", "--at-offset"): "--stop",
    ("transactions", "--hanging-ms"): "--hanging",
}
NOW_MS = 1_700_000_000_000


def walked(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command with its name, but the jobs of Spark, which parse their options themselves."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from walked(command, (*names, name))
        elif not command.ignore_unknown_options:
            yield " ".join((*names, name)), command


COMMANDS = dict(walked(cli))


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options that help shows, by their long names."""
    found = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            (name,) = (each for each in parameter.opts if each.startswith("--"))
            found[name] = parameter
    return found


def value_of(option: click.Option) -> str:
    """How help shows the option's value; "" for none, or for one of a few words."""
    if option.is_flag or isinstance(option.type, click.Choice):
        return ""
    return option.metavar or option.type.name.upper()


def grammar() -> dict[str, tuple[set[str], set[str]]]:
    """The words of the page: for each option how its value is shown, and which commands have it."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for row in re.findall(r"^\| .*? \| (`--.*?) \| (.*) \|$|^\| +\| (`--.*?) \| (.*) \|$", PAGE, re.MULTILINE):
        spelled, commands = (text for text in row if text)
        for name, value in re.findall(r"`(--[a-z-]+) ?([^`]*)`", spelled):
            values, those = found.setdefault(name, (set(), set()))
            values.add("" if value == "json" else value)
            those |= set(commands.split(", "))
    return found


GRAMMAR = grammar()


def test_every_option_is_a_word_of_the_grammar_or_listed_as_a_command_s_own() -> None:
    assert len(GRAMMAR) > 20
    for name, command in COMMANDS.items():
        others = set(f"{PRESCRIBED.get(name, '')} {OWN.get(name, '')}".split())
        for option in options_of(command):
            assert option in GRAMMAR or option in others, (
                f"kstore {name} {option}: which word of docs/commands.md is it?"
            )
        assert others <= options_of(command).keys(), f"kstore {name} has no {others - options_of(command).keys()}"


def test_a_word_has_the_same_value_everywhere_and_the_page_names_its_commands() -> None:
    for word, (values, said) in GRAMMAR.items():
        having = set()
        for name, command in COMMANDS.items():
            option = options_of(command).get(word)
            if option is None or word in PRESCRIBED.get(name, "").split():
                continue
            having.add(name)
            assert value_of(option) in values, f"kstore {name} {word} {value_of(option)}"
        assert having == said, word


@pytest.mark.parametrize("word", ["--since", "--until", "--time", "--to-datetime"])
def test_every_time_is_read_alike(word: str) -> None:
    types = [options_of(command)[word].type for command in COMMANDS.values() if word in options_of(command)]
    assert types
    assert all(isinstance(each, TimeType) for each in types)


def test_an_option_with_one_letter_has_it_everywhere() -> None:
    for word, letter in (("--partition", "-p"), ("--jobs", "-j"), ("--quiet", "-q")):
        for name, command in COMMANDS.items():
            option = options_of(command).get(word)
            assert option is None or letter in option.opts, f"kstore {name} {word}"


# --- old spellings ----------------------------------------------------------------------------------------------------


def test_the_old_spellings_are_hidden_and_known() -> None:
    hidden = {
        (name, parameter.opts[0])
        for name, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.hidden
    }
    assert hidden == set(RENAMED)
    for (name, _), new in RENAMED.items():
        assert new in options_of(COMMANDS[name])


@pytest.fixture
def log(tmp_path: Path) -> str:
    with Log(tmp_path / "log-0") as opened:
        opened.append_many([b"a", b"b", b"c"], timestamps=[NOW_MS, NOW_MS + 1000, NOW_MS + 2000])
    return str(tmp_path / "log-0")


def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, arguments, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_an_old_spelling_does_what_the_new_one_does_and_warns(log: str) -> None:
    status, out, err = run("read", "--offset", "-2", log)
    assert (status, out) == (0, "b\nc\n")
    assert err == "kstore: --offset is now --start; the next release knows only --start\n"
    assert run("read", "--start", "-2", log) == (0, out, "")
    assert run("read", f"--time={NOW_MS + 1500}", log)[:2] == (0, "c\n")


def test_a_repeated_old_spelling_keeps_every_value(tmp_path: Path) -> None:
    settings = ("--set", "segment_bytes=1MiB", "--set", "retention.ms=-1")
    status, out, err = run("append", *settings, str(tmp_path / "a-0"), stdin=b"x\n")
    assert (status, out) == (0, "appended 1 record, offsets 0 to 0\n")
    assert err.count("--set is now --config") == 1
    assert run("append", "--set", "segment_byte=1", str(tmp_path / "a-0"))[0] == 2


def test_both_spellings_at_once_are_refused(log: str) -> None:
    status, out, err = run("read", "--offset", "1", "--start", "0", log)
    assert (status, out) == (2, "")
    assert "--offset and --start are the same: give only --start" in err


def test_an_old_spelling_keeps_its_unit(log: str) -> None:
    assert run("transactions", "--hanging-ms", "900000", log)[0] == 0
    assert run("compact", "--bytes-per-second", "1000000", log)[0] == 0
    status, _, err = run("transactions", "--hanging", "900000", log)
    assert status == 2
    assert "900000 has no unit, expected a duration such as 15m" in err


def test_a_shell_completes_after_an_old_spelling(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    shell = ShellComplete(cli, {}, "kstore", "_KSTORE_COMPLETE")
    for arguments in (["read", "--offset", "1", "--start", "2", log], ["backup", "--rate", "20"]):
        found = [each.value for each in shell.get_completions(arguments, "--")]
        assert "--format" in found
        assert not {"--offset", "--time"} & set(found)
    assert capsys.readouterr() == ("", "")


def test_a_value_that_looks_like_an_old_spelling_stays_a_value(log: str) -> None:
    status, out, err = run("read", "--key-separator", "--offset", log)
    assert (status, out, err) == (0, "--offseta\n--offsetb\n--offsetc\n", "")


# --- times ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("10000000000", 10_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T23:13:20.5+01:00", 1_700_000_000_500),
        ("1970-01-01T00:00Z", 0),
        ("now", NOW_MS),
        ("1h ago", NOW_MS - 3_600_000),
        ("90 seconds ago", NOW_MS - 90_000),
        ("1.5 hours ago", NOW_MS - 5_400_000),
        ("-2h", NOW_MS - 7_200_000),
        ("-500ms", NOW_MS - 500),
        ("-3d", NOW_MS - 3 * 86_400_000),
        ("-1w", NOW_MS - 7 * 86_400_000),
    ],
)
def test_a_time_is_iso_ms_or_relative(text: str, expected: int) -> None:
    assert TimeType(ManualClock(NOW_MS)).convert(text, None, None) == expected


def test_days_start_at_local_midnight() -> None:
    now = datetime.fromtimestamp(NOW_MS / 1000)
    for text, days in (("today", 0), ("yesterday", 1)):
        found = datetime.fromtimestamp(TimeType(ManualClock(NOW_MS)).convert(text, None, None) / 1000)
        assert found == datetime.combine(now.date() - timedelta(days), time())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1700000000", "write 1700000000000 or 2023-11-14T22:13:20Z"),
        ("20260131", "write 2026-01-31 or 20260131000 or 1970-08-23T11:48:51Z"),
        ("5", "write a time such as 2026-01-31T09:00, 1700000000000 (ms)"),
        ("-1", "'-1', expected a time such as"),
        ("1.7e12", "expected a time such as"),
        ("noon", "'noon', expected a time such as"),
        ("1 hour", "expected a time such as"),
        ("2y ago", "expected a time such as"),
        ("1h  ago", "expected a time such as"),
        ("1969-12-31T00:00Z", "is before 1970"),
        ("-999999999d", "is before 1970"),
        ("9" * 5000, "is too long for ms since the epoch"),
        ("", "expected a time such as"),
    ],
    ids=lambda text: text[:20],
)
def test_a_time_that_is_none_gets_an_error_that_shows_times(text: str, words: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        TimeType(ManualClock(NOW_MS)).convert(text, None, None)
    assert words in caught.value.message


# --- the usual mistakes -----------------------------------------------------------------------------------------------

MISTAKES = [
    ("a start in seconds", "read --since 1700000000 {log}", "write 1700000000000 or 2023-11-14T22:13:20Z"),
    ("an end in seconds", "grep --until 1700000000 a {log}", "write 1700000000000 or"),
    ("a moment in seconds", "explain --time 1700000000 {log}", "write 1700000000000 or"),
    ("kcat's place in seconds", "consume -o s@1700000000 {store} t", "write 1700000000000 or"),
    ("a time in words", "read --since lately {log}", "'lately', expected a time such as"),
    ("a time as a start", "read --start yesterday {log}", "'yesterday' is not a valid integer"),
    ("an offset as a time", "export --since 42 {log} out.csv", "42 is too short for ms since the epoch"),
    ("an end from the end", "read --stop -1 {log}", "-1 is not in the range"),
    ("no end for a deletion", "delete-records {store} t-0", "--stop: expected an offset"),
    ("a rate without its unit", "compact --rate 20 {log}", "20 has no unit, expected a rate such as 20MiB"),
    ("a rate in words", "compact --rate fast {log}", "'fast', expected a rate such as 20MiB"),
    ("a rate of nothing", "backup --rate 0 {store} out", "'0', expected at least 1, as 20MiB"),
    ("a negative rate", "backup --rate -5MiB {store} out", "'-5MiB', expected a rate such as 20MiB"),
    ("a rate of bytes for records", "produce --rate 20MiB {store} t", "'20MiB' is not a valid number"),
    ("an unknown unit", "compact --rate 20Mb {log}", "'20Mb', expected a rate such as 20MiB"),
    ("a duration without its unit", "transactions --hanging 15 {log}", "15 has no unit, expected a duration such as"),
    ("a duration in words", "compact --delete-retention soon {log}", "'soon', expected a duration such as"),
    ("a negative duration", "queue put --delay -5s {store} q", "'-5s', expected a duration such as"),
    ("a duration of years", "queue put --delay 999d {store} q", "'999d', expected at most"),
    ("a size in words", "compact --map-size big {log}", "'big', expected a size such as 64MiB"),
    ("a setting without a value", "append --config segment_bytes {log}", "expected NAME=VALUE"),
    ("a setting with a colon", "topics --create x --config retention_ms:7d {store}", "expected NAME=VALUE"),
    ("a misspelt setting", "append --config segment_byte=1 {log}", "segment_byte"),
    ("no process", "stats --jobs 0 {log}", "0 is not in the range"),
    ("following to an end", "read --follow --until now {log}", "--follow has no end"),
    ("a change that is only shown", "groups --reset-offsets g --to-latest --execute --dry-run {store}", "contradicts"),
]


@pytest.mark.parametrize(("call", "words"), [case[1:] for case in MISTAKES], ids=[case[0] for case in MISTAKES])
def test_a_mistake_is_bad_usage_and_says_what_to_write(call: str, words: str, log: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    status, out, err = run(*call.format(log=log, store=tmp_path).split())
    assert (status, out) == (2, "")
    assert words in " ".join(err.split())
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("backup --rate 20 {store} {store}-copy", "--rate 20 is taken as 20MiB: write the unit"),
        ("queue put --delay 5 {store} q", "--delay 5 is taken as 5s: write the unit"),
        ("compact --delete-retention 1000 {log}", "--delete-retention 1000 is taken as 1000ms: write the unit"),
    ],
    ids=["rate", "delay", "retention"],
)
def test_a_number_that_needed_no_unit_still_works_with_a_warning(
    call: str, words: str, log: str, tmp_path: Path
) -> None:
    with Log(tmp_path / "store" / "t-0"):
        pass
    status, _, err = run(*call.format(log=log, store=tmp_path / "store").split())
    assert status == 0
    assert words in err
