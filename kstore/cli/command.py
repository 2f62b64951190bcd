"""A command that ends quietly when its reader, or its user, has had enough."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["KstoreCommand", "ReaderGoneError", "UserInterrupt"]


class ReaderGoneError(Exception):
    """Nobody reads standard output any more."""


class UserInterrupt(Exception):
    """The user pressed Ctrl-C."""


class KstoreCommand(click.Command):
    """Keeps from click what it would end in its own way: a closed pipe with status 1, Ctrl-C with an empty line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            status = super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error
        except KeyboardInterrupt as error:
            raise UserInterrupt from error
        # Not just returned: whoever calls the command through click alone gets the status too.
        if status:
            ctx.exit(status)
        return status
