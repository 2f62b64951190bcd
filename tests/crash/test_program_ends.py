"""How a program may end, and what becomes of what ``send`` accepted: docs/producer.md, "The end", in real processes.

Each program sends 100 records with a linger that outlives it, so that nothing but its end delivers them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import kstore

COUNT = 100
SECONDS_MAX = 300
# The store and a function that sends, for every program; ``shared`` lets children open the store too.
HEAD = """
import kstore, os, signal, sys, threading, time

def opened(**settings):
    store = kstore.open(WHERE, durability="os", **settings)
    store.topic("t", partitions=1)
    return store

def sent(producer, first=0):
    for number in range(first, first + 100):
        producer.send("t", b"%d" % number)
    return producer

def main(**settings):
    store = opened(**settings)
    producer = sent(store.producer(linger_ms=600_000))
    return store, producer
"""

DELIVERED = {
    "the function of the producer returns": "def run():\n    main()\n    return None\nrun()",
    "the producer and the store are alive": "kept = main()",
    "the producer is deleted and the store is alive": "store, producer = main()\ndel producer",
    "the store is closed after its producer is gone": """
        store, producer = main()
        del producer
        store.close()
        with kstore.Log(WHERE + "/t-0", read_only=True) as log:
            assert log.end_offset == 100
        os._exit(0)  # the process would live on: nothing else may deliver them
    """,
    "the store is closed before its producer": """
        store, producer = main()
        store.close()
        try:
            producer.send("t", b"late")
        except kstore.ClosedError:
            os._exit(0)
    """,
    "the store's block ends in a function": """
        def run():
            with opened() as store:
                sent(store.producer(linger_ms=600_000))
        run()
        os._exit(0)
    """,
    "sys.exit in the function": "def run():\n    main()\n    sys.exit(0)\nrun()",
    "an exception that no caller handles": "def run():\n    main()\n    raise ValueError\nrun()",
    "an exception that the program handles": "try:\n    main()\n    raise ValueError\nexcept ValueError:\n    pass",
    "the thread of the producer ends": "threading.Thread(target=main).start()",
    "a daemon thread still has the producer": """
        begun = threading.Event()
        def run():
            kept = main()
            begun.set()
            time.sleep(600)
        threading.Thread(target=run, daemon=True).start()
        begun.wait()
    """,
    "a pool of threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(1) as pool:
            pool.submit(main).result()
    """,
    "the event loop ends": """
        import asyncio, kstore.aio
        async def run():
            store = await kstore.aio.open(WHERE, durability="os")
            await store.topic("t", partitions=1)
            producer = store.producer(linger_ms=600_000)
            for number in range(100):
                await producer.send("t", b"%d" % number)
        asyncio.run(run())
    """,
    "Ctrl-C": """
        kept = main()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(600)
    """,
    "SIGTERM with a handler that exits": """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        kept = main()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    """,
    "a forked child has a producer of its own": """
        import warnings
        opened(shared=True).close()
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork() == 0:
            main(shared=True)
            sys.exit(0)
        os.wait()
    """,
    "the parent's records at a fork": """
        import warnings
        kept = main()
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    """,
    "a handler of atexit sends": """
        import atexit
        store = opened()
        atexit.register(lambda: sent(producer))
        import multiprocessing.util  # its own handler runs before
        producer = store.producer(linger_ms=600_000)
    """,
    "a thread of a child of multiprocessing outlives its function": """
        import multiprocessing
        from concurrent.futures import ThreadPoolExecutor
        def work():
            store = opened(shared=True)
            idle = ThreadPoolExecutor(1)
            idle.submit(int)
            first = store.producer(linger_ms=600_000)
            def late():
                while not any(thread.name == "kstore-exit" for thread in threading.enumerate()):
                    time.sleep(0.01)  # until the child is at its end
                for number in range(50):
                    first.send("t", b"%d" % number)
                first.flush()
                last = store.producer(linger_ms=600_000)
                for number in range(50, 100):
                    last.send("t", b"%d" % number)
            threading.Thread(target=late).start()
        opened(shared=True).close()
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()
        os._exit(0)
    """,
    **{
        f"a child of multiprocessing, {method}": f"""
            import multiprocessing
            if __name__ == "__main__":
                opened(shared=True).close()
                child = multiprocessing.get_context("{method}").Process(target=main, kwargs=dict(shared=True))
                child.start()
                child.join()
                assert child.exitcode == 0
                os._exit(0)
        """
        for method in ("fork", "spawn")
    },
    "a pool of forked processes": """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        def work():
            global kept
            kept = main(shared=True)
        opened(shared=True).close()
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            pool.submit(work).result()
        os._exit(0)
    """,
}

