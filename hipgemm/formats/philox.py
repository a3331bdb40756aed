"""Random numbers for stochastic rounding and random signs: the counter-based generator Philox4x32-10.

Each word is a function of a seed and an index alone, so kernels on any number of devices and the reference
compute the same ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_LOW, _HALF = 2**32 - 1, np.uint64(32)
MAX_SEED = 2**64 - 1


def key_of(seed: int) -> tuple[int, int]:
    """Return the key of a seed: its lower and its upper 32 bits.

    >>> key_of(2**32 + 5)
    (5, 1)
    """
    return seed & _LOW, seed >> 32


def philox(counter: npt.NDArray[Any], key: tuple[int, int]) -> Words:
    """Return four random words for each counter of four words, along the last axis.

    >>> [hex(word) for word in philox(np.zeros(4, np.uint32), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    a, b, c, d = (counter[..., i].astype(np.uint64) for i in range(4))
    for i in range(_ROUNDS):
        keys = (np.uint64((k + i * step) & _LOW) for k, step in zip(key, _KEY_STEPS, strict=True))
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, c = (second >> _HALF) ^ b ^ next(keys), (first >> _HALF) ^ d ^ next(keys)
        b, d = second & np.uint64(_LOW), first & np.uint64(_LOW)
    return np.stack((a, b, c, d), axis=-1).astype(np.uint32)


def random_words(shape: tuple[int, ...], seed: int) -> Words:
    """Return one word for each element of an array: word i % 4 of counter i // 4, i its index in C order.

    >>> [hex(word) for word in random_words((2, 3), 0)[1]]
    ['0x9b00dbd8', '0xf8e4cca4', '0x5cb200db']
    """
    size = math.prod(shape)
    blocks = np.arange(-(-size // 4), dtype=np.uint64)
    zero = np.zeros_like(blocks)
    counters = np.stack((blocks & np.uint64(_LOW), blocks >> _HALF, zero, zero), axis=-1)
    return philox(counters, key_of(seed)).reshape(-1)[:size].reshape(shape)


def random_signs(length: int, seed: int, start: int = 0) -> npt.NDArray[np.float32]:
    """Return 1 or -1 for each element of a row: negative if the highest bit of its word is set.

    `start` is the position of the first element in the row that was quantized.

    >>> random_signs(6, 0)
    array([ 1., -1., -1., -1., -1.,  1.], dtype=float32)
    """
    negative = random_words((start + length,), seed)[start:] >> np.uint32(31)
    return np.asarray(1 - 2 * negative.astype(np.float32))
