"""A work queue with two worker processes. One is killed in the middle of a job; the other one gets that job.

usage: python work_queue.py [DIRECTORY]
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys

import kstore


def work(directory: str) -> None:
    """Does jobs until none is left. Each process opens the store itself: an open store does not survive a fork."""
    with kstore.open(directory, shared=True) as store:
        jobs = store.queue("jobs", lease_seconds=0.5)
        while True:
            try:
                # Acknowledged at the end of the block; given back after an exception, or when the lease is over.
                with jobs.get(timeout=1.5) as job:
                    if job.value == b"job 4" and job.delivery_count == 1:
                        os.kill(os.getpid(), signal.SIGKILL)  # the lease ends, and the other worker gets it
                    store.queue("done").put(job.value or b"")
            except queue.Empty:
                return


def main(directory: str = "data/work") -> None:
    with kstore.open(directory, shared=True) as store:
        store.queue("jobs").put_many([b"job %d" % number for number in range(10)])
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=work, args=(directory,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    with kstore.open(directory) as store:
        done = store.queue("done").get_many(100)
        print("killed:", sum(worker.exitcode == -signal.SIGKILL for worker in workers))
        # A worker that dies between its put and its acknowledgement leaves a job done twice: so the set.
        print("done:", sorted({(job.value or b"").decode() for job in done}))
        store.queue("done").ack_many(done)


if __name__ == "__main__":
    main(*sys.argv[1:])
