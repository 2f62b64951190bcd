"""Builds the compiled modules; everything else about the package is in pyproject.toml."""

import sys
import sysconfig
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED = {
    "kstore.files._memory": ["kstore/files/_memory.pyx"],
    "kstore.indexes._search": ["kstore/indexes/_search.pyx"],
    "kstore.producer._accumulate": ["kstore/producer/_accumulate.pyx"],
    "kstore.record._codec": ["kstore/record/_codec.pyx"],
    "kstore.record._columns": ["kstore/record/_columns.pyx"],
    "kstore.record._compact": ["kstore/record/_compact.pyx"],
    "kstore.record._rows": ["kstore/record/_rows.pyx"],
}


class BuildExt(build_ext):
    """Says in one sentence what is missing when a compiled module cannot be built."""

    def run(self) -> None:
        header = Path(sysconfig.get_paths()["include"]) / "Python.h"
        if not header.exists():
            sys.exit(
                f"kstore: Python's C header is missing ({header}): install your system's Python development package "
                "(Debian, Ubuntu: apt-get install python3-dev) and try again."
            )
        super().run()

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except Exception as error:
            compiler = " ".join(getattr(self.compiler, "compiler_so", None) or ["cc"])
            sys.exit(
                f"kstore: its compiled modules could not be built with {compiler.split()[0]!r} ({error}): "
                "install a C compiler (Debian, Ubuntu: apt-get install gcc; macOS: xcode-select --install)."
            )


setup(
    ext_modules=cythonize(
        [Extension(name, sources, extra_compile_args=["-O3"]) for name, sources in COMPILED.items()],
        language_level=3,
    ),
    cmdclass={"build_ext": BuildExt},
)
