"""What the bytes mean: batches and records of every version. No I/O, clock or threads here."""

import sys

try:
    import kstore.record._codec  # noqa: F401  # the first of the compiled modules that anything needs
except ModuleNotFoundError as error:
    if error.name != "kstore.record._codec":
        raise
    raise ImportError(
        f"kstore's compiled modules for Python {sys.version_info.major}.{sys.version_info.minor} are not in "
        f"{__path__[0]}: install kstore with pip for this Python. Spark's executors: a zip (--py-files) cannot hold "
        "compiled modules, send the archive that `kstore spark pack` makes",
        name=error.name,
        path=__path__[0],
    ) from error
