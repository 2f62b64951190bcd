"""``EffectiveSettings``: the settings in effect for each topic of a store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from kstore.config import LogConfig
from kstore.errors import TopicNotFoundError
from kstore.files.paths import TopicPartition
from kstore.logs.directory import LogDirectory
from kstore.rules.internal_topics import TRANSACTION_STATE, is_internal, journal_of
from kstore.rules.topics import KEEP_EVERYTHING, TopicEntry, effective_settings
from kstore.types import Durability


class EffectiveSettings:
    """The settings in effect: a topic's own, and the store's for all others. Thread-safe."""

    def __init__(self, directory: LogDirectory, defaults: Mapping[str, Any], durability: Durability) -> None:
        """``defaults`` and ``durability`` are the store's; ``defaults`` were checked."""
        self.durability: Durability = durability
        self._directory = directory
        self._defaults = dict(defaults)
        # By topic: the effective settings, with the entry from which they were computed.
        self._known: dict[str, tuple[TopicEntry, tuple[LogConfig, Durability]]] = {}

    @property
    def defaults(self) -> LogConfig:
        """The settings of a topic without settings of its own."""
        return LogConfig.from_settings(**self._defaults)

    def of(self, owner: TopicPartition) -> tuple[LogConfig, Durability]:
        """The settings of the topic of a partition. Raises: TopicNotFoundError, ConfigError."""
        entry, numbers = self._directory.topic(owner.topic)
        if not _holds(numbers, owner.partition):
            raise TopicNotFoundError(f"topic {owner.topic} has no partition {owner.partition!r}")
        known = self._known.get(owner.topic)
        if known is None or known[0] is not entry:
            known = entry, self.effective(owner.topic, entry.settings)
            self._known[owner.topic] = known
        return known[1]

    def effective(self, name: str, own: Mapping[str, Any]) -> tuple[LogConfig, Durability]:
        """The settings of a topic with settings of its ``own``. Raises: ConfigError.

        The store's settings delete nothing from internal topics, nor from queues: those that came with a broker's
        directory have no settings of their own.
        """
        defaults = {**self._defaults, **KEEP_EVERYTHING} if self.is_kept(name) else self._defaults
        return effective_settings(defaults, own, self.default_durability(name))

    def is_kept(self, name: str) -> bool:
        """Whether a topic is internal, or a queue's, which frees its space itself and no sooner than its items are
        done."""
        return is_internal(name) or journal_of(name) in self._directory.topics

    def default_durability(self, name: str) -> Durability:
        """The durability of a topic without one of its own. The decisions of transactions must be on disk before they
        are carried out."""
        return "sync" if name == TRANSACTION_STATE.name else self.durability


def _holds(rising: Sequence[int], number: object) -> bool:
    """Whether ``number``, which a caller gave, is among ``rising`` ones: a bisection, since there may be thousands."""
    if not isinstance(number, int):
        return number in rising
    at = bisect_left(rising, number)
    return at < len(rising) and rising[at] == number
