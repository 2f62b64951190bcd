"""``kstore dump-log`` from a checkout, without installing it: python tools/dump_log.py --files ... (see --help)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kstore.cli.dump_log import command  # the checkout comes first on the path
from kstore.cli.main import main

if __name__ == "__main__":
    sys.exit(main(command=command))
