"""``SoleUse``: lets one thread at a time call an open consumer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from kstore.errors import ConsumerStateError, WakeupError
from kstore.files._locks import Attempt, block
from kstore.files.lifetime import Lifetime


class SoleUse:
    """Keeps other threads out of a consumer while one calls it."""

    def __init__(self, client_id: str) -> None:
        self.life: Lifetime = Lifetime(client_id)
        # Held during a call. Reentrant: listeners are called while it is held.
        self.lock: threading.RLock = threading.RLock()
        # Whether ``wakeup`` was called, and no call has raised WakeupError for it yet. Any thread sets it.
        self.is_woken: bool = False
        self._client_id = client_id

    @block
    def alone(self) -> Iterator[None]:
        """One call of the consumer.

        Raises: ClosedError, ForkedError; ConsumerStateError if another thread is in a call.
        """
        self.life.check()
        with Attempt(self.lock) as is_mine:
            if not is_mine:
                raise ConsumerStateError(f"{self._client_id} is used by another thread: only wakeup is for any")
            yield

    def check_woken(self) -> None:
        """Raises: WakeupError."""
        if self.is_woken:
            self.is_woken = False
            raise WakeupError(f"{self._client_id} was woken up")
