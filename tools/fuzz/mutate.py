"""Makes new inputs from seeds: small, random, repeatable damage to any bytes.

A mutator is a function (data, rng, pool) -> data; ``pool`` holds other inputs of the same kind, to splice from.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Mutator = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
Step = Callable[[bytearray, random.Random, Sequence[bytes]], bytearray]

# Where sizes, counts and offsets change their meaning.
INTERESTING = (
    *(0, 1, -1, 2, 7, 14, 61, 127, 128, 255, 256, 4096, 32767, 32768, 65535, 65536),
    *(2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**40, 2**63 - 2, 2**63 - 1, -(2**63)),
)
# The largest input: small ones reveal bugs sooner.
SIZE_MAX = 16 << 10
STEPS_MAX = 4
RUN_MAX = 32


def mutate(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """``data`` with one to a few faults in it."""
    found = bytearray(data)
    for _ in range(rng.randint(1, STEPS_MAX)):
        found = rng.choice(STEPS)(found, rng, pool)
    return bytes(found[:SIZE_MAX])


def mended(mutator: Mutator, mend: Callable[[bytes], bytes], share: float = 0.8) -> Mutator:
    """``mutator``, with corrected checksums for that share of the inputs, which reach the code after the check."""

    def mutate_and_mend(data: bytes, rng: random.Random, pool: Sequence[bytes]) -> bytes:
        found = mutator(data, rng, pool)
        return mend(found) if rng.random() < share else found

    return mutate_and_mend


def _at(data: bytearray, rng: random.Random) -> int:
    return rng.randrange(len(data)) if data else 0


def _run(data: bytearray, rng: random.Random) -> slice:
    start = _at(data, rng)
    return slice(start, start + rng.randint(1, RUN_MAX))


def flip_bit(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    if data:
        data[_at(data, rng)] ^= 1 << rng.randrange(8)
    return data


def set_byte(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    if data:
        data[_at(data, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return data


def set_number(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    size = rng.choice((2, 4, 8))
    if len(data) >= size:
        at = rng.randrange(len(data) - size + 1)
        number = rng.choice(INTERESTING) + rng.choice((-1, 0, 0, 1))
        order = rng.choice(("big", "big", "big", "little"))
        data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "big" if order == "big" else "little")
    return data


def add_to_byte(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    if data:
        at = _at(data, rng)
        data[at] = (data[at] + rng.choice((-2, -1, 1, 2))) % 256
    return data


def truncate(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    del data[_at(data, rng) :]
    return data


def remove(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    del data[_run(data, rng)]
    return data


def duplicate(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    run = _run(data, rng) if rng.random() < 0.5 else slice(0, len(data))
    at = rng.randint(0, len(data))
    data[at:at] = data[run]
    return data


def insert(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    at = rng.randint(0, len(data))
    size = rng.randint(1, RUN_MAX)
    data[at:at] = bytes(size) if rng.random() < 0.3 else rng.randbytes(size)
    return data


def splice(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    other = rng.choice(pool) if pool else b""
    start = rng.randint(0, len(other))
    data[rng.randint(0, len(data)) :] = other[start:]
    return data


def append_other(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    return data + (rng.choice(pool) if pool else b"")


def zero_tail(data: bytearray, rng: random.Random, pool: Sequence[bytes]) -> bytearray:
    at = _at(data, rng)
    data[at:] = bytes(len(data) - at)
    return data


STEPS: tuple[Step, ...] = (
    *(flip_bit, flip_bit, set_byte, set_byte, set_number, set_number, add_to_byte),
    *(truncate, remove, duplicate, insert, splice, append_other, zero_tail),
)
