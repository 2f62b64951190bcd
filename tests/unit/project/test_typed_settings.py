"""The typed settings are those of the rules, and type checkers report misspelt ones."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, get_type_hints

import pytest

import kstore
from kstore import aio, config, settings
from kstore.consumer import config as consumer_config
from kstore.producer import config as producer_config
from kstore.queue import config as queue_config
from tools import typed_settings


def test_the_module_is_what_the_tool_writes() -> None:
    # Not their format, which make check checks.
    written, expected = (
        ast.unparse(ast.parse(source)) for source in (typed_settings.PATH.read_text(), typed_settings.text())
    )
    assert written == expected, "run: python -m tools.typed_settings"


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        pytest.param(settings.LogSettings, set(config.RULES), id="log"),
        pytest.param(settings.TopicSettings, {"durability", *config.RULES}, id="topic"),
        pytest.param(settings.StoreSettings, {*config.RULES, *config.STORE_RULES}, id="store"),
        pytest.param(settings.ProducerSettings, set(producer_config.RULES), id="producer"),
        pytest.param(settings.ConsumerSettings, set(consumer_config.RULES), id="consumer"),
        pytest.param(settings.QueueSettings, set(queue_config.RULES), id="queue"),
    ],
)
def test_every_setting_has_a_type(typed: type, names: set[str]) -> None:
    assert set(get_type_hints(typed)) == names


if TYPE_CHECKING:
    # mypy reports unneeded ignores, so each of these lines must be an error.
    kstore.Log("d", segment_byts=1)  # type: ignore[call-arg]
    kstore.Log("d", segment_bytes=1.5)  # type: ignore[arg-type]
    kstore.open("d", retention_mss=1)  # type: ignore[call-arg]
    kstore.open("d", shard=True)  # type: ignore[call-arg]
    kstore.open("d", compression_type="zip")  # type: ignore[arg-type]
    aio.open("d", retention_mss=1)  # type: ignore[call-arg]
    store = kstore.open("d", shared=True, retention_ms="7d", checkpoint_interval_ms=1)
    store.create_topic("t", retention_byts=1)  # type: ignore[call-arg]
    store.create_topic("t", durability="fsync")  # type: ignore[arg-type]
    store.topic("t", 1, segment_msec=1)  # type: ignore[call-arg]
    store.alter_topic("t", segment_msec=1)  # type: ignore[call-arg]
    store.producer(lingr_ms=5)  # type: ignore[call-arg]
    store.producer(linger_ms=1.5)  # type: ignore[arg-type]
    store.consumer("t", isolation_level="read_comitted")  # type: ignore[arg-type]
    store.consumer("t", group_id="g")  # type: ignore[call-arg]
    store.queue("jobs", lease_second=5)  # type: ignore[call-arg]
    for record in store.consumer("t"):
        print(record.topics)  # type: ignore[attr-defined]
