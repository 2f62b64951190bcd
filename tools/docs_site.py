"""The pages of the documentation site that are not in docs/, as a hook of mkdocs (``make docs``).

The documents at the top of the repository become pages. The reference of the commands comes from click, that of the
settings from the tables of rules; the API reference lists what is public, and mkdocstrings fills it in.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import kstore
from kstore.cli.main import cli
from kstore.config import settings, store_settings
from kstore.consumer.config import consumer_settings
from kstore.producer.config import producer_settings
from kstore.queue.config import queue_settings
from kstore.setting_rules import Setting

ROOT = Path(__file__).resolve().parent.parent
# Documents outside docs/, and their pages.
DOCUMENTS = {
    "README.md": "index.md",
    "BENCHMARKS.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "DESIGN.md": "design.md",
    "FORMAT.md": "format.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
    "tests/README.md": "tests.md",
    "tests/kafka_cases.md": "kafka_cases.md",
}
# The pages of the API reference. Errors have their own page.
API = {
    "reference/log.md": (
        "Logs",
        [
            *("Log", "Record", "AppendInfo", "RecoveryReport", "CutRange", "CorruptRange", "FetchSlice"),
            *("parse_batches", "RecordError", "OpenTransaction", "ProducerInfo", "TimePoint"),
        ],
    ),
    "reference/store.md": (
        "Stores",
        [
            *("open", "Store", "TopicPartition", "StoreStatus"),
            *("TopicDescription", "TopicSummary", "PartitionDescription"),
        ],
    ),
    "reference/producer.md": (
        "Producers",
        ["Producer", "ProducerRecord", "Delivery", "Deliveries", "RecordMetadata", "MockProducer"],
    ),
    "reference/consumer.md": ("Consumers", ["Consumer", "ConsumerRecord", "OffsetAndMetadata"]),
    "reference/queue.md": ("Queues", ["Queue", "Job", "LeasedItem", "QueueStats"]),
    "reference/door.md": ("Door", ["Door"]),
    "reference/backup.md": (
        "Backups",
        ["restore", "RestoreResult", "check_backups", "CheckedBackup", "BackupResult", "Replicator"],
    ),
    "reference/report.md": ("Reports", ["report", "Report"]),
}
# Modules whose ``__all__`` is public too.
DOORS = {
    "reference/aio.md": "kstore.aio",
    "reference/spark.md": "kstore.spark",
    "reference/metrics.md": "kstore.metrics",
    "reference/segment.md": "kstore.segment",
    "reference/index.md": "kstore.index",
}
TABLES: dict[str, Callable[[], tuple[Setting, ...]]] = {
    "A log, or a topic": settings,
    "A store": store_settings,
    "A producer": producer_settings,
    "A consumer": consumer_settings,
    "A queue": queue_settings,
}
# Wide enough for the examples, and the same on every machine.
WIDTH = {"terminal_width": 100, "max_content_width": 100}
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


# --- what is generated ------------------------------------------------------------------------------------------------


def errors() -> list[str]:
    """The public exceptions, each after its bases."""
    found = {name: getattr(kstore, name) for name in kstore.__all__ if is_error(getattr(kstore, name))}
    return sorted(found, key=lambda name: (sum(issubclass(found[name], other) for other in found.values()), name))


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def api_page(title: str, names: list[str], module: str = "kstore", *, members: bool = True) -> str:
    options = "" if members else "    options:\n      members: false\n"
    entries = "\n".join(f"::: {module}.{name}\n{options}" for name in names)
    return f"# {title}\n\n{entries}"


def commands_page() -> str:
    parts = [
        "# Commands\n",
        "The help of every command. [The command line](../commands.md) shows them at work.\n",
    ]
    for words, command in every_command(["kstore"], cli):
        context = command.context_class(command, info_name=" ".join(words), **{**command.context_settings, **WIDTH})
        heading = "##" if len(words) < 3 else "###"
        parts.append(f"{heading} {' '.join(words)}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)


def every_command(words: list[str], command: click.Command) -> Iterator[tuple[list[str], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            assert member is not None
            yield from every_command([*words, name], member)


def settings_page() -> str:
    parts = [
        "# Settings\n",
        "Below each name is Kafka's own, if Kafka has the setting. Sizes are bytes, or text with a unit (`64MiB`). "
        "Times are milliseconds, text (`7d`), or a timedelta.\n",
    ]
    for title, table in TABLES.items():
        parts.append(f"## {title}\n\n| setting | default | what it does, and what it takes |\n|---|---|---|")
        for row in table():
            name = f"`{row.name}`" + (f"<br>`{row.kafka_name}`" if row.kafka_name else "")
            parts.append(f"| {name} | `{row.default!r}` | {row.doc}<br>*{row.expected}* |")
        parts.append("")
    return "\n".join(parts)


def examples_page() -> str:
    parts = [(ROOT / "examples" / "README.md").read_text(encoding="utf-8")]
    for path in sorted((ROOT / "examples").glob("*.py")):
        parts.append(f"## {path.name}\n\n```python\n{path.read_text(encoding='utf-8').rstrip()}\n```\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """The text of each page that is not in docs/, by its place in the site."""
    found = {page: (ROOT / name).read_text(encoding="utf-8") for name, page in DOCUMENTS.items()}
    found["examples.md"] = examples_page()
    found["reference/commands.md"] = commands_page()
    found["reference/settings.md"] = settings_page()
    found["reference/errors.md"] = api_page("Errors", errors(), members=False)
    found |= {page: api_page(*entry) for page, entry in API.items()}
    for page, module in DOORS.items():
        found[page] = api_page(module, import_module(module).__all__, module)
    return found


# --- links ------------------------------------------------------------------------------------------------------------


def relinked(text: str, page: str) -> str:
    """``text`` with its links between files of the repository turned into links between pages of the site."""
    if page.startswith("reference/"):
        return text
    sources = {place: name for name, place in DOCUMENTS.items()}
    folder = posixpath.dirname(sources.get(page, f"docs/{page}"))

    def replaced(match: re.Match[str]) -> str:
        name = posixpath.normpath(posixpath.join(folder, match[1]))
        if name.startswith("examples/") and name.endswith(".py"):
            target = f"examples.md#{posixpath.basename(name).replace('.', '')}"
        else:
            target = DOCUMENTS.get(name) or name.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page) or ".")

    return LINK.sub(replaced, text)


# --- what mkdocs calls ------------------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    """Headings get the anchors that they have on GitHub."""
    from pymdownx.slugs import slugify

    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for page, text in pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    return relinked(markdown, page.file.src_uri)
