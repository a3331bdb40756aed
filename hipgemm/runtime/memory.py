"""Device memory that hipgemm holds: how much, how much at most, and giving it back."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from ..formats.checks import Checks
from . import hip as _hip
from . import pool as _pool


@dataclass(frozen=True)
class MemoryStats:
    """What `memory_stats` found on a device. All in bytes but the counts.

    Attributes
    ----------
    device : int
        The device.
    used : int
        In arrays and in work that is queued.
    cached : int
        Held for reuse.
    peak : int
        The most that was in use at once.
    limit : int or None
        The most that hipgemm may hold, used and cached.
    cache_limit : int or None
        The most that it may keep for reuse.
    free, total : int
        What the device has left, and in all, by HIP.
    pinned : int
        Memory of the host through which copies go.
    requests : int
        How many pieces of memory were asked for so far.
    mallocs : int
        How many of these HIP had to allocate.
    """

    device: int
    used: int
    cached: int
    peak: int
    limit: int | None
    cache_limit: int | None
    free: int
    total: int
    pinned: int
    requests: int
    mallocs: int


def memory_stats(device: int | None = None) -> MemoryStats:
    """Tell how much memory hipgemm holds on a device.

    Parameters
    ----------
    device : int, optional
        Default: the current device.

    Examples
    --------
    >>> import numpy as np, hipgemm as hg
    >>> before = hg.memory_stats().used
    >>> x = hg.empty(4096, np.int8)
    >>> hg.memory_stats().used - before
    4096
    """
    number = _hip.device_number("memory_stats", device)
    pool = _pool.of(number)
    pool.settle()
    free, total = _hip.memory_info(number)
    return MemoryStats(
        device=number,
        used=pool.bytes - pool.cached,
        cached=pool.cached,
        peak=pool.peak,
        limit=pool.limit,
        cache_limit=pool.cache_limit,
        free=free,
        total=total,
        pinned=_hip.runtime().staging[number].bytes,
        requests=pool.requests,
        mallocs=pool.mallocs,
    )


def trim(device: int | None = None) -> int:
    """Give memory that is held for reuse back to HIP, pinned memory included. Waits for the device.

    Parameters
    ----------
    device : int, optional
        Default: all devices.

    Returns
    -------
    int
        Bytes of device memory that were given back.

    Examples
    --------
    >>> import numpy as np, hipgemm as hg
    >>> hg.empty(4096, np.int8).free()
    >>> hg.trim() >= 4096
    True
    >>> hg.memory_stats().cached
    0
    """
    numbers = range(_hip.runtime().devices) if device is None else [_hip.device_number("trim", device)]
    given = 0
    for number in numbers:
        given += _pool.of(number).trim()
        _hip.runtime().staging[number].trim()
    return given


def limit_memory(limit: int | None = None, *, cache: int | None = None, device: int | None = None) -> None:
    """Bound the memory that hipgemm holds. What is beyond is as if the device had no more.

    HIPGEMM_MEMORY_LIMIT and HIPGEMM_CACHE_LIMIT do so for every device from the start.

    Parameters
    ----------
    limit : int, optional
        The most to hold at all, used and cached. Default: what there is. What is in use stays in use.
    cache : int, optional
        The most to hold for reuse. Default: what there is.
    device : int, optional
        Default: the current device.

    Raises
    ------
    TypeError, ValueError
        If a number of bytes is none.

    Examples
    --------
    >>> import numpy as np, hipgemm as hg
    >>> hg.limit_memory(cache=0)
    >>> hg.memory_stats().cached
    0
    >>> hg.limit_memory()
    """
    checks = Checks("limit_memory")
    number = checks.take(_hip.read_device(device), 0)
    limits = _number_of_bytes(checks, "limit", limit), _number_of_bytes(checks, "cache", cache)
    checks.raise_all()
    pool = _pool.of(number)
    pool.limit, pool.cache_limit = limits
    if pool.limit is not None and pool.bytes > pool.limit:
        pool.settle()
        pool.trim(max(0, pool.limit - (pool.bytes - pool.cached)))
    pool.settle()


def _number_of_bytes(checks: Checks, name: str, value: int | None) -> int | None:
    if value is None:
        return None
    try:
        found = operator.index(value)
    except TypeError:
        checks.wrong_type(name, "a number of bytes or None", value)
        return None
    if found < 0:
        checks.add(ValueError, "range", f"{name} must not be negative", found)
    return found
