"""Checks that kstore's compiled modules exist, and says what to do if they do not."""

import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent  # an editable install reaches it through a link


def _advice() -> str:
    """What to do: usually a source tree hides the installed package."""
    tree = PACKAGE.parent
    if not (tree / "setup.py").exists():
        return (
            "install kstore with pip for this Python. Spark's executors: a zip (--py-files) cannot hold compiled "
            "modules; send the archive that `kstore spark pack` makes"
        )
    build = f"to use this source tree, build it in place: pip install --editable {tree}"
    for entry in sys.path:
        package = Path(entry, "kstore")
        if package.resolve() != PACKAGE and any(package.glob("record/_codec.*.so")):
            return f"it hides the kstore installed in {entry}: start Python in another directory; or, {build}"
    return build


try:
    import kstore.record._codec  # noqa: F401  # one of them represents all
except ModuleNotFoundError as error:
    if error.name != "kstore.record._codec":
        raise
    raise ImportError(
        f"kstore's compiled modules for Python {sys.version_info.major}.{sys.version_info.minor} are not in "
        f"{PACKAGE}: {_advice()}",
        name=error.name,
        path=str(PACKAGE),
    ) from error
