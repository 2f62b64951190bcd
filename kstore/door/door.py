"""``Door``: lets Kafka's clients in to a store, over TCP."""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import warnings
from base64 import urlsafe_b64encode
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from kstore.door.config import DoorConfig
from kstore.door.faults import Faults
from kstore.door.guard import CAN_ASK
from kstore.door.served import Served
from kstore.door.server import Server, bound
from kstore.errors import ConfigError, CorruptFileError, SharedLogError, not_picklable
from kstore.files.lifetime import Closing
from kstore.files.meta import read_meta_properties
from kstore.files.paths import META_PROPERTIES
from kstore.setting_rules import MIB
from kstore.store import attach, parts_of

if TYPE_CHECKING:
    from kstore.metric_rows import MetricValue
    from kstore.settings import Size, Time
    from kstore.store import Store

logger = logging.getLogger(__name__)

DEFAULT_PORT = 9092
# The bytes of a cluster's id.
ID_BYTES = 16


class Door(Closing):
    """A store's door for Kafka's clients: each connects to ``bootstrap_servers`` as to a broker. Thread-safe.

    It listens from the moment it is made until ``close``, or until its store is closed, which closes the door first.
    What a client got an answer for is as durable as the topic's ``durability`` says.
    """

    def __init__(
        self,
        store: Store,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        advertised: str | None = None,
        admin: bool = True,
        same_user: bool = True,
        insecure: bool = False,
        auto_create_partitions: int = 1,
        connections_max: int = 512,
        request_bytes_max: Size = 100 * MIB,
        other_request_bytes_max: Size = MIB,
        memory_max: Size = 256 * MIB,
        idle_ms: Time = 600_000,
        rebalance_delay_ms: Time = 0,
        offsets_retention_minutes: int = 0,
    ) -> None:
        """Begins to listen.

        Args:
            store: an open store, not a shared one. With a read-only one the door serves what reads, and writes nothing.
            host: the address to listen on. Anything but loopback needs ``insecure``: clients are not authenticated.
            port: 0 for any free one.
            advertised: "host:port" where clients reach the door, if that is not where it listens (containers).
            admin: whether clients may create and delete topics, and change their settings.
            same_user: on Linux, only processes of this process's own user, and root's, may connect.
            insecure: whoever reaches the address may read and write everything; there is no ``same_user`` then.
            auto_create_partitions: what a topic gets that a client creates by using its name; 0: none is created.
            connections_max: how many connections may be open; more are closed at once.
            request_bytes_max: the largest Produce request, in bytes or like "100MiB".
            other_request_bytes_max: the largest request of any other kind.
            memory_max: what the requests of all connections may take together; a request waits for it.
            idle_ms: after this time without a request a connection is closed, in ms or like "10m".
            rebalance_delay_ms: how long a new group waits for more members.
            offsets_retention_minutes: a group loses what it has committed this long after its last member, after the
                commit, and after the door was opened; 0: never.

        Raises: ConfigError, SharedLogError, ClosedError, ForkedError, StorageError (the address is in use),
        ThreadStartError.
        """
        settings = DoorConfig(
            auto_create_partitions=auto_create_partitions,
            connections_max=connections_max,
            request_bytes_max=request_bytes_max,  # type: ignore[arg-type]  # parsed there, as the next ones
            other_request_bytes_max=other_request_bytes_max,  # type: ignore[arg-type]
            memory_max=memory_max,  # type: ignore[arg-type]
            idle_ms=idle_ms,  # type: ignore[arg-type]
            rebalance_delay_ms=rebalance_delay_ms,  # type: ignore[arg-type]
            offsets_retention_minutes=offsets_retention_minutes,
        )
        topics = parts_of(store).topics
        topics.life.check()
        if topics.shared:
            raise SharedLogError("a door needs a store that one process has open")
        told = None if advertised is None else host_and_port(advertised)
        listener = bound(host, port)
        try:
            own_host, own_port = listener.getsockname()[:2]
            self._port = int(own_port)
            _check_reachable(own_host, told is not None, insecure=insecure)
            cluster_id, node_id = _identity(store)
            told_host, told_port = told or (own_host, own_port)
            self._served = Served(
                store,
                cluster_id,
                node_id,
                told_host,
                told_port,
                admin=admin,
                same_user=same_user and not insecure,
                settings=settings,
            )
            self._server = Server(self._served, listener)
        except BaseException:
            listener.close()
            raise
        try:
            attach(store, self._server)
            self._server.start()
        except BaseException:
            self._server.close()
            raise
        if self._served.same_user and not CAN_ASK:
            logger.warning("all users of this machine may connect: who a connection belongs to is known on Linux only")

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect to, "host:port"."""
        host = self._served.host
        return f"[{host}]:{self._served.port}" if ":" in host else f"{host}:{self._served.port}"

    @property
    def port(self) -> int:
        """The port that the door listens on."""
        return self._port

    @property
    def closed(self) -> bool:
        return self._server.closed

    def metrics(self) -> dict[str, MetricValue]:
        """What the door has counted since it opened, and what is open now: see ``kstore.metrics.DOOR_METRICS``.

        Thread-safe. Those with a label are dicts: ``metrics()["requests"]["Fetch"]``.
        """
        return self._server.metrics()

    @cached_property
    def faults(self) -> Faults:
        """What the door does wrong on purpose, for tests of clients: errors, delays, answers that never come."""
        faults = Faults(self._served)
        self._served.handled = faults.answer
        return faults

    def close(self) -> None:
        """Accepts no more connections, answers the requests that are being handled, and closes all connections.

        It waits at most 5 s for requests; what it then cuts off gets no answer. A second call does nothing.
        """
        self._server.close()

    def __repr__(self) -> str:
        return f"Door({self.bootstrap_servers!r}{', closed' if self.closed else ''})"

    def __del__(self) -> None:
        server = getattr(self, "_server", None)  # None if it could not listen
        if server is not None and not server.closed:
            server.abandon()
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2)

    def __reduce__(self) -> NoReturn:
        raise not_picklable("Door", "clients in other processes connect to its bootstrap_servers")


def host_and_port(text: str) -> tuple[str, int]:
    """The parts of "host:port" or "[::1]:port". Raises: ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ConfigError(f"advertised is {text!r:.80}, expected 'host:port'")
    return host, int(port)


def _check_reachable(host: str, is_advertised: bool, *, insecure: bool) -> None:
    """Checks that only those can connect who may. Raises: ConfigError."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if not (address.is_loopback or insecure):
        raise ConfigError(
            f"host is {host}, which other machines reach, and clients are not authenticated: whoever connects could"
            " read and write everything. Listen on 127.0.0.1, or say insecure=True (--insecure)"
        )
    if address.is_unspecified and not is_advertised:
        raise ConfigError(f"host is {host}, any address: advertised must say where clients connect to")


def _identity(store: Store) -> tuple[str, int]:
    """The ids of the cluster and of its only node: those of the directory; else of its path, which stay the same."""
    directory = parts_of(store).topics.directory
    try:
        meta = read_meta_properties(directory.fs, directory.path / META_PROPERTIES)
    except CorruptFileError as error:
        logger.warning("the ids of the store are not known: %s", error)
        meta = None
    if meta is not None and meta.cluster_id:
        return meta.cluster_id, meta.node_id
    digest = hashlib.sha256(bytes(directory.path)).digest()[:ID_BYTES]
    return urlsafe_b64encode(digest).decode().rstrip("="), 0 if meta is None else meta.node_id
