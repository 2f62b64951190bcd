"""The man pages: one for each command, with all that its ``--help`` says, and a wheel brings them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kstore.cli.main import COMMANDS, SECTIONS, cli
from kstore.cli.man import page, pages, write_pages

ROOT = Path(__file__).resolve().parents[3]
ESCAPES = {r"\(rs": "\\", r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ha": "^", r"\(ti": "~"}


def plain(source: str) -> str:
    """The words of a page."""
    text = re.sub(r"\\f[BR]|\\&|^\.(?:TH|SH|SS|TP|PP|nf|fi|B)\b", "", source, flags=re.MULTILINE)
    for escape, char in reversed(ESCAPES.items()):
        text = text.replace(escape, char)
    return " ".join(text.split())


def contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from contexts(click.Context(command, info_name=name, parent=context))


ALL = list(contexts(click.Context(cli, info_name="kstore", help_option_names=["-h", "--help"])))


def test_every_command_has_a_page() -> None:
    names = [name for name, _ in pages()]
    assert names == [f"{context.command_path.replace(' ', '-')}.1" for context in ALL]
    assert {f"kstore-{name}.1" for name in COMMANDS} < set(names)
    assert "kstore-queue-put.1" in names


@pytest.mark.parametrize("context", ALL, ids=lambda context: context.command_path)
def test_a_page_says_all_that_help_says(context: click.Context) -> None:
    source = page(context)
    words = plain(source)
    for each in context.command.get_params(context):
        record = each.get_help_record(context)
        if record is not None and record[1]:
            assert " ".join(record[0].split()) in words
            assert " ".join(record[1].split()) in words
    for text in (context.command.help, context.command.epilog):
        for line in (text or "").replace("\b", "").splitlines():
            shown = " ".join(line.split())
            assert shown in words or shown.removesuffix(":").upper() in words
    # Nothing of a help text is taken for a request.
    assert {line.split(" ")[0] for line in source.splitlines() if line.startswith((".", "'"))} <= {
        ".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".nf", ".fi"
    }  # fmt: skip


def test_the_first_page_has_the_commands_in_their_groups() -> None:
    lines = page(ALL[0]).splitlines()
    assert [line.removeprefix(".SS ") for line in lines if line.startswith(".SS ")] == list(SECTIONS)


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_a_page_is_shown_without_a_complaint_and_with_its_examples_as_they_are(tmp_path: Path) -> None:
    write_pages(tmp_path)
    files = sorted(map(str, tmp_path.iterdir()))
    done = subprocess.run(["groff", "-man", "-Tascii", "-P-c", "-ww", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    text = re.sub(".\b", "", done.stdout)
    assert "\n       kstore grep -E 'time(d )?out after [0-9]{4,} ms' data/orders-0\n" in text
    assert text.count("\nEXIT STATUS\n") > 20


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A checkout whose compiled modules stand for those that a build has just made."""
    pytest.importorskip("setuptools")
    for name in ("kstore", "pyspark_kstore"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.c"))
    (tmp_path / "tools").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tools/man.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "setup.cfg").write_text("[build]\nbuild_lib = .\n")
    return tmp_path


def install_data(sources: Path) -> tuple[list[str], str]:
    """The pages that an installation from ``sources`` brings, and what was said."""
    command = [sys.executable, "setup.py", "install_data", "--install-dir", "out"]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return sorted(path.name for path in sources.glob("out/share/man/man1/*")), done.stdout + done.stderr


def test_an_installation_brings_the_pages_of_what_was_built(sources: Path) -> None:
    verify = sources / "kstore" / "cli" / "verify.py"
    verify.write_text(verify.read_text().replace("Read every file of the logs", "Read each file of the logs"))
    names, _ = install_data(sources)
    assert names == sorted(name for name, _ in pages())
    text = (sources / "out" / "share" / "man" / "man1" / "kstore-verify.1").read_text()
    assert "Read each file of the logs" in text


@pytest.mark.long
def test_an_installation_that_cannot_make_pages_says_why_and_goes_on(sources: Path) -> None:
    verify = sources / "kstore" / "cli" / "verify.py"
    verify.write_text("import a_module_that_is_not_there\n")
    names, said = install_data(sources)
    assert names == []
    assert "there will be no man pages: ModuleNotFoundError: No module named 'a_module_that_is_not_there'" in said
