"""Follows a topic in a Kafka broker's log directory, from the disk: no network, no load on the broker, no lock.

It sees what the broker has written to its files, through the page cache, as soon as a consumer would. It needs read
access to the directory, which the broker's setting log.dirs names.

usage: python follow_broker.py DIRECTORY TOPIC [SECONDS]
"""

from __future__ import annotations

import sys

import kstore


def main(directory: str, topic: str, seconds: str = "1") -> None:
    with kstore.open(directory, read_only=True) as store:
        print("topics here:", ", ".join(store.topics()))
        with store.consumer(topic, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
            count = 0
            # Ends when nothing came for that many seconds; None waits forever.
            while found := consumer.poll(timeout=float(seconds)):
                count += sum(map(len, found.values()))
            print(f"{count} records, positions {sorted(map(str, consumer.assignment()))}")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python follow_broker.py DIRECTORY TOPIC [SECONDS]")
    try:
        main(*sys.argv[1:])
    except kstore.KstoreError as error:  # no such directory or topic
        sys.exit(str(error))
