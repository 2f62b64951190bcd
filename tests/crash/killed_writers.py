"""Writers that are to be killed: this process forks one for each request, since starting interpreters takes longer.

usage: python -m tests.crash.killed_writers, with one request a line on standard input: PATH DURABILITY SEED

A writer reports on standard output, a line each; its first word says what:

    open START END CORRUPT SAVED   the log is open; what recovery found
    append FIRST COUNT SERIAL      is about to be appended
    truncate OFFSET, start OFFSET, delete OFFSET   is about to be done
    done                           the last step is done, as durably as requested
    failed MESSAGE                 the writer ends by itself, which it must not
    ended STATUS                   the writer is dead; said by this process
"""

from __future__ import annotations

import os
import random
import sys
import traceback

import kstore
from kstore.log import writer_of
from tests.support.lives.telling_values import telling_value

SETTINGS = {"segment_bytes": 16_384, "index_interval_bytes": 256, "flush_ms": 5, "flush_messages": 50}
OUT = 1


def _say(text: str) -> None:
    # One write of a short line: a kill leaves it whole or absent.
    os.write(OUT, text.encode() + b"\n")


def _open(path: str, durability: str) -> kstore.Log:
    log = kstore.Log(path, durability=durability, **SETTINGS)  # type: ignore[arg-type]
    saved = sum(bool(cut.saved_as) for cut in log.recovery.cut)
    _say(f"open {log.start_offset} {log.end_offset} {len(log.recovery.corrupt)} {saved}")
    return log


def _write(path: str, durability: str, seed: int) -> None:
    generator = random.Random(seed)
    log = _open(path, durability)
    serial = seed
    while True:
        serial += 1
        match generator.randrange(40):
            case 0:
                log.roll()
            case 1:
                log.flush()
            case 2:
                # Any offset: its whole batch is removed.
                offset = max(log.end_offset - generator.randint(0, 60), log.start_offset)
                _say(f"truncate {offset}")
                log.truncate_to(offset)
                _say("done")
            case 3:
                offset = generator.randint(log.start_offset, log.end_offset)
                _say(f"delete {offset}")
                log.delete_records(offset)
                _say("done")
            case 4 if generator.random() < 0.3:
                offset = max(log.end_offset + generator.randint(-20, 20), 0)
                _say(f"start {offset}")
                writer_of(log).truncate_fully_and_start_at(offset)
                _say("done")
            case 5 if generator.random() < 0.3:
                log.close()
                log = _open(path, durability)
            case _:
                first, count = log.end_offset, generator.choice([1, 1, 3, 20])
                size = generator.choice([0, 30, 400])
                _say(f"append {first} {count} {serial}")
                log.append_many([telling_value(first + number, serial, size) for number in range(count)])
                _say("done")


def main() -> None:
    """Serves requests until standard input ends."""
    for line in sys.stdin:
        path, durability, seed = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                _write(path, durability, int(seed))
            except BaseException:
                _say("failed " + repr(traceback.format_exc()))
            finally:
                os._exit(1)
        _say(f"started {pid}")
        _say(f"ended {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


if __name__ == "__main__":
    main()
