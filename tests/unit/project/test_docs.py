"""The documents are true: examples run, and names, sizes and constants are the code's."""

from __future__ import annotations

import inspect
import re
import runpy
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click
import pytest

import kstore
from kstore.cli.main import COMMANDS
from kstore.config import LogConfig, settings, store_settings
from kstore.consumer.config import consumer_settings
from kstore.consumer.wanted import RebalanceListener
from kstore.engine.read.fetch import FetchSlice
from kstore.files.local import SYSTEM_FS
from kstore.indexes import offset_index, time_index, transaction_index
from kstore.log import Log
from kstore.producer.config import producer_settings
from kstore.producer.partitioner import Partitioner
from kstore.record import batch, control, legacy
from kstore.record.batch import LOG_OVERHEAD_BYTES
from kstore.record.compression import CODECS, LZ4_FRAME_MAGIC, SNAPPY_HEADER
from kstore.state import log_state, producer_snapshot, roll_slot
from kstore.types import DURABILITIES
from tools.release.readme import code_blocks as code_blocks
from tools.release.readme import said_by

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/*.md")])
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The README with the guides to a log and a store.
GUIDES = README + "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("log.md", "store.md"))
GUIDE = (ROOT / "docs" / "producer.md").read_text(encoding="utf-8")
CONSUMER_GUIDE = (ROOT / "docs" / "consumer.md").read_text(encoding="utf-8")
FORMAT = (ROOT / "FORMAT.md").read_text(encoding="utf-8")

Field = tuple[int, int, str]


def section(text: str, heading: str) -> str:
    """The text below a heading, up to the next one."""
    match = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no heading {heading!r}"
    return match[1]


def rows(text: str) -> list[list[str]]:
    """The cells of every row of the tables in ``text``."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def layout(heading: str) -> list[Field]:
    """Position, size and name of each field of fixed size in a table of FORMAT.md."""
    table = [cells for cells in rows(section(FORMAT, heading)) if cells[0].isdigit() and cells[1].isdigit()]
    return [(int(at), int(size), name) for at, size, name, *_ in table]


def assert_contiguous(fields: list[Field], end: int) -> None:
    expected = 0
    for at, size, name in fields:
        assert at == expected, f"{name} is said to be at {at}, expected {expected}"
        expected += size
    assert expected == end


def sizes(packed: struct.Struct) -> list[int]:
    """The size of each field of a struct without padding."""
    codes = re.findall(r"\d+s|[a-zA-Z]", packed.format[1:])
    return [struct.calcsize(">" + code) for code in codes]


def int_sizes(text: str) -> list[int]:
    """The sizes of the integers that a text names, such as "int32"."""
    return [int(bits) // 8 for bits in re.findall(r"\bu?int(16|32|64)\b", text)]


def printed(
    code: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """What a guide's program prints in an empty directory. It must also run a second time there, with other offsets."""
    (directory / "example.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(directory)
    runpy.run_path("example.py")
    lines = capsys.readouterr().out.splitlines()
    runpy.run_path("example.py")
    assert capsys.readouterr().out
    return lines


# --- README.md --------------------------------------------------------------------------------------------------------


def test_the_readme_s_examples_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [block for block in code_blocks(README, "python") if "kstore.spark" not in block]
    assert len(blocks) == 2
    # A print without a comment would be a line too many.
    assert printed("\n\n".join(blocks), tmp_path, monkeypatch, capsys) == said_by(blocks)


# Those of the guides tell one story; each section of these also runs alone.
SECTIONS = [
    (name, heading)
    for name, headings in {
        "README.md": re.findall("^## (.*)$", README, re.MULTILINE),
        "docs/asyncio.md": ["Sends", "Appends", "A queue", "Cancelling"],
    }.items()
    for heading in headings
    if "```python" in section((ROOT / name).read_text(encoding="utf-8"), heading) and heading != "Spark"
]


@pytest.mark.parametrize(("name", "heading"), SECTIONS)
def test_a_block_that_begins_a_section_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, heading: str
) -> None:
    assert len(SECTIONS) == 6
    first = code_blocks(section((ROOT / name).read_text(encoding="utf-8"), heading), "python")[0]
    assert len(printed(first, tmp_path, monkeypatch, capsys)) >= first.count("print(")


# In each of these every section begins with a program of its own.
ALONE = [
    (name, heading)
    for name in ("asyncio.md", "backup.md", "columns.md", "consumer.md", "first_steps.md", "producer.md", "queue.md")
    for heading in re.findall("^## (.*)$", (ROOT / "docs" / name).read_text(encoding="utf-8"), re.MULTILINE)
    if "```python" in section((ROOT / "docs" / name).read_text(encoding="utf-8"), heading)
]


@pytest.mark.parametrize(("name", "heading"), ALONE)
def test_a_section_of_a_guide_begins_with_a_program_that_prints_what_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, heading: str
) -> None:
    assert len(ALONE) > 20
    first = code_blocks(section((ROOT / "docs" / name).read_text(encoding="utf-8"), heading), "python")[0]
    for other in ("persistqueue", "pyarrow"):
        if f"import {other}" in first or (other == "pyarrow" and "arrow" in first):
            pytest.importorskip(other)
    if "shared=True" in first and sys.platform != "linux":
        pytest.skip("stores are shared on Linux")
    at_exit: list[Callable[[], None]] = []
    monkeypatch.setattr("atexit.register", at_exit.append)
    monkeypatch.chdir(tmp_path)
    Path("example.py").write_text(first, encoding="utf-8")
    names = runpy.run_path("example.py")
    for close in at_exit:
        close()
    for left in ("producer", "store"):  # of a section whose next block goes on
        if left in names:
            names[left].close()
    said = re.findall(r"# -> (.*)", first)
    lines = capsys.readouterr().out.splitlines()
    assert lines == said if said else len(lines) >= first.count("print(")


@pytest.mark.parametrize("name", ["first_steps.md", "log.md", "store.md", "kafka_clients.md"])
def test_a_guide_s_examples_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    blocks = code_blocks((ROOT / "docs" / name).read_text(encoding="utf-8"), "python")
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert len(said) == sum(block.count("print(") for block in blocks)
    assert printed("\n\n".join(blocks), tmp_path, monkeypatch, capsys) == said


def test_names_in_the_readme_and_its_first_guides_are_settings_or_parts_of_the_library() -> None:
    known = (
        {setting.name for setting in (*settings(), *store_settings(), *producer_settings())}
        | set(dir(kstore))
        | set(dir(Log))
        | set(dir(FetchSlice))
    )
    for method in (
        Log,
        Log.append,
        Log.append_many,
        Log.append_batches,
        Log.read,
        Log.fetch,
        kstore.Store.create_topic,
    ):
        known |= set(inspect.signature(method).parameters)
    known |= {"read_committed", "read_uncommitted"}
    known |= set(dir(kstore.Store)) | {"file_delete_delay_ms", "retention_bytes_total"}
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", GUIDES, flags=re.DOTALL))
    named = {name for span in spans for name in re.findall(r"(?<![\w/.=-])[a-z]+(?:_[a-z]+)+\b(?!/|\.)", span)}
    assert {"segment_bytes", "append_batches", "on_corrupt", "flush_ms"} <= named
    assert named - known == set()


def test_settings_in_the_guides_are_taken_as_they_are_written() -> None:
    found = dict(re.findall(r'`(\w+)="([^"]+)"`', GUIDES))
    assert {"segment_bytes", "compression_type"} <= set(found)
    LogConfig.from_settings(**found)


def test_the_durabilities_of_the_readme_are_those_that_there_are() -> None:
    named = [cells[0] for cells in rows(section(README, "What it promises")) if cells[0].startswith('`"')]
    assert [re.findall(r'`"(\w+)"`', cell) for cell in named] == [[name] for name in DURABILITIES]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_and_their_options_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    code = [*code_blocks(text, "(?:sh)?"), *re.findall(r"`(kstore [^`]+)`", text)]
    for line in "\n".join(code).splitlines():
        for call in re.split(r"\s{3,}|\|", line.partition("#")[0]):
            match = re.match(r"\s*kstore ([a-z-]+)(.*)", call)
            if match is None:
                continue
            name, rest = match.groups()
            assert name in COMMANDS, f"{call!r}: no command {name!r}"
            command = import_module(COMMANDS[name][0]).command
            assert isinstance(command, click.Command)
            if isinstance(command, click.Group):
                member, _, rest = rest.strip().partition(" ")
                found = command.get_command(click.Context(command), member)
                assert found is not None, f"{call!r}: {name} has no {member!r}"
                command = found
            if command.ignore_unknown_options:
                continue
            options = {
                option
                for parameter in command.params
                for option in (*parameter.opts, *parameter.secondary_opts)
                # Only the changelog speaks of old spellings.
                if document.name == "CHANGELOG.md" or not getattr(parameter, "hidden", False)
            }
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
                assert option in options | {"--help"}, f"{call!r}: {name} has no {option}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_file_that_the_readme_and_the_map_of_kafka_name_is_there() -> None:
    table = (ROOT / "docs" / "kafka.md").read_text(encoding="utf-8")
    named = re.findall(r"`(?:kstore/)?([\w/]+\.py)`", section(README, "Reading the code"))
    named += re.findall(r"`([a-z]\w*(?:/\w*)?(?:\.pyx?|/))`", table)
    assert len(named) > 30
    for name in named:
        assert (ROOT / "kstore" / name).exists(), f"kstore/{name} is not there"


# --- docs/producer.md -------------------------------------------------------------------------------------------------


def test_the_guide_s_examples_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = code_blocks(GUIDE, "python")
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert len(said) == sum(block.count("print(") for block in blocks)
    assert printed("\n\n".join(blocks), tmp_path, monkeypatch, capsys) == said


def test_the_guide_s_settings_are_those_that_there_are() -> None:
    table = [cells for cells in rows(section(GUIDE, "Settings")) if cells[0].startswith("`")]
    assert table == [
        [f"`{row.name}`", f"`{row.kafka_name}`", f"`{row.default!r}`", row.doc] for row in producer_settings()
    ]


def test_names_in_the_guide_are_settings_or_parts_of_the_library() -> None:
    known = {row.name for row in producer_settings()} | set(dir(kstore)) | set(dir(kstore.Producer)) | set(dir(Log))
    known |= set(dir(kstore.Store)) | set(dir(kstore.Delivery)) | set(dir(kstore.RecordMetadata)) | {"read_committed"}
    known |= set(inspect.signature(Partitioner.partition).parameters)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL))
    named = {name for span in spans for name in re.findall(r"(?<![\w/.=\"-])[A-Za-z]+(?:_[a-z]+)+\b(?!/|\.)", span)}
    named |= {name for span in spans for name in re.findall(r"\b[A-Z]\w+Error\b", span)}
    assert {"linger_ms", "send_arrow", "send_offsets", "DeliveryTimeoutError"} <= named
    assert named - known == set()


# --- docs/consumer.md -------------------------------------------------------------------------------------------------


def test_the_consumer_guide_s_examples_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = code_blocks(CONSUMER_GUIDE, "python")
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert len(said) == sum(block.count("print(") for block in blocks)
    assert printed("\n\n".join(blocks), tmp_path, monkeypatch, capsys) == said


def test_the_consumer_guide_s_settings_are_those_that_there_are() -> None:
    table = [cells for cells in rows(section(CONSUMER_GUIDE, "Settings")) if cells[0].startswith("`")]
    assert table == [
        [f"`{row.name}`", f"`{row.kafka_name}`" if row.kafka_name else "", f"`{row.default!r}`", row.doc]
        for row in consumer_settings()
    ]


def test_names_in_the_consumer_guide_are_settings_or_parts_of_the_library() -> None:
    known = {row.name for row in (*consumer_settings(), *settings())} | set(dir(kstore)) | set(dir(kstore.Consumer))
    known |= set(dir(kstore.Store)) | set(dir(RebalanceListener)) | {"read_committed", "round_robin", "max_records"}
    text = re.sub(r"```.*?```", "", CONSUMER_GUIDE, flags=re.DOTALL)
    spans = re.findall(r"`([^`\n]+)`", text.partition("## Settings")[0])
    named = {name for span in spans for name in re.findall(r"(?<![\w/.=\"-])[A-Za-z]+(?:_[a-z]+)+\b(?!/|\.)", span)}
    named |= {name for span in spans for name in re.findall(r"\b[A-Z]\w+Error\b", span)}
    assert {"seek_to_time", "max_poll_interval_ms", "CommitFailedError", "retention_groups"} <= named
    assert named - known == set()


# --- FORMAT.md --------------------------------------------------------------------------------------------------------


def test_the_table_of_the_batch_header_is_its_struct() -> None:
    fields = layout("Record batch, version 2")
    assert_contiguous(fields, batch.BATCH_HEADER_BYTES)
    assert [size for _, size, _ in fields] == sizes(batch.BATCH_HEADER)
    assert tuple(name for _, _, name in fields) == batch.BatchHeader._fields
    assert next(at + size for at, size, name in fields if name == "crc") == batch.CRC_START
    prefix = layout("The prefix that all entries of a `.log` share")
    assert [(at, size) for at, size, _ in prefix] == [(0, 8), (8, 4), (12, 4), (16, 1)]


def test_the_bits_of_the_attributes_are_those_of_the_code() -> None:
    row = next(cells for cells in rows(section(FORMAT, "Record batch, version 2")) if cells[2] == "attributes")
    bits = {name: int(bit) for bit, name in re.findall(r"(\d) ([a-z][a-z ]+)", row[3].replace("0-2 codec", ""))}
    assert {name: 1 << bit for name, bit in bits.items()} == {
        "timestamp type": batch.ATTRIBUTE_LOG_APPEND_TIME,
        "transactional": batch.ATTRIBUTE_TRANSACTIONAL,
        "control": batch.ATTRIBUTE_CONTROL,
        "delete horizon": batch.ATTRIBUTE_DELETE_HORIZON,
    }
    assert batch.ATTRIBUTE_CODEC == 0b111


def test_the_example_of_a_batch_is_one() -> None:
    lines = re.findall(r"^    ([0-9a-f ]+)$", section(FORMAT, "Record batch, version 2"), re.MULTILINE)
    data = bytes.fromhex("".join(lines).replace(" ", ""))
    (found,) = kstore.parse_batches(data)
    found.ensure_valid()
    (record,) = found.records()
    assert (len(data), record.offset, record.timestamp, record.key, record.value, record.headers) == (
        78,
        0,
        1_700_000_000_000,
        b"k",
        b"hello",
        (("h", b"\x01"),),
    )


def test_the_table_of_old_messages_fits_the_prefix_in_the_code() -> None:
    fields = layout("Message sets, versions 0 and 1")
    assert fields[:4] == [(0, 12, "offset, size"), (12, 4, "crc"), (16, 1, "magic"), (17, 1, "attributes")]
    assert (fields[0][1], fields[4][0]) == (LOG_OVERHEAD_BYTES, legacy.PREFIX_BYTES)


def test_the_table_of_codecs_is_that_of_the_code() -> None:
    table = {int(cells[0]): cells for cells in rows(section(FORMAT, "Compression")) if cells[0].isdigit()}
    assert {id: cells[1] for id, cells in table.items()} == {codec.id: codec.name for codec in CODECS}
    assert f"`{SNAPPY_HEADER[:8].hex()}`, int32 1, int32 1" in table[2][2]
    assert f"`{LZ4_FRAME_MAGIC.hex()} " in table[3][2]


def test_the_control_records_are_those_of_the_code() -> None:
    text = " ".join(section(FORMAT, "Control batches").split())
    for kind in (control.ControlRecordType.ABORT, control.ControlRecordType.COMMIT):
        assert f"{kind.value} {kind.name}" in text
    assert "version int16 (0), type int16" in text
    assert sizes(control.KEY) == [2, 2]
    assert "version int16 (0), coordinator epoch int32" in text
    assert sizes(control.END_TRANSACTION_VALUE) == [2, 4]


def test_index_entries_have_the_sizes_of_the_table() -> None:
    table = {cells[0].strip("`"): cells for cells in rows(section(FORMAT, "Indexes")) if cells[0].startswith("`")}
    assert {suffix: cells[1] for suffix, cells in table.items()} == {
        ".index": f"{offset_index.ENTRY.size} bytes",
        ".timeindex": f"{time_index.ENTRY.size} bytes",
        ".txnindex": f"{transaction_index.ENTRY.size} bytes",
    }


def test_the_producer_snapshot_is_that_of_the_code() -> None:
    text = section(FORMAT, "Producer snapshot")
    header, _, entry = text.partition("entries of")
    widths = {"int16": 2, "int32": 4, "uint32": 4, "int64": 8}
    assert [widths[name] for name in re.findall(r"\b(?:u?int\d\d)\b", header)] == sizes(
        producer_snapshot.SNAPSHOT_HEADER
    )
    assert entry.startswith(f" {producer_snapshot.SNAPSHOT_ENTRY.size} bytes")
    # "epoch int16" and so on: each field says its type.
    assert int_sizes(entry) == sizes(producer_snapshot.SNAPSHOT_ENTRY)
    assert len(int_sizes(entry)) == len(producer_snapshot.ProducerEntry._fields)
    assert f"int16 version {producer_snapshot.VERSION}," in text


def test_the_table_of_kstore_state_is_its_struct() -> None:
    fields = layout("kstore.state")
    assert_contiguous(fields, log_state.RECORD.size)
    assert [size for _, size, _ in fields] == sizes(log_state.RECORD)
    text = section(FORMAT, "kstore.state")
    assert f"`{log_state.MAGIC.decode()}`" in text
    assert text.split()[0] == str(log_state.FILE_SIZE)
    assert f"at {log_state.SLOTS_POSITION} two slots of {log_state.SLOT_SIZE}" in text
    assert f"`KST1` |\n| 4 | 2 | version | {log_state.VERSION} |" in text
    assert f"at most {log_state.LOST_MAX} |" in text
    assert f"at most {log_state.ACCEPTED_MAX} |" in text
    assert f"Live slot, at {log_state.LIVE_POSITION}: magic `{log_state.LIVE_MAGIC.decode()}`" in text
    assert f"CRC-32C of these {log_state.LIVE.size} bytes" in text
    durability = next(cells[3] for cells in rows(text) if cells[2] == "durability")
    assert durability.startswith(", ".join(f"{number} {name}" for number, name in enumerate(DURABILITIES)))


def test_the_table_of_the_roll_slot_is_its_struct() -> None:
    name = "The roll slot of kstore.state"
    fields = layout(name)
    assert_contiguous(fields, roll_slot.ROLLS_SIZE)
    bases_size = roll_slot.BASES_KEPT * 8
    assert [size for _, size, _ in fields] == [*sizes(roll_slot.SLOT)[:4], bases_size, roll_slot.CRC.size]
    assert section(FORMAT, name).strip().startswith(f"{roll_slot.ROLLS_SIZE} bytes at {roll_slot.ROLLS_POSITION},")
    assert f"`{roll_slot.MAGIC.decode()}`" in section(FORMAT, name)


def test_a_log_s_directory_holds_what_the_table_of_files_names(tmp_path: Path) -> None:
    with Log(tmp_path / "log") as log:
        log.append(b"x")
        log.roll()
    table = " ".join(cells[0] for cells in rows(FORMAT.partition("## ")[0]))
    for name in SYSTEM_FS.list(log.path):
        assert re.sub(r"^\d{20}", "<base>", name) in table, f"FORMAT.md does not name {name}"


# --- tests/README.md and tests/kafka_cases.md -------------------------------------------------------------------------


def test_every_test_that_the_inventory_names_is_there() -> None:
    text = "".join((ROOT / "tests" / name).read_text(encoding="utf-8") for name in ("README.md", "kafka_cases.md"))
    file = ""
    names = 0
    for path, name in re.findall(r"([\w/]+\.py)|::(test_\w+)", text):
        if path:
            file = path.removeprefix("tests/")
            continue
        names += 1
        candidates = [ROOT / "tests" / file, ROOT / "tests" / "unit" / file]
        source = next((each for each in candidates if each.exists()), None)
        assert source is not None, f"no {file}"
        assert f"def {name}(" in source.read_text(encoding="utf-8"), f"no {name} in {file}"
    assert names > 200
