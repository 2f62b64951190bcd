"""Builds the compiled modules with the address and undefined behaviour sanitizers, in a copy of the package.

The copy has its own directory, so that the modules that everything else uses stay unchanged.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g", "-O1")
RUNTIMES = ("libasan.so", "libubsan.so")
SOURCE_SUFFIXES = (".pyx", ".pxd", ".pxi")


def build(target: Path, source: Path = ROOT / "kstore") -> Path:
    """Fills ``target`` with the package and instrumented modules; keeps those newer than their sources. Returns it.

    Raises: CalledProcessError, with the compiler's stderr.
    """
    package = target / "kstore"
    shutil.copytree(source, package, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    newest = max(path.stat().st_mtime for path in package.rglob("*") if path.suffix in SOURCE_SUFFIXES)
    for module in package.rglob("*.pyx"):
        library = module.with_name(module.stem + str(sysconfig.get_config_var("EXT_SUFFIX")))
        if library.exists() and library.stat().st_mtime > newest:
            continue
        subprocess.run([sys.executable, "-m", "cython", "-3", str(module.relative_to(target))], cwd=target, check=True)
        include = sysconfig.get_paths()["include"]
        code = str(module.with_suffix(".c"))
        subprocess.run(
            ["gcc", "-shared", "-fPIC", *FLAGS, f"-I{include}", code, "-o", str(library)], cwd=target, check=True
        )
    return target


def environment(target: Path) -> dict[str, str]:
    """The environment that an interpreter needs to load the modules that ``build`` made in ``target``."""
    found = [
        subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in RUNTIMES
    ]
    return {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
        # Every object in its own memory, so that the sanitizer sees where it ends.
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{target}:{ROOT}",
    }
