"""What changes the files of an open log, apart from the append itself, and who waits for a change.

All of it needs the log's turn. Each change has one order: store what lowers a promise, act, sync, store what raises
one, publish. A failure before the act leaves nothing to undo; a failure of unknown outcome poisons the log.

    roll          where one segment ends and the next one begins, and how a failed append goes back
    durability    when the bytes of an append are on disk: one strategy for each setting
    flush         how they get there: at once, in the background, at the close
    cuts          truncation, deletion, the swap of a compacted segment
    retention     which segments go by age and size
    growth        followers of the log: woken by its writer, or looking for what other processes appended
"""
