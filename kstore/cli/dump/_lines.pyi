RECORDS: int
METADATA: int
CONTENTS: int
UNKNOWN: int

def plain_lines(
    data: bytes, at: int, stop: int, position: int, what: int, last_offset: int, gaps: list[tuple[int, int]]
) -> tuple[str, int, int]: ...
