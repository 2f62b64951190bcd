"""kstore for asyncio: nothing here blocks the loop, and no thread waits for a task.

store        open, and what blocks: in a few threads of the store's own (threads); `in_thread` makes such methods
producing    sends, which wait for memory by awaiting (sending)
log          appends, which are combined (gathering), and ``async for`` (reading), woken when it grows (waking)
consuming    ``async for`` over topics, and everything else of a consumer (polling)
queueing     puts and acks, also combined, and gets, which wait (leasing)

Why
===

- **Appends, puts and acks of tasks** wait in lines (`aio/_line.pyx`), one for the appends of a log and two for a
  queue. A *server*, a thread of the store, takes what waits in a line, commits it with one append, and takes the next
  items at once: it does not ask the loop. The loop is woken once for each append, and each task awaits its own
  future. So the disk does not idle while the loop runs. Rejected: the end of each write passes through a pool and the
  loop before the next one begins (256 tasks got a third).
- **One server a store** is enough for one busy line. A further one starts only if a line has items while all others
  write, up to the store's number of threads, so no log waits for the disk of another.
- **The interpreter's lock guards the lines**: compiled code changes them without an allocation or a Python call. A
  cancelled task either takes its item out of the line or finds it taken, and no signal comes between an item and the
  call of a server.
- **A record that is not certainly valid** (large, with headers or a time of its own, of another class than bytes, in
  a compacted log) is encoded alone first, in the server. Its error is its task's, and the others share one append.
- **16 MiB wait in a line**; further tasks keep their items until there is room, in turn. One append takes 4 MiB or
  1,000 items.
"""

from kstore.aio.consuming import Consumer
from kstore.aio.log import Log
from kstore.aio.producing import Producer, SentMany
from kstore.aio.queueing import Job, Queue
from kstore.aio.reading import Reader
from kstore.aio.store import Store, open

__all__ = ["Consumer", "Job", "Log", "Producer", "Queue", "Reader", "SentMany", "Store", "open"]
