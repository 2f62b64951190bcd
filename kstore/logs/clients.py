"""``LiveClients``: the open producers, or consumers, of a store, by name."""

from __future__ import annotations

import weakref
from typing import Generic, Protocol, TypeVar

from kstore.files._locks import OwnedLock


class Client(Protocol):
    """A producer or a consumer."""

    client_id: str

    @property
    def closed(self) -> bool: ...


AnyClient = TypeVar("AnyClient", bound=Client)


class LiveClients(Generic[AnyClient]):
    """Holds them weakly: one that is garbage is dropped. Thread-safe."""

    def __init__(self) -> None:
        self._lock = OwnedLock()
        self._clients: weakref.WeakValueDictionary[str, AnyClient] = weakref.WeakValueDictionary()  # guarded by _lock

    def add(self, client: AnyClient) -> None:
        with self._lock:
            taken = self._open()
            name, number = client.client_id, 1
            while name in taken:
                number += 1
                name = f"{client.client_id}#{number}"
            self._clients[name] = client

    def open(self) -> dict[str, AnyClient]:
        """The open ones, by unique names: the client id, with a number if it was taken."""
        with self._lock:
            return self._open()

    def _open(self) -> dict[str, AnyClient]:
        return {name: client for name, client in list(self._clients.items()) if not client.closed}
