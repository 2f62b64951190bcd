"""A process that opens logs on command, one command a line, and reports whether it succeeded.

<what> <path>    open it, or do it; answers "in", or "out" if another process has it
close            close whatever is open
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from kstore.errors import LockedError
from kstore.files import log_lock
from kstore.log import Log
from kstore.store import Store
from kstore.upkeep.handover import to_broker
from kstore.upkeep.recover import recover_log

# The process that holds the lock is suspended: waiting longer is useless.
WAITS_MAX = 2


def open_store(root: Path) -> Store:
    store = Store(root, durability="os", background=False)
    try:
        store.log("t").append(b"of the store")
        return store
    except BaseException:
        store.close()
        raise


def recover(root: Path) -> None:
    recover_log(root / "t-0")


def hand_over(root: Path) -> None:
    to_broker(root)


# Actions by name, on the store's root; each returns something to close, or None.
ACTIONS: dict[str, Callable[[Path], Log | Store | None]] = {
    "log": lambda root: Log(root / "t-0", durability="os"),
    "recover": recover,
    "handover": hand_over,
    "store": open_store,
}


def main() -> None:
    log_lock.GIVING_WAY_RETRIES = WAITS_MAX
    opened: Log | Store | None = None
    for line in sys.stdin:
        what, _, path = line.strip().partition(" ")
        answer = "in"
        if what == "close":
            if opened is not None:
                opened.close()
            opened = None
        else:
            try:
                opened = ACTIONS[what](Path(path))
            except LockedError:
                answer = "out"
        print(answer, flush=True)


if __name__ == "__main__":
    main()
