"""Names and other texts as a report may show them: hashed if wanted, and never able to disturb what surrounds them."""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

from kstore.files.paths import topic_partition
from kstore.rules.internal_topics import QUEUE_JOURNAL, is_internal
from kstore.upkeep.verify.findings import Finding

HASH_DIGITS = 10


def topic_of(log: Path) -> str:
    """The topic of the log in ``log``, or the directory's name if it is not a partition's."""
    owner = topic_partition(log.name)
    return log.name if owner is None else owner.topic


class Names:
    """What a report calls paths and topics. Without ``hashed``: what they are called.

    With it a name becomes a hash with a random key, the same one throughout the report; neither the name nor whether
    it is a given one can be found from it. Topics that Kafka and kstore use internally keep their names.
    """

    def __init__(self, *, hashed: bool) -> None:
        self._hashed = hashed
        self._key = secrets.token_bytes(32)

    def root(self, path: Path) -> str:
        """A directory that was given."""
        return self._hash("directory", str(path.absolute())) if self._hashed else str(path)

    def topic(self, log: Path) -> str:
        """``topic_of`` the log in ``log``."""
        name = topic_of(log)
        if not self._hashed:
            return name
        if name.startswith(QUEUE_JOURNAL):
            return f"{QUEUE_JOURNAL}{self._hash('topic', name.removeprefix(QUEUE_JOURNAL))}"
        return name if is_internal(name) else self._hash("topic", name)

    def log(self, log: Path) -> str:
        """The name of a partition's directory."""
        if not self._hashed:
            return log.name
        partition = topic_partition(log.name)
        return self.topic(log) if partition is None else f"{self.topic(log)}-{partition.partition}"

    def path(self, path: Path) -> str:
        """The directory of a log."""
        return f"{self.root(path.parent)}/{self.log(path)}" if self._hashed else str(path)

    def client(self, kind: str, name: str, *, shown: bool) -> str:
        """A name that a client chose."""
        return name if shown and not self._hashed else self._hash(kind, name)

    def text(self, text: str, path: Path) -> str:
        """A text that may contain the names of the log, or the directory of logs, in ``path``."""
        if not self._hashed:
            return text
        known = {
            str(path.absolute()): self.path(path),
            str(path): self.path(path),
            path.name: self.log(path),
            topic_of(path): self.topic(path),
            str(path.absolute().parent): self.root(path.parent),
            str(path.parent): self.root(path.parent),
        }
        # In one pass, and the longest first: a path contains names, and a hash may too.
        longest_first = sorted(filter(None, known), key=len, reverse=True)
        pattern = "|".join([rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest_first])
        return re.sub(pattern, lambda match: known[match[0]], text)

    def finding(self, finding: Finding, path: Path) -> Finding:
        """A finding about ``path``; if names are hashed, one that quotes a file or a listing loses the quote."""
        if not self._hashed:
            return finding
        reason = finding.reason
        if finding.kind in ("name", "checkpoint", "epochs", "state"):
            reason = reason.partition(":")[0]
        return finding._replace(path=self.text(finding.path, path), reason=self.text(reason, path))

    def _hash(self, kind: str, name: str) -> str:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), key=self._key, person=kind.encode())
        return f"{kind}-{digest.hexdigest()[:HASH_DIGITS]}"
