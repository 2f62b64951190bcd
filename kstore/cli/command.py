"""A command whose reader may go away."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["KstoreCommand", "ReaderGoneError"]


class ReaderGoneError(Exception):
    """Nobody reads standard output any more."""


class KstoreCommand(click.Command):
    """Tells a closed pipe from other errors, which click would end with the status of damage."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error
