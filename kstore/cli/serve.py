"""``kstore serve``: lets Kafka's clients in to a store, until Ctrl-C."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from kstore.cli.command import OK, KstoreCommand
from kstore.cli.interrupts import Interrupts, held_interrupts
from kstore.cli.options import DURABILITY, config_option, parse_settings
from kstore.door.config import DOOR_RULES, DoorConfig
from kstore.door.door import DEFAULT_PORT, Door
from kstore.errors import ConfigError
from kstore.setting_rules import resolved
from kstore.store import Store
from kstore.types import Durability

EXAMPLES = """
\b
Examples:
  kstore serve data                              clients connect to 127.0.0.1:9092
  kstore serve --port 0 --durability os data     any free port: the first line names it
  kstore serve --read-only /var/lib/kafka/data   a broker's own files, also alongside the running broker
  kstore serve --host 0.0.0.0 --insecure --advertise localhost:9092 /data     in a container
  kstore serve --config offsets_retention_minutes=10080 data     groups without members keep their offsets for a week

Only this machine can connect and, on Linux, only processes of this user. No other process may have DIRECTORY open for
writing, unless it is served with --read-only, which writes nothing to it. Ctrl-C, or SIGTERM, answers the requests that
have begun and closes the store.

\b
Exit status:
  0  ended by Ctrl-C or SIGTERM
  1  it failed, or another process writes to DIRECTORY
  2  bad usage
"""


@click.command("serve", cls=KstoreCommand, epilog=EXAMPLES, short_help="Let Kafka's clients in to a store.")
@click.argument("directory", metavar="DIRECTORY", type=click.Path())
@click.option("--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: any free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--advertise", metavar="HOST:PORT", help="Where clients reach it, if not where it listens.")
@click.option("--read-only", is_flag=True, help="Write nothing: no lock is taken, and a writer may be at work.")
@click.option("--no-admin", is_flag=True, help="Clients create, delete and change no topics.")
@click.option(
    "--partitions",
    type=click.IntRange(0, 10_000),
    default=1,
    show_default=True,
    help="Of a topic that a client creates by using its name; 0: none is created.",
)
@click.option("--any-user", is_flag=True, help="Every user of this machine may connect.")
@click.option("--insecure", is_flag=True, help="Listen on any --host: whoever connects may read and write everything.")
@config_option("door", "rebalance_delay_ms=3000 or group.initial.rebalance.delay.ms=3000")
@DURABILITY
def command(
    directory: str,
    port: int,
    host: str,
    advertise: str | None,
    read_only: bool,
    no_admin: bool,
    partitions: int,
    any_user: bool,
    insecure: bool,
    configs: tuple[str, ...],
    durability: Durability,
) -> int:
    """Serve the store in DIRECTORY to Kafka's clients, as a broker would. The store is created if it does not exist.

    It prints the address to connect to.
    """
    settings = {"auto_create_partitions": partitions, **_door_settings(configs)}
    logging.basicConfig(level=logging.WARNING, format="kstore: %(message)s")
    with (
        held_interrupts() as interrupts,
        _ended_by_sigterm(interrupts),
        Store(directory, read_only=read_only, durability=durability) as store,
        Door(
            store,
            host=host,
            port=port,
            advertised=advertise,
            admin=not no_admin,
            same_user=not any_user,
            insecure=insecure,
            **settings,
        ) as door,
    ):
        _announce(door, read_only=read_only)
        _wait(interrupts)
    return OK


def _door_settings(configs: Iterable[str]) -> dict[str, Any]:
    """The door's settings from the command line, checked. Raises: click.UsageError."""
    # ``parse_settings`` has made underscores of the dots in Kafka's names.
    own = {rule.kafka_name.replace(".", "_"): name for name, rule in DOOR_RULES.items()}
    try:
        settings = resolved(
            {own.get(name, name): value for name, value in parse_settings(configs).items()}, DOOR_RULES, " of a door"
        )
        DoorConfig(**settings)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    return settings


def _announce(door: Door, *, read_only: bool) -> None:
    print(door.bootstrap_servers, flush=True)
    refused = "writes, and new topics" if read_only else "transactions, ACLs, quotas, and groups of the new protocol"
    print(f"Refused: {refused}. Ctrl-C ends it.", flush=True)


def _wait(interrupts: Interrupts) -> None:
    try:
        with interrupts.allowed():
            threading.Event().wait()
    except KeyboardInterrupt:
        pass


@contextmanager
def _ended_by_sigterm(interrupts: Interrupts) -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, also in a background job of a script, which ignores Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupts.note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
