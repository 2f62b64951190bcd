"""What a Kafka broker does for producers and groups, in one process: ids, transactions, offsets.

Why
===

`kstore/transactions/` does in one process what a broker does for producers and groups. A store makes its coordinator
at the first use.

- **Producer ids** come in blocks of 1,000, reserved in `kstore.producer-ids` before the first is used, above every id
  in producers' snapshots, open logs and transactions. They begin at 2^40: a cluster counts from 0, and when a broker
  takes the logs over, it must not mistake its own producers for kstore's.
- **One record decides a transaction.** Ongoing, with its partitions, is on disk before anything is written to them;
  PrepareCommit or PrepareAbort before the first marker; Complete after the last. The next open completes what was
  decided, with markers in all its partitions, repeated if need be: a second marker ends nothing. It aborts what was
  open, because the producer is gone. `close()` does that too, and so does a task once the timeout is over (by the
  monotonic clock). In a broker's directory nothing is finished until the coordinator is used.
- **Each decision takes the next epoch**, as in Kafka 4 (KIP-890), and its markers carry it: no late batch of a
  transaction can follow its end, and a fenced producer cannot write to a partition that was only announced. After the
  last epoch the producer gets another id.
- **`__transaction_state`** has one partition: all transactions of a store end in one log, so those that end at the
  same time share a sync, and an open reads one log. A broker uses the count it finds. Its durability is `"sync"`
  whatever the store's is, unless `alter_topic` says otherwise: losing a decision after a marker was written would
  commit one partition and abort another. If the partitions themselves are not `"sync"`, a power cut may take a
  committed transaction's records from one of them and not from another; a kill never does.
- **`__consumer_offsets`** has 50 partitions, Kafka's default: a broker looks for a group in the partition given by
  the hash of its name, also in a topic of its own. The first commit makes them, 50 directories at once; only those
  that hold a group are ever opened. Its durability is the store's. Plain commits count at once, even past open
  transactions. Committed offsets carry no topic ids, because a handover gives topics their cluster's.
- Both topics are compacted, in segments of 1 MiB, because they are read whole, and `topics()` hides them unless
  asked.
"""
