"""``meta.properties``: the identity of a store's directory, as a broker in KRaft mode stores it.

    version=1  node.id=<int>  cluster.id=<22 characters>  directory.id=<22 characters>    (version 0: broker.id)

A broker's own file is kept unchanged. One that kstore creates says so in its first comment, so that it is recognised:
no cluster has its id.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import NamedTuple

from kstore.errors import CorruptFileError, FileMissingError, PathLike
from kstore.files.checkpoint import read_small_file, replace_file
from kstore.files.fs import FileSystem

MADE_BY = "#made by kstore: the ids are of no cluster"
SIZE_MAX = 16 * 1024
INT_TEXT = re.compile(r"[0-9]{1,10}", re.ASCII)
# Kafka keeps the lowest ids for itself.
RESERVED_BELOW = 100


class MetaProperties(NamedTuple):
    """The owner of a directory; ``directory_id`` is "" in older ones."""

    version: int
    node_id: int
    cluster_id: str
    directory_id: str = ""


def random_id() -> uuid.UUID:
    """An id as Kafka generates them: not a reserved one, and none that looks like a command-line option."""
    while True:
        made = uuid.uuid4()
        if made.int >= RESERVED_BELOW and not _text(made).startswith("-"):
            return made


def read_meta_properties(fs: FileSystem, path: PathLike) -> MetaProperties | None:
    """The contents of the file; None if there is none. Raises: CorruptFileError, StorageError."""
    try:
        text = read_small_file(fs, path, SIZE_MAX).decode("utf-8")
    except FileMissingError:
        return None
    except UnicodeDecodeError as error:
        raise CorruptFileError("not UTF-8", path=path) from error
    lines = [line.strip() for line in text.splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith(("#", "!"))]
    values = {key.strip(): value.strip() for key, _, value in pairs}
    version = values.get("version", "")
    if version not in ("0", "1"):
        raise CorruptFileError(f"version {version[:20]!r}, expected 0 or 1", path=path)
    # A broker of version 0 may have no id yet.
    node_id = values.get("node.id", "") if version == "1" else values.get("broker.id", "0")
    if not INT_TEXT.fullmatch(node_id):
        raise CorruptFileError("no node id", path=path)
    if version == "1" and not values.get("cluster.id"):
        raise CorruptFileError("no cluster.id", path=path)
    return MetaProperties(int(version), int(node_id), values.get("cluster.id", ""), values.get("directory.id", ""))


def write_meta_properties(fs: FileSystem, path: PathLike, *, mode: int = 0o600) -> None:
    """Gives a directory ids of its own; durable on return. Raises: as ``replace_file``."""
    lines = (
        MADE_BY,
        "node.id=0",
        f"directory.id={_text(random_id())}",
        "version=1",
        f"cluster.id={_text(random_id())}",
    )
    replace_file(fs, path, ("\n".join(lines) + "\n").encode("ascii"), mode=mode)


def _text(made: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(made.bytes).rstrip(b"=").decode("ascii")
