"""Serves the pages on loopback: a socket, uvicorn, and the address that lets a browser in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kstore.errors import MissingExtraError, StorageError
from kstore.files.local import SYSTEM_FS
from kstore.ui.checking import BYTES_PER_SECOND, Checks
from kstore.ui.places import ensure_logs
from kstore.ui.survey import Survey

ADDRESS = "127.0.0.1"
# After a signal: pages that are being made may end.
SHUTDOWN_SECONDS = 2


def serve(
    paths: Sequence[Path],
    *,
    port: int,
    deep: bool,
    announce: Callable[[str], None],
    check_bytes_per_second: float | None = BYTES_PER_SECOND,
) -> None:
    """Serves pages about the logs in ``paths`` until a signal ends it; ``announce`` gets the address to open.

    Args:
        port: of 127.0.0.1; 0 for any that is free.
        deep: check every byte and count every record, which reads everything twice.
        check_bytes_per_second: how fast a check reads that a page asks for; None for no limit.

    Raises: MissingExtraError without Starlette, uvicorn or Jinja2 (``kstore[ui]``); NotALogError; StorageError, also
    for a port that is in use.
    """
    try:
        import uvicorn

        from kstore.ui.app import guarded_app
        from kstore.ui.connections import Connection
    except ModuleNotFoundError as error:
        raise MissingExtraError("kstore ui needs Starlette, uvicorn and Jinja2: pip install 'kstore[ui]'") from error
    ensure_logs(paths, SYSTEM_FS)
    server: Any = None

    def is_stopping() -> bool:
        return bool(server.should_exit)

    with _bound(port) as listener:
        number = listener.getsockname()[1]
        survey = Survey(paths, deep=deep)
        checks = Checks(bytes_per_second=check_bytes_per_second)
        app = guarded_app(survey, checks, port=number, is_stopping=is_stopping)
        # No access log: the first request has the token.
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        server = uvicorn.Server(config)
        survey.start()
        try:
            announce(f"http://{ADDRESS}:{number}/?token={app.token}")
            server.run(sockets=[listener])
        finally:
            checks.stop()
            survey.stop()


def _bound(port: int) -> socket.socket:
    """A listening socket of this machine alone. Raises: StorageError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        # Now, not when the server runs: a browser may be quicker.
        listener.listen()
    except OSError as error:
        listener.close()
        raise StorageError(error.errno, error.strerror, f"{ADDRESS}:{port}") from error
    return listener
