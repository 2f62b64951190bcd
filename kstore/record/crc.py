"""CRC-32C, Kafka's checksum: the compiled function of the package ``crc32c``, loaded without the rest of the package.

Its ``__init__`` imports ``importlib.metadata`` for a version and ``argparse`` for a command line, and with them
``email``, ``zipfile`` and sixty more modules: 40 % of what ``import kstore`` would take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

PACKAGE, COMPILED = "crc32c", "crc32c._crc32c"


def _load() -> Callable[..., int]:
    spec = None if PACKAGE in sys.modules else find_spec(PACKAGE)
    found = PathFinder.find_spec(COMPILED, spec.submodule_search_locations) if spec is not None else None
    if found is None or found.loader is None:
        import crc32c as package  # it is loaded already, or laid out differently

        return package.crc32c
    module = module_from_spec(found)
    found.loader.exec_module(module)
    # A later ``import crc32c`` takes this one.
    sys.modules.setdefault(COMPILED, module)
    return module.crc32c  # type: ignore[no-any-return]


# ``crc32c(data, value=0, gil_release_mode=-1)``: continues from ``value``; mode 1 releases the interpreter's lock.
crc32c = _load()
