"""A store's topics as values: their names, their settings, and the file that stores both.

``kstore.topics``, in the store's directory:

    line 1   kstore.topics 1 <CRC-32C of the rest, 8 hex digits>
    rest     JSON: {"<topic>": {"partitions": 4, "made": 4, "topic_id": "<22 characters>", "settings": {...}}}

The file decides whether a topic exists. ``made`` partitions certainly exist; those from ``made`` to ``partitions`` were
being created when the file was written, and the next process that opens the store continues. With ``"deleting": true``
a topic is deleted, whatever directories remain. A topic that has directories but no entry was created by a broker or by
a lone log, and is a topic like any other. ``"settings_lost": true`` marks a topic whose entry was in a damaged file:
until its settings are given again, nothing of it is deleted.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kstore.config import HINTS, RULES, LogConfig
from kstore.errors import ConfigError, CorruptFileError, PathLike
from kstore.files.checkpoint import CheckedText
from kstore.files.paths import PARTITION_MAX, validate_topic
from kstore.rules.arguments import one_of
from kstore.setting_rules import resolved
from kstore.types import DURABILITIES, Durability

KSTORE_TOPICS = "kstore.topics"
# Some hundred bytes for each topic, of which a store may have tens of thousands.
TOPICS_SIZE_MAX = 64 << 20
# Each is a directory, and one call creates them all.
PARTITIONS_MAX = 100_000

FORM = CheckedText("kstore.topics", 1)
FIELDS = frozenset({"partitions", "made", "topic_id", "settings", "deleting", "settings_lost"})
DURABILITY = "durability"
# The settings of a topic that lost its own, or that must keep everything, because the store's may delete more.
KEEP_EVERYTHING = {"cleanup_policy": "delete", "retention_bytes": -1, "retention_ms": -1}


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One topic; the module describes the fields. ``settings`` are the topic's own, without defaults."""

    partitions: int
    made: int
    topic_id: UUID | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    deleting: bool = False
    settings_lost: bool = False

    @property
    def is_made(self) -> bool:
        """Whether all its partitions certainly exist."""
        return self.made == self.partitions


# --- names ------------------------------------------------------------------------------------------------------------


def collision(name: str, others: Iterable[str]) -> str | None:
    """The topic among ``others`` that Kafka does not allow next to ``name``: metric names do not distinguish "." and
    "_"."""
    folded = name.replace(".", "_")
    if "_" not in folded:
        return None  # only names without either are equal to it, and so the same
    return next((other for other in others if other != name and other.replace(".", "_") == folded), None)


def check_partition_count(count: object) -> int:
    """Raises: ConfigError."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PARTITIONS_MAX:
        raise ConfigError(f"partitions is {count!r:.80}, expected an int from 1 to {PARTITIONS_MAX}")
    return count


# --- settings ---------------------------------------------------------------------------------------------------------


def kept_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A topic's ``settings`` as stored: each checked, sizes in bytes, times in ms. Raises: ConfigError."""
    own = dict(settings)
    durability = own.pop(DURABILITY, None)
    own = resolved(own, RULES, " of a topic", HINTS)
    config = LogConfig.from_settings(**own)
    kept = {name: getattr(config, name) for name in own}
    if durability is not None:
        one_of(DURABILITY, durability, DURABILITIES)
        kept[DURABILITY] = durability
    return kept


def effective_settings(
    defaults: Mapping[str, Any], own: Mapping[str, Any], durability: Durability
) -> tuple[LogConfig, Durability]:
    """The settings in effect for a topic: its own, else the store's. Settings of a later release are ignored.

    Raises: ConfigError if two of them contradict each other.
    """
    known = LogConfig.__dataclass_fields__
    merged = {**defaults, **{name: value for name, value in own.items() if name in known}}
    return LogConfig.from_settings(**merged), own.get(DURABILITY, durability)


# --- the file ---------------------------------------------------------------------------------------------------------


def format_topic_id(topic_id: UUID) -> str:
    """The id as Kafka's tools print it."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")


def encode_topics(topics: Mapping[str, TopicEntry]) -> bytes:
    """The content of ``kstore.topics``."""
    return TopicRows().encoded(topics)


class TopicRows:
    """The rows of the file that was last encoded: the next one has only those of changed entries encoded again.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._rows: Mapping[str, tuple[TopicEntry, str]] = {}

    def encoded(self, topics: Mapping[str, TopicEntry]) -> bytes:
        """As ``encode_topics``. An entry never changes: another one takes its place."""
        known = self._rows
        # No call for an unchanged entry: a store may have tens of thousands of topics.
        rows = {
            name: known[name] if name in known and known[name][0] is entry else (entry, _row(name, entry))
            for name, entry in topics.items()
        }
        self._rows = rows
        body = "{\n" + ",\n".join([rows[name][1] for name in sorted(rows)]) + "\n}\n" if rows else "{}\n"
        return FORM.encode(body.encode("ascii"))


def _row(name: str, entry: TopicEntry) -> str:
    row: dict[str, object] = {"partitions": entry.partitions, "made": entry.made}
    if entry.topic_id is not None:
        row["topic_id"] = format_topic_id(entry.topic_id)
    if entry.settings:
        row["settings"] = dict(entry.settings)
    if entry.deleting:
        row["deleting"] = True
    if entry.settings_lost:
        row["settings_lost"] = True
    return json.dumps({name: row}, indent=1, sort_keys=True).removeprefix("{\n").removesuffix("\n}")


def decode_topics(data: bytes, path: PathLike) -> dict[str, TopicEntry]:
    """The topics in a file's content.

    Raises: CorruptFileError for anything else; UnsupportedFormatError for a later version.
    """
    body = FORM.decode(data, path)
    try:
        rows = json.loads(body)
        return {validate_topic(name): _entry(row) for name, row in rows.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise CorruptFileError(f"not the topics of a store: {error}", path=path) from error


def _entry(row: Mapping[str, Any]) -> TopicEntry:
    if unknown := set(row) - FIELDS:
        raise ValueError(f"fields {sorted(unknown)}")
    partitions, made, settings = row["partitions"], row["made"], row.get("settings", {})
    counts = (type(partitions) is int and type(made) is int) and 0 <= made <= partitions <= PARTITION_MAX
    marks = row.get("deleting", False), row.get("settings_lost", False)
    if not counts or not isinstance(settings, dict) or not all(isinstance(mark, bool) for mark in marks):
        raise ValueError("an invalid field")
    if settings.get(DURABILITY, "sync") not in DURABILITIES:
        raise ValueError("an invalid durability")
    topic_id = row.get("topic_id")
    try:
        parsed = None if topic_id is None else UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
    except binascii.Error as error:
        raise ValueError("a topic id that is not base64") from error
    return TopicEntry(partitions, made, parsed, settings, *marks)
