"""Writes kstore/settings.py, from the tables of rules: ``python -m tools.typed_settings``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from kstore import config
from kstore.consumer import config as consumer_config
from kstore.producer import config as producer_config
from kstore.queue import config as queue_config
from kstore.setting_rules import SIZE, TIME, Rule

PATH = Path(__file__).parent.parent / "kstore" / "settings.py"

# Accepted types that a field's own type does not show.
ACCEPTED = {
    "acks": 'Literal["all", "-1", "1", "0"] | int',
    "cleanup_policy": "CleanupPolicy | list[str] | tuple[str, ...] | set[str] | frozenset[str]",
    "delivery_timeout_ms": "Time | None",
    "enable_idempotence": "bool | None",
    "file_mode": "int | str",
    "interceptors": "Iterable[Any]",
    "retention_groups": "str | Iterable[str]",
}
# A queue's durability may be '', for the store's.
QUEUE_ACCEPTED = {"durability": 'Durability | Literal[""]'}

HEAD = '''"""The settings of each call that takes some, for type checkers and editors.

Generated from the tables of rules by ``python -m tools.typed_settings``; a test holds both together.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict

from kstore.config import CleanupPolicy, CompressionType
from kstore.types import Durability, IsolationLevel, TimestampType

__all__ = [
    "ConsumerSettings",
    "LogSettings",
    "ProducerSettings",
    "QueueSettings",
    "StoreSettings",
    "TopicSettings",
]

# Bytes, or text like "64MiB"; ms, or text like "7d".
Size: TypeAlias = int | str
Time: TypeAlias = int | str | timedelta
'''

TOPIC = '''class TopicSettings(LogSettings, total=False):
    """Settings of a topic."""

    durability: Durability
'''


def text() -> str:
    """The source of the module, not formatted."""
    parts = [
        HEAD,
        _typed_dict("LogSettings", "of a log; LogConfig explains them", config.LogConfig, config.RULES),
        TOPIC,
        _typed_dict(
            "StoreSettings",
            "of a store, and the defaults of its topics",
            config.StoreConfig,
            config.STORE_RULES,
            base="LogSettings",
        ),
        _typed_dict("ProducerSettings", "of a producer", producer_config.ProducerConfig, producer_config.RULES),
        _typed_dict("ConsumerSettings", "of a consumer", consumer_config.ConsumerConfig, consumer_config.RULES),
        _typed_dict("QueueSettings", "of a queue", queue_config.QueueConfig, queue_config.RULES, QUEUE_ACCEPTED),
    ]
    return "\n\n".join(parts)


def formatted(source: str) -> str:
    """As ``make format`` leaves it."""
    command = [sys.executable, "-m", "ruff", "format", "-q", "--line-length", "120", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def _typed_dict(
    name: str,
    of: str,
    config_type: type,
    rules: Mapping[str, Rule],
    accepted: Mapping[str, str] = ACCEPTED,
    base: str = "TypedDict",
) -> str:
    lines = [f"class {name}({base}, total=False):", f'    """Settings {of}."""', ""]
    for row in fields(config_type):
        lines.append(f"    {row.name}: {accepted.get(row.name) or _type_of(str(row.type), rules[row.name])}")
    return "\n".join(lines) + "\n"


def _type_of(declared: str, rule: Rule) -> str:
    found = NAMED.get(declared, declared)
    if declared == "int":
        found = "Size" if rule.expected.startswith(SIZE[1]) else "Time" if rule.expected.startswith(TIME[1]) else "int"
    return f"{found} | None" if " no limit" in rule.expected and "None" not in found else found


# Aliases from other modules, which kstore/settings.py could not import without loading them.
NAMED = {
    "ProducerCompression": 'Literal["none", "gzip", "snappy", "lz4", "zstd"]',
    "OffsetReset": 'Literal["earliest", "latest", "none"]',
}


if __name__ == "__main__":
    PATH.write_text(formatted(text()))
