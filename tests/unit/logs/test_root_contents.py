"""What a store finds in its root while another process changes it."""

from __future__ import annotations

from pathlib import Path

from kstore.errors import PathLike
from kstore.logs.root import RootContents
from kstore.rules.topics import KSTORE_TOPICS, TopicEntry, encode_topics
from tests.support.fakes.fake_fs import WatchedFs


class CreatedWhileListed(WatchedFs):
    """Another process creates a topic: one of its directories before the first listing, the rest just after it."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root
        self.is_made = False

    def list(self, path: PathLike) -> list[str]:
        names = super().list(path)
        if not self.is_made:
            self.is_made = True
            for number in range(1, 4):
                (self.root / f"orders-{number}").mkdir()
            (self.root / KSTORE_TOPICS).write_bytes(encode_topics({"orders": TopicEntry(4, 4)}))
        return names


def test_a_topic_that_is_created_while_the_root_is_read_has_all_its_partitions(tmp_path: Path) -> None:
    (tmp_path / KSTORE_TOPICS).write_bytes(encode_topics({}))
    (tmp_path / "orders-0").mkdir()
    contents = RootContents(CreatedWhileListed(tmp_path), tmp_path, read_only=False)
    assert contents.topics["orders"].made == 4
    assert contents.partitions["orders"] == (0, 1, 2, 3)
    assert contents.notes == []
