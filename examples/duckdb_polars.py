"""SQL and data frames over a log: the columns go from the files into Arrow's memory, with no object per record.

usage: python duckdb_polars.py [DIRECTORY]        needs pip install 'kstore[arrow]' duckdb polars
"""

from __future__ import annotations

import json
import sys

import kstore

try:
    import duckdb
    import polars
    import pyarrow  # noqa: F401  # kstore makes the columns with it
except ModuleNotFoundError as error:
    sys.exit(f"{error}: this example needs pip install 'kstore[arrow]' duckdb polars")


def main(directory: str = "data/clicks-0") -> None:
    with kstore.Log(directory, compression_type="lz4") as log:
        if not log.end_offset:
            pages = ("home", "cart", "pay")
            values = [json.dumps({"page": pages[number % 3]}).encode() for number in range(30_000)]
            log.append_many(values, keys=[b"user-%d" % (number % 7) for number in range(30_000)])

        # DuckDB reads the log as a stream of Arrow batches. In a session of your own, a Python variable's name will do.
        database = duckdb.connect()
        database.register("clicks", log.to_arrow_batches(columns=["key", "value"]))
        by_page = database.execute(
            "select json_extract_string(decode(value), '$.page') as page, count(*) as clicks "
            "from clicks group by page order by page"
        )
        print(by_page.fetchall())

        frame = polars.DataFrame(log.to_arrow_batches(columns=["key", "timestamp"]))
        print(frame.group_by("key").len().sort("key").rows()[:2])


if __name__ == "__main__":
    main(*sys.argv[1:])