LOST = {
    "os._exit": "kept = main()\nos._exit(0)",
    "SIGKILL": "kept = main()\nos.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "kept = main()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(600)",
    "a daemon child of multiprocessing": """
        import multiprocessing
        sending = multiprocessing.get_context("fork").Event()
        def run():
            kept = main(shared=True)
            sending.set()
            time.sleep(600)
        opened(shared=True).close()
        multiprocessing.get_context("fork").Process(target=run, daemon=True).start()
        sending.wait()
    """,
    "Pool.terminate": """
        import multiprocessing
        def work(_):
            global kept
            kept = main(shared=True)
        opened(shared=True).close()
        with multiprocessing.get_context("fork").Pool(1) as pool:  # its block ends with terminate
            pool.map(work, [0])
    """,
}


def run(where: Path, code: str, *options: str, head: str = HEAD) -> subprocess.CompletedProcess[str]:
    program = where / "program.py"  # a file: a child that is spawned imports it
    program.write_text(f"WHERE = {str(where / 'store')!r}\n{head}\n{textwrap.dedent(code)}\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, *options, str(program)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(Path(kstore.__file__).parents[1])},
    )


def values(where: Path) -> list[int]:
    with kstore.Log(where / "store" / "t-0", read_only=True) as log:
        return [int(value or b"-1") for value in log.read_values()]


@pytest.mark.promise("program ends")
@pytest.mark.sampled(4, keep=("the function of the producer returns", "a child of multiprocessing, fork"))
@pytest.mark.parametrize("code", DELIVERED.values(), ids=DELIVERED)
def test_what_send_accepted_is_delivered_once_however_the_program_ends(code: str, tmp_path: Path) -> None:
    done = run(tmp_path, code)
    assert values(tmp_path) == list(range(COUNT)), done.stderr
    assert "lost" not in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", ["the function of the producer returns", "the event loop ends", "a pool of threads"])
def test_python_s_development_mode_changes_nothing(way: str, tmp_path: Path) -> None:
    done = run(tmp_path, DELIVERED[way], "-X", "dev")
    assert values(tmp_path) == list(range(COUNT)), done.stderr
    assert "Traceback" not in done.stderr
    assert "unclosed Producer" in done.stderr


@pytest.mark.promise("program ends")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("code", LOST.values(), ids=LOST)
def test_an_end_that_no_program_can_notice_loses_what_was_not_delivered(code: str, tmp_path: Path) -> None:
    done = run(tmp_path, code)
    assert values(tmp_path) == [], done.stderr


FULL = """
import resource
kstore.producer.background.EXIT_SECONDS = 0.3
def main():
    store = opened()
    producer = sent(store.producer(linger_ms=0))
    producer.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))  # from here on, the disk is full
    sent(producer, 100)
    return store, producer
"""


@pytest.mark.promise("program ends")
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("code", "when"),
    [
        ("kept = main()", "at the interpreter's exit"),
        ("main()", "at the interpreter's exit"),
        ("store, producer = main()\ndel producer\nstore.close()\nos._exit(0)", "when their store was closed"),
    ],
    ids=["alive", "dropped", "store closed"],
)
def test_what_cannot_be_delivered_at_the_end_is_named_with_its_count(code: str, when: str, tmp_path: Path) -> None:
    done = run(tmp_path, code, head=HEAD + "import kstore.producer.background\n" + FULL)
    assert values(tmp_path) == list(range(COUNT))
    assert f"producer-1: records were lost {when}: 100 of t-0" in done.stderr


def test_ctrl_c_ends_the_wait_at_the_exit_and_what_is_lost_is_named(tmp_path: Path) -> None:
    code = """
        import atexit
        kept = main()
        kstore.producer.background.EXIT_SECONDS = 600
        # Runs before kstore's own, which was registered before it.
        atexit.register(lambda: signal.setitimer(signal.ITIMER_REAL, 0.5))
        signal.signal(signal.SIGALRM, signal.default_int_handler)
    """
    done = run(tmp_path, code, head=HEAD + "import kstore.producer.background\n" + FULL)
    assert "producer-1: records were lost at the interpreter's exit: 100 of t-0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["del producer\nimport gc; gc.collect()\ntime.sleep(0.5)\nos._exit(0)", "pass"])
def test_failed_deliveries_of_a_dropped_producer_are_logged(end: str, tmp_path: Path) -> None:
    code = f"""
store = opened()
producer = store.producer(linger_ms=0, max_block_ms=10)
for _ in range(5):
    producer.send("u", b"there is no such topic")
{end}
"""
    done = run(tmp_path, code)
    assert "producer-1: 5 records were not delivered; the first: TopicWaitTimeoutError" in done.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["del producer\nstore.close()\nos._exit(0)", "del producer", "pass"])
