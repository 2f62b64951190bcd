"""``kstore.report``: a report on directories of logs, and what can be done with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kstore
from kstore.clock import SYSTEM_CLOCK
from kstore.errors import ConfigError
from kstore.files.output import output_file
from kstore.reports.document import document_of
from kstore.reports.gathering import Gathered, gather
from kstore.scan.visits import Advance, no_advance

if TYPE_CHECKING:
    from os import PathLike


class Report:
    """What ``kstore.report`` found, at one time. Immutable, and so thread-safe.

    ``document`` holds all of it as a dictionary of JSON values: sizes are bytes, times ms since the epoch, end offsets
    exclusive.
    """

    def __init__(self, document: dict[str, Any], logs: list[Path]) -> None:
        self.document = document
        self._logs = logs

    @property
    def is_sound(self) -> bool:
        """Whether no damage was found; without ``deep`` that means little."""
        return not self.document["total"]["damage"]

    def html(self) -> str:
        """One self-contained page. Raises: MissingExtraError without Jinja2 (``kstore[report]``)."""
        # Not at the top: the JSON form needs no Jinja2.
        from kstore.reports.page import page

        return page(self.document)

    def json(self) -> str:
        """The same numbers for programs; in ASCII."""
        return json.dumps(self.document, separators=(",", ":"))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the page to ``path``, as an ``output_file``.

        Raises: ConfigError if ``path`` is inside an examined directory, because kstore and brokers own what lies there;
        MissingExtraError as ``html``; OSError.
        """
        target = Path(path)
        self._ensure_outside(target)
        page = self.html().encode()
        with output_file(target) as file:
            file.write(page)

    def _ensure_outside(self, target: Path) -> None:
        parent = target.absolute().parent.resolve()
        inside = [log for log in self._logs if log.resolve().parent == parent or parent.is_relative_to(log.resolve())]
        if inside:
            raise ConfigError(f"{target} is next to or in the log {inside[0]}, and a report writes nothing there")


def report(
    *paths: str | PathLike[str],
    deep: bool = False,
    with_payload: bool = False,
    hash_names: bool = False,
    advance: Advance | None = None,
) -> Report:
    """Examines the logs in ``paths``, kstore's or a broker's; each is a partition's directory, or holds some.

    Nothing is written, no lock is taken, and a writer may be at work. Damage becomes findings and raises nothing.

    Args:
        deep: check, decompress and count every record, and verify every file. Otherwise only headers are read: fast,
            but damaged records are not found.
        with_payload: show bytes of records at damaged places, the most frequent keys, and names of groups. By default
            a report has no key, value, header or client name.
        hash_names: replace the names of directories and topics by hashes with a random key.
        advance: receives the number of further ``.log`` bytes read; with ``deep`` each is read twice.

    Raises: NotALogError, StorageError.
    """
    given = [Path(path) for path in paths]
    return report_on(
        gather(given, deep=deep, with_payload=with_payload, advance=advance or no_advance), hash_names=hash_names
    )


def report_on(gathered: Gathered, *, hash_names: bool) -> Report:
    """The report on what was gathered."""
    document = document_of(
        gathered, version=kstore.__version__, created_ms=SYSTEM_CLOCK.now_ms(), hash_names=hash_names
    )
    return Report(document, [log.path for log in gathered.logs])
