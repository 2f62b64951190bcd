"""Stores that are to be killed: this process forks one for each request (protocol: ``killed_writers``).

usage: python -m tests.crash.killed_stores, with one request a line on standard input: PATH NOTHING SEED

    step KIND TOPIC PARTITION NUMBER   is about to be done; "-" for no topic
    done                               the last step is done
    closed, open                       the store is closed, open; it is opened repeatedly
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from pathlib import Path

from kstore.store import Store
from tests.crash.store_life import SETTINGS, do, random_step, seen_in

OUT = 1


def _say(text: str) -> None:
    os.write(OUT, text.encode() + b"\n")


def _live(path: Path, seed: int) -> None:
    generator = random.Random(seed)
    while True:
        # The tasks work while topics come and go.
        with Store(path, file_delete_delay_ms=generator.choice([0, 5]), checkpoint_interval_ms=3, initial_delay_ms=0,
                   **SETTINGS) as store:  # fmt: skip
            _say("open")
            model = seen_in(store)
            for _ in range(generator.randrange(60)):
                step = random_step(generator, model)
                model.pending = step
                _say(f"step {step[0]} {step[1] or '-'} {step[2]} {step[3]}")
                do(store, step)
                _say("done")
                model.done()
        _say("closed")


def main() -> None:
    """Serves requests until standard input ends."""
    for line in sys.stdin:
        path, _, seed = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                _live(Path(path), int(seed))
            except BaseException:
                _say("failed " + repr(traceback.format_exc()))
            finally:
                os._exit(1)
        _say(f"started {pid}")
        _say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
