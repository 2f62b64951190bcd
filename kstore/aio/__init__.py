"""kstore for asyncio: nothing here blocks the loop, and no thread waits for a task.

store        open, and what blocks: in a few threads of the store's own (threads)
producing    sends, which wait for memory by awaiting (sending)
log          appends, which are combined (gathering), and ``async for`` (reading), woken when it grows (waking)
consuming    ``async for`` over topics, and everything else of a consumer (polling)
queueing     puts and acks, also combined, and gets, which wait (leasing)
"""

from kstore.aio.consuming import Consumer
from kstore.aio.log import Log
from kstore.aio.producing import Producer, SentMany
from kstore.aio.queueing import Job, Queue
from kstore.aio.reading import Reader
from kstore.aio.store import Store, open

__all__ = ["Consumer", "Job", "Log", "Producer", "Queue", "Reader", "SentMany", "Store", "open"]