def test_an_open_transaction_is_aborted_and_told_and_never_committed(end: str, tmp_path: Path) -> None:
    code = f"""
store = opened()
producer = store.producer(linger_ms=0, transactional_id="bills")
producer.init_transactions()
producer.begin_transaction()
sent(producer)
{end}
"""
    done = run(tmp_path, code)
    assert done.stderr.count("producer-bills: its open transaction is aborted") == 1
    assert "Traceback" not in done.stderr
    with kstore.open(tmp_path / "store") as store:
        assert list(store.log("t").read(isolation_level="read_committed")) == []


@pytest.mark.long
def test_a_signal_that_stops_a_sleeping_program_loses_nothing_that_was_awaited(tmp_path: Path) -> None:
    code = """
        kept = main()
        kept[1].flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run(tmp_path, code).returncode == -signal.SIGKILL
    assert values(tmp_path) == list(range(COUNT))


def test_a_future_of_the_parent_fails_in_a_forked_child_and_is_completed_in_the_parent(tmp_path: Path) -> None:
    code = """
        import warnings
        from concurrent.futures import as_completed, wait
        store = opened()
        producer = store.producer(linger_ms=600_000)
        called = []
        done, pending = (producer.send("t", b"0").future(), producer.send("t", b"1").future())
        producer.flush()
        pending = producer.send("t", b"2").future()
        pending.add_done_callback(called.append)
        warnings.simplefilter("ignore", DeprecationWarning)
        with pending._condition:  # as if another thread were just looking
            child = os.fork()
        if child == 0:
            assert done.result().offset == 0
            assert wait([pending]).done == set(as_completed([pending])) == {pending}
            try:
                pending.result()
            except kstore.ForkedError:
                os._exit(0 if called == [] else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        producer.flush()
        assert pending.result().offset == 2
    """
    done = run(tmp_path, code)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_parent_s_delivery_fails_in_a_forked_child_also_without_its_producer(tmp_path: Path) -> None:
    code = """
        import gc, warnings
        store = opened()
        producer = store.producer(linger_ms=600_000)
        first = producer.send("t", b"0")
        first.result()
        pending = producer.send("t", b"1")
        del producer
        gc.collect()  # what has no result yet is kept by the background alone
        other = store.producer(linger_ms=600_000)
        waiting = other.send("t", b"2")
        warnings.simplefilter("ignore", DeprecationWarning)
        if os.fork() == 0:
            assert first.future().result().offset == 0
            for call in (waiting.future().result, waiting.result, pending.result):
                try:
                    assert call(SECONDS).offset == 1 and pending.done()  # it was written before the fork
                except kstore.ForkedError:
                    pass
            del other
            gc.collect()
            for call in (waiting.future().result, waiting.result):
                try:
                    call(SECONDS)
                except kstore.ForkedError:
                    continue
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        assert (pending.result().offset, waiting.result().offset) == (1, 2)
    """
    done = run(tmp_path, code, head=f"{HEAD}\nSECONDS = {SECONDS_MAX}")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


# --- queues and groups ------------------------------------------------------------------------------------------------

AT_WORK = """
import kstore, os, signal, sys
store = kstore.open(WHERE, durability=sys.argv[1], shared=sys.argv[2] == "shared")
queue = store.queue("jobs")
for number in range(20):
    queue.put(b"%d" % number)
for _ in range(10):
    queue.get().ack()
queue.get().nack()
for job in queue.get_many(3):
    job.ack()
if sys.argv[2] == "alone":
    store.topic("t", partitions=1)
    with store.producer() as producer:
        for number in range(20):
            producer.send("t", b"%d" % number)
    consumer = store.consumer("t", group="g")
    for _ in range(3):
        consumer.poll(max_records=3)
    consumer.commit()
"""
ENDS = {
    "the last line": "",
    "sys.exit": "sys.exit()",
    "an exception": "raise ValueError",
    "os._exit": "os._exit(0)",
    "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.promise("program ends")
@pytest.mark.sampled(2, keep=("SIGKILL-alone-os",))
@pytest.mark.parametrize("durability", ["sync", "interval", "os"])
@pytest.mark.parametrize("sharing", ["alone", "shared"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_what_was_put_acked_and_committed_stays_however_the_program_ends(
    end: str, sharing: str, durability: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"WHERE = {str(tmp_path / 'store')!r}\n{AT_WORK}\n{end}\n", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-W", "ignore", str(program), durability, sharing],
        env={**os.environ, "PYTHONPATH": str(Path(kstore.__file__).parents[1])},
        stderr=subprocess.DEVNULL,
        timeout=SECONDS_MAX,
        check=False,
    )
    with kstore.open(tmp_path / "store") as store:
        queue = store.queue("jobs")
        waiting = [job.value for job in queue.get_many(100, block=False)]
        assert waiting == [b"%d" % number for number in range(13, 20)]
        if sharing == "alone":
            with store.consumer("t", group="g") as consumer:
                (records,) = consumer.poll(max_records=100).values()
            assert [record.offset for record in records] == list(range(9, 20))
