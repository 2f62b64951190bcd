"""An archive with kstore and its requirements, for executors whose Python lacks them.

Spark can send a zip of sources to its executors, but Python loads no compiled module from a zip. An archive that Spark
unpacks next to each executor works: ``spark.archives`` brings it, ``PYTHONPATH`` points into it.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from kstore.errors import ConfigError, MissingExtraError, PathLike

OWN_PACKAGES = ("kstore", "pyspark_kstore")
# Build inputs of the package, and files that Python creates itself.
LEFT_OUT = frozenset({".pyx", ".pxd", ".pxi", ".pyi", ".c", ".pyc"})
UNPACKED_AS = "kstore_env"
SUFFIXES = (".tar.gz", ".tgz")


class Packed(NamedTuple):
    """An archive, and the settings that make Spark use it."""

    path: Path
    size: int
    packages: dict[str, str]
    """The names of the distributions in it and their versions."""
    runs_on: str
    """The Python and the machine that the compiled modules are for: the executors must have the same."""
    settings: dict[str, str]


def pack(path: PathLike, *, packages: Iterable[str] = ()) -> Packed:
    """Writes the archive ``path``, a .tar.gz: kstore, its requirements, and more installed ``packages`` if named.

    An existing archive is replaced atomically; the same packages produce the same bytes.
    Raises: ConfigError for another suffix, MissingExtraError for a package that is not installed, OSError.
    """
    target = Path(os.path.abspath(path))  # noqa: PTH100  # links stay links
    if not target.name.endswith(SUFFIXES):
        raise ConfigError(f"an archive for Spark ends with .tar.gz or .tgz, not {target.name!r}")
    distributions = _with_requirements(["kstore", *packages])
    members = dict(_own_files())
    for name, distribution in distributions.items():
        if name != "kstore":
            members.update(_installed_files(distribution))
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
        written = Path(file.name)
        try:
            with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as compressed:
                _write_tar(compressed, members)
        except BaseException:
            written.unlink()
            raise
    written.chmod(0o644)
    written.replace(target)
    return Packed(
        path=target,
        size=target.stat().st_size,
        packages={name: distribution.version for name, distribution in sorted(distributions.items())},
        runs_on=f"Python {sys.version_info.major}.{sys.version_info.minor}, {sys.platform} {platform.machine()}",
        settings=settings_for(str(target)),
    )


def settings_for(archive: str) -> dict[str, str]:
    """The settings with which Spark unpacks an archive, a path or URL, next to its executors, and Python finds it."""
    return {
        "spark.archives": f"{archive}#{UNPACKED_AS}",
        "spark.executorEnv.PYTHONPATH": UNPACKED_AS,
        # In cluster mode the driver also runs where kstore is not installed.
        "spark.yarn.appMasterEnv.PYTHONPATH": UNPACKED_AS,
    }


def _with_requirements(names: Iterable[str]) -> dict[str, metadata.Distribution]:
    """The distributions of these names and of everything that they require here, by name."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [(name, True) for name in names]
    while wanted:
        name, needed = wanted.pop()
        key = _normal(name)
        if key in found:
            continue
        try:
            found[key] = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if needed:
                raise MissingExtraError(f"{name} cannot be packed: it is not installed: pip install {name}") from error
            continue  # required only on other systems or Pythons: else it would be here
        for requirement in found[key].requires or ():
            wanted_name, _, marker = requirement.partition(";")
            match = re.match(r"[\w.-]+", wanted_name)
            if match is not None and "extra" not in marker:
                wanted.append((match[0], not marker))
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _own_files() -> Iterator[tuple[str, Path]]:
    """kstore's files from where it is imported: a checkout that is installed in place lists none of them."""
    for package in OWN_PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise MissingExtraError(f"{package} is not installed as a package with files: pip install kstore")
        root = Path(spec.origin).parent
        for path in root.rglob("*"):
            if path.is_file() and path.suffix not in LEFT_OUT:
                yield f"{package}/{path.relative_to(root).as_posix()}", path


def _installed_files(distribution: metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """A distribution's files below site-packages; its commands, which are elsewhere, are omitted."""
    for file in distribution.files or ():
        if file.parts[0] != ".." and file.suffix not in LEFT_OUT:
            path = Path(str(file.locate()))
            if path.is_file():
                yield file.as_posix(), path


def _write_tar(target: gzip.GzipFile, members: dict[str, Path]) -> None:
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, path in sorted(members.items()):
            entry = tarfile.TarInfo(name)
            entry.size = path.stat().st_size
            entry.mode = 0o755 if path.suffix == ".so" else 0o644
            with path.open("rb") as file:
                archive.addfile(entry, file)
