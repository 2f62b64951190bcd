"""``Call``: one request, as a handler gets it, and what a handler returns. No I/O here.

A handler is a plain function. It returns a message, for the codec to write in the request's version; or a ``Reply``,
which sends its own bytes; or None for no answer at all. ``ConnectionEnded`` closes the connection; what else a handler
raises is a bug, which closes it too and is logged with its traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kstore.door.reply import Reply

if TYPE_CHECKING:
    from kstore.door.fetch_part import Seen
    from kstore.door.served import Served
    from kstore.door.waiting import Waiter

# A request or a response: Kafka's names of fields in camelCase, see ``kstore.messages.schema``.
Message: TypeAlias = dict[str, Any]


class ConnectionEnded(Exception):
    """The connection must be closed without an answer; the text says why, for the log."""


@dataclass(slots=True)
class Call:
    """One request. ``records`` in ``body`` are views of the connection's buffer: they end with the call.

    Nothing changes a call. It is not frozen, which would take as long to make as a small request takes to read.
    """

    api: int
    version: int
    body: Message
    client_id: str
    client_host: str
    # The authenticated user; None on a connection without authentication.
    user: str | None
    door: Served
    # For a handler that waits: woken when the peer leaves, or when the door closes.
    waiter: Callable[[], Waiter]
    # What the call's connection remembers.
    seen: Seen


Handler: TypeAlias = Callable[[Call], "Message | Reply | None"]
