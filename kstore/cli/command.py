"""A command that ends quietly when its reader goes away or its user interrupts it."""

from __future__ import annotations

from typing import Any

import click

from kstore.cli.names import topic_hint
from kstore.errors import TopicNotFoundError

__all__ = ["KstoreCommand", "ReaderGoneError", "UserInterrupt"]


class ReaderGoneError(Exception):
    """No process reads standard output any more."""


class UserInterrupt(Exception):
    """The user pressed Ctrl-C."""


class KstoreCommand(click.Command):
    """Handles a closed pipe and Ctrl-C itself: click would end with status 1, or print an empty line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
        except TopicNotFoundError as error:
            raise TopicNotFoundError(f"{error}{topic_hint(ctx)}") from None
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except KeyboardInterrupt as error:
            raise UserInterrupt from error
        # Not just returned: a caller that runs the command through click alone gets the status too.
        if status:
            ctx.exit(status)
        return status
