"""A member of a group in a process of its own: it notes each record that it gets, and each commit that returned.

All members append to one file, so its lines are in the order of events::

    R <partition> <offset>      a record was returned
    C <partition> <offset>      the commit of this offset has returned
"""

from __future__ import annotations

import os
import sys

import kstore

if __name__ == "__main__":
    path, journal, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)
    with (
        kstore.open(path, shared=True, durability="os", background=False) as store,
        store.consumer("t", group="g", heartbeat_interval_ms=50, max_poll_records=1 + seed % 7) as consumer,
    ):
        while True:
            found = consumer.poll(timeout=0.2)
            rows = [f"R {number} {record.offset}\n" for (_, number), records in found.items() for record in records]
            if rows:
                os.write(fd, "".join(rows).encode())
            consumer.commit()
            rows = [f"C {number} {offset}\n" for (_, number), offset in consumer.positions().items()]
            os.write(fd, "".join(rows).encode())
