"""Packs directories that a Kafka broker, or an earlier kstore, wrote into the archives of tests/golden/data.

    python tools/pack_golden.py SOURCE [NAME...]

SOURCE holds the trees that tests/golden/README.md describes. The same trees give the same bytes, so a commit changes an
archive only if its content changed.
"""

from __future__ import annotations

import lzma
import sys
import tarfile
from pathlib import Path

DATA = Path(__file__).parent.parent / "tests" / "golden" / "data"
NAMES = (
    *(
        f"{tree}{kind}"
        for tree in ("clean", "crashed", "recovered", "old", "damaged", "decoded", "coordinators", "kafka44", "v1.1.1")
        for kind in ("", ".dumped", ".consumed")
    ),
    "own1",
    "started",
)


def main(source: Path, names: tuple[str, ...]) -> None:
    for name in names or [name for name in NAMES if (source / name).is_dir()]:
        target = DATA / f"{name}.tar.xz"
        with (
            lzma.open(target, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for path in sorted((source / name).rglob("*")):
                if path.is_file():
                    archive.add(path, str(path.relative_to(source)), filter=_anonymous)
        print(f"{target.name}: {target.stat().st_size:,} bytes")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Omits who packed the file, and when; its time doubles as the mark of a file that no test has changed."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o444
    member.mtime = 0
    return member


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
