"""The outbox pattern: what a database transaction leaves in a table becomes records of a topic, exactly once.

An order and the event about it are committed together, in sqlite3. A relay moves the events into a topic. The kstore
transaction that writes the records also stores the row id that the relay has reached, as the committed offset of a
group. If the relay dies at any point, the next run continues at the right row.

usage: python outbox.py [DIRECTORY]
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import kstore

RELAY = "outbox-relay"


def order(database: sqlite3.Connection, item: str) -> None:
    with database:  # both rows, or none
        database.execute("insert into orders (item) values (?)", (item,))
        database.execute("insert into outbox (event) values (?)", (f"ordered {item}".encode(),))


def relay(database: sqlite3.Connection, store: kstore.Store) -> int:
    """Moves the events that are not in the topic yet; returns their number."""
    row_ids = kstore.TopicPartition("outbox-rows", 0)  # names the position, not a topic with records
    with store.producer(transactional_id=RELAY) as producer:  # ends what a relay before it left open
        found = store.consumer_offsets.committed(RELAY).get(row_ids)
        rows = database.execute(
            "select id, event from outbox where id > ? order by id", (found.offset if found else 0,)
        ).fetchall()
        if rows:
            with producer.transaction():
                for _, event in rows:
                    producer.send("events", event)
                producer.send_offsets({row_ids: rows[-1][0]}, RELAY)
    return len(rows)


def main(directory: str = "data/outbox") -> None:
    Path(directory).mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(Path(directory, "shop.sqlite3"))
    database.executescript(
        "create table if not exists orders (id integer primary key, item text);"
        "create table if not exists outbox (id integer primary key autoincrement, event blob);"
    )
    with kstore.open(Path(directory, "log")) as store:
        for topic in ("events", "outbox-rows"):
            store.topic(topic)  # created, if it does not exist
        for item in ("apples", "pears"):
            order(database, item)
        print("moved", relay(database, store))
        print("moved again", relay(database, store))
        events = [record.value for record in store.log("events").read(isolation_level="read_committed")]
        rows = [event for (event,) in database.execute("select event from outbox order by id")]
        print("the topic holds the table's events:", events == rows)
    database.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
