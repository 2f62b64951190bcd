"""What an editor lists for an open log, store, producer, consumer and queue: what the documents describe, and no more.

A new name belongs here. Functions such as ``kstore.log.writer_of`` give the parts that only kstore's own layers use.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import kstore
from kstore.rules.deprecated import Deprecated

# What many have.
COMMON = {"close", "closed", "metrics"}
FACES = {
    "Log": COMMON
    | {"abort_transaction", "accept_loss", "append", "append_arrow", "append_batches", "append_many", "apply_retention"}
    | {"check", "compact", "delete_records", "end_offset", "end_transaction", "fetch", "flush", "get", "high_watermark"}
    | {"last_stable_offset", "offset_for_time", "path", "producers", "read", "read_only", "read_values", "recovery"}
    | {"refresh", "roll", "start_offset", "tail", "to_arrow", "to_arrow_batches", "to_pandas", "to_polars"}
    | {"transactions", "truncate_to", "verify"},
    "Store": COMMON
    | {"add_partitions", "alter_topic", "apply_retention", "backup", "checkpoint", "config", "consumer"}
    | {"consumer_offsets", "create_topic", "delete_topic", "describe_topic", "group_members", "ignored"}
    | {"live_consumers", "live_producers", "log", "log_metrics", "notes", "own_metrics", "partitions", "path"}
    | {"producer", "queue", "read_only", "run_due_tasks", "run_task", "status", "summary", "topic", "topics"},
    "Producer": COMMON
    | {"abort_transaction", "begin_transaction", "client_id", "commit_transaction", "config", "flush"}
    | {"init_transactions", "partitions_for", "send", "send_arrow", "send_many", "send_offsets", "store_path"}
    | {"topic_metrics", "transaction", "undelivered"},
    "Consumer": COMMON
    | {"assign", "assignment", "beginning_offsets", "client_id", "commit", "committed", "config", "current"}
    | {"end_offsets", "group", "group_metadata", "lag", "offsets_for_times", "partition_metrics", "partitions_for"}
    | {"pause", "paused", "poll", "position", "positions", "resume", "seek", "seek_to_beginning", "seek_to_committed"}
    | {"seek_to_end", "seek_to_time", "skip_damage", "store_path", "subscribe", "subscription", "to_arrow"}
    | {"unsubscribe", "values", "wakeup"},
    "Queue": {"close", "closed"}
    | {"accept_loss", "ack", "ack_many", "check", "config", "dead_letters", "empty", "extend", "fail", "full", "get"}
    | {"get_many", "get_nowait", "join", "leased", "maxsize", "nack", "name", "peek", "put", "put_many", "put_nowait"}
    | {"qsize", "retry_dead", "stats", "task_done"},
}


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    path = tmp_path_factory.mktemp("public")
    with kstore.open(path / "data", durability="os", background=False) as store:
        store.create_topic("t")
        with store.producer() as producer, store.consumer("t") as consumer:
            found = (store.log("t"), store, producer, consumer, store.queue("jobs"))
            yield {type(thing).__name__: thing for thing in found}


@pytest.mark.parametrize("name", FACES)
def test_an_editor_lists_what_users_call(things: dict[str, object], name: str) -> None:
    deprecated = {one for one, found in vars(type(things[name])).items() if isinstance(found, Deprecated)}
    assert {one for one in dir(things[name]) if not one.startswith("_")} - deprecated == FACES[name]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Log", "truncate_fully_and_start_at"), ("Log", "expire_producers"), ("Store", "coordinator")],
)
def test_a_name_that_only_kstore_uses_works_with_a_warning(things: dict[str, object], kind: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{kind}.{name} is for kstore's own use") as caught:
        assert getattr(things[kind], name)
    assert caught[0].filename == __file__
