"""An application's event log: one thread appends, another follows, and a third party looks up a time.

usage: python event_log.py [DIRECTORY]
"""

from __future__ import annotations

import json
import sys
import threading
from datetime import UTC, datetime, timedelta

import kstore


def main(directory: str = "data/events-0") -> None:
    with kstore.Log(directory, compression_type="zstd") as log:
        first = log.end_offset

        def follow() -> None:
            # A reader takes no lock. It sleeps until the next append, and ends at the offset "stop".
            for record in log.read(first, stop=first + 3, follow=True):
                print("seen", json.loads(record.value or b"null")["event"])

        follower = threading.Thread(target=follow)
        follower.start()
        for event in ("login", "order", "logout"):
            log.append(json.dumps({"event": event}).encode(), key=b"user-7")  # on disk when this returns
        follower.join()

        a_minute_ago = datetime.now(UTC) - timedelta(minutes=1)
        offset = log.offset_for_time(a_minute_ago)
        print("events of the last minute:", log.end_offset - max(offset or 0, first))


if __name__ == "__main__":
    main(*sys.argv[1:])
