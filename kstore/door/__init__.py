"""A door: Kafka's clients read from and write to a store over Kafka's own protocol. No other part knows of it.

faces       door
bytes       frames (sizes and headers)  apis (the closed list)  errors (codes)
threads     server (accepts, looks after idle ones)  connection (one thread each)  inbox (what its peer has sent)
            memory (the budget)  guard (who may)
tests       faults (what a door does wrong on purpose)
handlers    call  reply  served  waiting    what a handler gets, and what it gives: the request, the door, a way to wait
            cluster  topics            one module a subject
            parking                    waits for one of many logs to grow
            fetching  fetch_part  fetch_reply  offsets  producing  describing
            membership  committing
groups      group (the rules, pure)  groups (locks, and requests that wait)

Why
===

Kafka's protocol is what every client, tool and user interface speaks, so a door speaks it, and nothing of its own. The
list of requests is closed: what clients of all kinds passed with when a broker's list was cut down to it. No topic ids,
fetch sessions, groups of the new protocol: clients ask for them only where they are listed.

- **A thread a connection, blocking sockets.** Against one loop, neither was faster in any consistent way; a request
  that waits parks its thread, an answer is in order by itself, and a slow peer stops no other. 512 threads take 8.5 MB.
- **One dict serves all versions** of a message: a handler reads every field with its default, and writes those that it
  knows. The schemas are generated from Kafka's definitions, as those of stored messages are.
- **The kernel says whose a connection is**, for one socket over netlink: a table of 20,000 sockets takes 30 ms to read,
  which is the fallback. A socket that its process has closed is reported as root's, and so does not count. Rejected: a
  token in the address, which no client can be given, and unix sockets, which no client speaks.
- **Limits go by kind of request.** Kafka's one limit of 100 MiB would let a Metadata request of 1 MiB, with 500,000
  empty names, take 100 MB as often as there are connections. So what a request takes when it is parsed, by its
  elements, counts against one budget, as its bytes do; a request that waits keeps only what it has.
- **A large frame is received in memory that another one had**, of which a little is kept, and its batches are checked
  where they lie. Fresh memory was mapped, zeroed and given back three times for each batch of 1 MB, on a busy machine
  for as long as everything else took: 3.2 s of processor time for a GB, now 1.5 s.
- **One receive takes all that has come**, up to 64 KiB: a small frame whole, or several of a peer that does not wait
  for answers. A receive each for size, head and rest cost a tenth of a small request.
- **A small request costs 90 us**: a Produce of 16 KB, of which the system takes 30. With the codec in Python, and an
  append that looked at everything three times, it was 190.
- **No file says that a store has a door.** The store's lock keeps other processes out, and a store knows its own door.
  A read-only door writes nothing, and there may be several.
- **A connection remembers what its last Fetch found at the ends of logs**, up to 16 MiB for all, and the next one looks
  at what has changed. An idle consumer of 1,000 partitions takes 3 to 4 % of a core so, and took 7 to 10 % when each
  log was looked up again. Rejected: fetch sessions (KIP-227), which would spare the other half, the bytes of requests
  and answers, but not to librdkafka, which knows none.
- **Partitions of one request are synced side by side**, each after its own write. On ext4 and a disk that syncs in 0.2
  ms, 100 files took 10 ms so, 8 ms if all were written before the first sync, and 20 ms one after another. Rejected: to
  write first, which would take a log's write and its sync apart for a fifth; and `syncfs`, 4 ms, which waits for what
  other programs have written, and reports their failures.
- **The rules of groups are a machine without threads, clock and I/O**: events in, answers out, each request that waits
  answered once. So random lives of groups with broken clients take no time, and find what would show as a client that
  hangs once a day. The shell adds a lock for each group, held over the check of a member and its commit. Rejected: to
  keep members on disk as a broker does; after a restart clients join again by themselves.
- **A group has members of one kind.** The store's own consumers share partitions through a state of their own, whose
  members never stop for a rebalance; to lead both kinds would take a third set of rules.
- **Bytes after a request are left alone**, as a broker does: librdkafka sends some.
"""
