"""A store for tasks: opened, closed, its topics, its guide."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import kstore
import kstore.aio
from kstore.errors import (
    ClosedError,
    LockedError,
    TopicNotFoundError,
)
from tests.support.lives.aio_helpers import opened, run
from tests.unit.project.test_docs import printed


def test_a_store_is_opened_and_closed_by_its_block(tmp_path: Path) -> None:
    async def main() -> kstore.aio.Store:
        async with opened(tmp_path) as store:
            assert not store.closed
            assert await store.topics() == ["orders"]
            assert await store.partitions("orders") == [0]
        return store

    store = run(main())
    assert store.closed
    kstore.open(tmp_path / "data").close()  # the lock is free


def test_a_store_can_be_awaited_and_closed_twice(tmp_path: Path) -> None:
    async def main() -> None:
        store = await kstore.aio.open(tmp_path / "data")
        await store.close()
        await store.close()
        with pytest.raises(ClosedError):
            await store.topics()

    run(main())


def test_what_an_open_fails_with_is_raised(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(LockedError):
            await kstore.aio.open(tmp_path / "data")

    with kstore.open(tmp_path / "data"):
        run(main())


def test_an_open_that_is_cancelled_leaves_no_store_open(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.create_task(kstore.aio.open(tmp_path / "data"))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    run(main())
    kstore.open(tmp_path / "data").close()


def test_what_is_opened_can_be_a_task_of_its_own_as_a_coroutine_can(tmp_path: Path) -> None:
    async def main() -> None:
        store = await asyncio.create_task(kstore.aio.open(tmp_path / "data"))
        async with store, asyncio.TaskGroup() as group:
            queue = await group.create_task(store.queue("jobs"))
            getting = group.create_task(queue.get())
            given_up = group.create_task(queue.get())
            assert "Queue.get" in repr(getting)
            await asyncio.sleep(0)
            given_up.cancel()
            await queue.put(b"a")
            assert (await getting).value == b"a"
            queue.get().close()  # nothing was begun

    run(main())


def test_topics_are_made_altered_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.create_topic("more", 2, retention_bytes="1MiB")
            await store.create_topic("more", exist_ok=True)
            assert (await store.topic("more", 2)).partition_count == 2
            await store.add_partitions("more", 3)
            await store.alter_topic("more", retention_bytes=5)
            described = await store.describe_topic("more")
            assert (len(described.partitions), described.settings) == (3, {"retention_bytes": 5})
            await store.delete_topic("more")
            with pytest.raises(TopicNotFoundError):
                await store.partitions("more")
            assert "open_logs" in await store.metrics()
            await store.run(store.sync.checkpoint)

    run(main())


def test_a_topic_is_read_as_a_table_in_a_thread(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")

    async def main() -> None:
        async with kstore.aio.open(tmp_path) as store:
            await store.topic("orders", partitions=2)
            for number in range(2):
                await (await store.log("orders", number)).append(b"%d" % number)
            table = await store.to_arrow("orders", columns=["value"])
            assert table.to_pylist() == [
                {"topic": "orders", "partition": number, "value": b"%d" % number} for number in range(2)
            ]

    run(main())


def test_the_twin_comes_with_kstore_itself() -> None:
    assert kstore.__getattr__("aio") is kstore.aio
    with pytest.raises(AttributeError, match="nothing"):
        kstore.__getattr__("nothing")


def test_the_guide_s_examples_say_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "asyncio.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    said = re.findall(r"# -> (.*)", "\n".join(blocks))
    assert len(said) == sum(block.count("print(") for block in blocks) > 0
    assert printed("\n\n".join(blocks), tmp_path, monkeypatch, capsys) == said
