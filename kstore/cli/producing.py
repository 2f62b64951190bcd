"""What commands that send share: their options, a producer of a store with its topic, and a limit of their speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from kstore.cli.options import durability_option, parse_settings
from kstore.clock import SYSTEM_CLOCK, Clock
from kstore.errors import ConfigError, TopicNotFoundError
from kstore.files.paths import validate_topic
from kstore.producer.config import ProducerConfig
from kstore.producer.producer import Producer
from kstore.store import Store
from kstore.types import Durability

F = TypeVar("F", bound=Callable[..., Any])

# Their values are text, even if they look like numbers.
NAMES = ("client_id", "transactional_id")
# A command sends bytes, and a command line cannot name an object.
OBJECTS = {"key_serializer", "value_serializer", "interceptors"}
# A delayed run may catch up on at most this much of what it missed.
CATCH_UP_SECONDS: Final = 0.1


def store_options(function: F) -> F:
    """Adds the options that say how to open the store, and whether to create the topic."""
    for option in reversed(
        (
            click.option("--create-topic", is_flag=True, help="Create the topic and the store if they do not exist."),
            click.option(
                "--partitions",
                type=click.IntRange(1),
                metavar="N",
                help="The number of partitions of a created topic; 1 by default.",
            ),
            durability_option("When a batch counts as written, with acks=all: on disk (sync), or in the page cache."),
        )
    ):
        function = option(function)
    return function


def parse_producer_settings(configs: Iterable[str]) -> dict[str, Any]:
    """The producer's settings from the command line, checked. Raises: click.UsageError."""
    settings = parse_settings(configs, texts=NAMES)
    if unfit := OBJECTS & settings.keys():
        raise click.UsageError(f"--config {min(unfit)}: records are sent as plain bytes")
    try:
        ProducerConfig.from_settings(**settings)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return settings


@contextmanager
def opened_producer(
    directory: str,
    topic: str,
    settings: dict[str, Any],
    *,
    create_topic: bool,
    partitions: int | None,
    durability: Durability,
) -> Iterator[tuple[Producer, int]]:
    """A producer of the store in ``directory``, and ``topic``'s partition count; both are closed afterwards.

    Raises: click.UsageError, TopicNotFoundError, and as ``Store``.
    """
    if partitions is not None and not create_topic:
        raise click.UsageError("--partitions needs --create-topic")
    if create_topic:
        validate_topic(topic)  # before there is a store: a mistyped name creates none
    with Store(directory, create=create_topic, durability=durability) as store:
        # A missing topic cannot appear: this process has the store's lock.
        if topic not in store.topics():
            if not create_topic:
                raise TopicNotFoundError(f"{directory}: there is no topic {topic}; --create-topic creates it")
            store.create_topic(topic, partitions or 1)
        with store.producer(**settings) as producer:
            yield producer, store.partitions(topic)[-1] + 1


class Pace:
    """Limits a run to a number of records a second; None: no limit. Not thread-safe."""

    def __init__(
        self,
        per_second: float | None,
        clock: Clock = SYSTEM_CLOCK,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Raises: ConfigError."""
        if per_second is not None and not per_second > 0:
            raise ConfigError(f"{per_second} records a second, expected more than 0")
        self.per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock.monotonic()

    def wait_for(self, count: int) -> None:
        """Waits until ``count`` more records may be sent. If it is interrupted, they are not sent."""
        if self.per_second is None:
            return
        due = max(self._due, self._clock.monotonic() - CATCH_UP_SECONDS)
        while (seconds := due - self._clock.monotonic()) > 0:
            self._sleep(seconds)
        self._due = due + count / self.per_second
