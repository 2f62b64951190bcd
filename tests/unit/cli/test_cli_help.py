"""``kstore help`` and the list of commands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import kstore
from kstore.cli.main import COMMANDS, SECTIONS, cli


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, arguments, prog_name="kstore")
    return result.exit_code, result.output


@pytest.mark.parametrize("names", [[], *[[name] for name in COMMANDS], ["queue", "put"]])
def test_help_shows_what_the_option_shows(names: list[str]) -> None:
    status, shown = run("help", *names)
    assert (status, shown) == run(*names, "--help")
    assert status == 0


def test_help_of_what_does_not_exist_names_the_nearest() -> None:
    assert run("help", "verfy")[0] == 2
    assert "did you mean verify?" in run("help", "verfy")[1]
    assert "did you mean put?" in run("help", "queue", "pt")[1]
    status, shown = run("help", "verify", "put")
    assert status == 2
    assert "kstore verify has no commands of its own, such as 'put'" in shown


def test_each_command_is_listed_once_in_its_section() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    assert len(names) == len(set(names)) == len(COMMANDS)
    _, shown = run("--help")
    lines = shown.splitlines()
    for title, section in SECTIONS.items():
        at = lines.index(f"{title}:")
        assert [line.split()[0] for line in lines[at + 1 : at + 1 + len(section)]] == list(section)


def test_dump_log_tells_its_version_as_kafka_s_tool_does() -> None:
    status, shown = run("dump-log", "--version")
    assert status == 0
    assert shown.startswith(f"kstore {kstore.__version__}, ")
    assert "Kafka 4.4" in shown
