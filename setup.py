"""Builds the compiled modules; everything else about the package is in pyproject.toml."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import sysconfig
import tarfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

# The slowest to compile comes first, so that none of them is left to one processor at the end.
COMPILED = {
    "kstore.record._codec": ["kstore/record/_codec.pyx"],
    "kstore.producer._accumulate": ["kstore/producer/_accumulate.pyx"],
    "kstore.record._runs": ["kstore/record/_runs.pyx"],
    "kstore.record._rows": ["kstore/record/_rows.pyx"],
    "kstore.record._compact": ["kstore/record/_compact.pyx"],
    "kstore.record._columns": ["kstore/record/_columns.pyx"],
    "kstore.files._memory": ["kstore/files/_memory.pyx"],
    "kstore.files._locks": ["kstore/files/_locks.pyx"],
    "kstore.messages._wire": ["kstore/messages/_wire.pyx"],
    "kstore.indexes._search": ["kstore/indexes/_search.pyx"],
    "kstore.segments._numbers": ["kstore/segments/_numbers.pyx"],
    "kstore.files._direct": ["kstore/files/_direct.pyx"],
    "kstore.engine._ends": ["kstore/engine/_ends.pyx"],
    "kstore.engine._fields": ["kstore/engine/_fields.pyx"],
    "kstore.engine.append._group": ["kstore/engine/append/_group.pyx"],
    "kstore.engine.append._path": ["kstore/engine/append/_path.pyx"],
    "kstore.shared._turn": ["kstore/shared/_turn.pyx"],
    "kstore.queue._jobs": ["kstore/queue/_jobs.pyx"],
    "kstore.queue._known": ["kstore/queue/_known.pyx"],
    "kstore.aio._line": ["kstore/aio/_line.pyx"],
    "kstore.spark._staged": ["kstore/spark/_staged.pyx"],
    "kstore.cli.dump._lines": ["kstore/cli/dump/_lines.pyx"],
    "kstore.cli._json_lines": ["kstore/cli/_json_lines.pyx"],
}
PACKAGES = ("kstore", "pyspark_kstore")
# What an editable install adds to sys.path: a directory that holds links to the packages and nothing else.
LINKS = Path(".editable")
# Without debug symbols, which Python's own flags ask for: they are three quarters of a module, and a third of the time.
FLAGS = ["-O3", "-g0"]


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class BuildExt(build_ext):
    """Compiles the modules side by side, and says in one sentence what is missing when that is impossible."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.parallel is None:
            self.parallel = processors()

    def run(self) -> None:
        header = Path(sysconfig.get_paths()["include"]) / "Python.h"
        if not header.exists():
            sys.exit(
                f"kstore: Python's C header is missing ({header}): install your system's Python development package "
                "(Debian, Ubuntu: apt-get install python3-dev) and try again."
            )
        self._translate()
        super().run()

    def _translate(self) -> None:
        """Has Cython write the C files. Only a build needs them: a source archive holds no generated file.

        Cython writes a file again if its own declarations are newer, and pip unpacks a new Cython for each build: the
        second build of a checkout would compile everything again.
        """
        import Cython
        from Cython.Build import cythonize

        read = [str(path) for pattern in ("*.pyx", "*.pxd", "*.pxi") for path in Path("kstore").rglob(pattern)]
        targets = {each.name: str(Path(each.sources[0]).with_suffix(".c")) for each in self.extensions}
        stale = [
            each
            for each in self.extensions
            if not is_newest(Path(targets[each.name]), [*read, "setup.py"])
            or not is_by(Cython.__version__, Path(targets[each.name]))
        ]
        workers = 0 if self.parallel in (None, 1) else min(int(self.parallel), len(stale))
        if stale:
            cythonize(
                [Extension(each.name, list(each.sources)) for each in stale],
                nthreads=workers,
                language_level=3,
            )
        for each in self.extensions:
            each.sources = [targets[each.name]]

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except Exception as error:
            compiler = " ".join(getattr(self.compiler, "compiler_so", None) or ["cc"])
            sys.exit(
                f"kstore: its compiled modules could not be built with {compiler.split()[0]!r} ({error}): "
                "install a C compiler (Debian, Ubuntu: apt-get install gcc; macOS: xcode-select --install)."
            )

    def build_extension(self, ext: Extension) -> None:
        # An editable install builds in a new directory: the module beside the sources will do if none of them is newer.
        built = Path(self.get_ext_filename(self.get_ext_fullname(ext.name)))
        if self.editable_mode and is_newest(built, [*ext.sources, *ext.depends]):
            target = Path(self.get_ext_fullpath(ext.name))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(built, target)
        else:
            super().build_extension(ext)


class EditableWheel(editable_wheel):
    """Puts a directory on ``sys.path`` that holds the packages alone.

    The checkout itself would bring ``tests``, ``tools`` and ``examples`` too. An import hook, which setuptools would
    choose, hides kstore from type checkers, and from Spark, which looks for ``pyspark_*`` in directories.
    """

    def finalize_options(self) -> None:
        make_links()
        self.distribution.package_dir = {"": str(LINKS)}
        super().finalize_options()


class Sdist(sdist):
    """Packs the same bytes every time if ``SOURCE_DATE_EPOCH`` is set: of wheels, setuptools does so itself."""

    def make_archive(self, base_name: str, format: str, *rest: object, **options: object) -> str:
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar":
            return str(super().make_archive(base_name, format, *rest, **options))

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.mtime = int(epoch)
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            return member

        path = f"{base_name}.tar.gz"
        with (
            Path(path).open("wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(epoch)) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            archive.add(str(options["base_dir"]), filter=plain)
        return path


def description(readme: str) -> str:
    """The README as a package index can show it: without pictures, and without links to the files of a checkout."""
    without_pictures = re.sub(r"^!\[[^\]]*\]\([^)]*\)\n+", "", readme, flags=re.MULTILINE)
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", without_pictures)


def make_links() -> None:
    LINKS.mkdir(exist_ok=True)
    for name in PACKAGES:
        link, target = LINKS / name, Path("..", name)
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target, target_is_directory=True)


def is_newest(built: Path, sources: list[str]) -> bool:
    return built.exists() and all(Path(source).stat().st_mtime <= built.stat().st_mtime for source in sources)


def is_by(version: str, translated: Path) -> bool:
    """Whether this version of Cython wrote the C file ``translated``: each one says so in its first line."""
    with translated.open(encoding="utf-8") as lines:
        return lines.readline() == f"/* Generated by Cython {version} */\n"


# Cython's worker processes may import this file.
if __name__ == "__main__":
    setup(
        long_description=description(Path("README.md").read_text(encoding="utf-8")),
        long_description_content_type="text/markdown",
        ext_modules=[
            Extension(name, sources, extra_compile_args=FLAGS, depends=["setup.py"])
            for name, sources in COMPILED.items()
        ],
    )
