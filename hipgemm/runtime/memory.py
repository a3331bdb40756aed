"""Device memory that hipgemm holds: statistics, limits, and trimming."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from ..formats.checks import Checks
from . import hip as _hip
from . import pool as _pool


@dataclass(frozen=True)
class MemoryStats:
    """Memory statistics of a device, in bytes except `requests` and `mallocs`.

    Attributes
    ----------
    device : int
        The device.
    used : int
        In use by arrays and queued work.
    cached : int
        Free in the pool, held for reuse.
    peak : int
        The largest value of `used` so far.
    limit : int or None
        The most that hipgemm may hold, used and cached; None: no limit.
    cache_limit : int or None
        The most that it may hold for reuse; None: no limit.
    free, total : int
        Free and total memory of the device, from ``hipMemGetInfo``.
    pinned : int
        Pinned host memory that copies are staged in.
    requests : int
        The number of allocations from the pool so far.
    mallocs : int
        How many of these needed a ``hipMalloc``.
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
    """Return how much memory hipgemm holds on a device.

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
    pool.reclaim()
    free, total = _hip.memory_info(number)
    return MemoryStats(
        device=number,
        used=pool.recount(),
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
    """Free memory that is held for reuse, including pinned host memory. Waits for the device.

    Parameters
    ----------
    device : int, optional
        Default: all devices.

    Returns
    -------
    int
        Bytes of device memory that were freed.

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
    freed = 0
    for number in numbers:
        freed += _pool.of(number).trim()
        _hip.runtime().staging[number].trim()
    return freed


def limit_memory(limit: int | None = None, *, cache: int | None = None, device: int | None = None) -> None:
    """Limit the memory that hipgemm holds. An allocation beyond the limit fails as if the device were full.

    HIPGEMM_MEMORY_LIMIT and HIPGEMM_CACHE_LIMIT set the initial limits of every device.

    Parameters
    ----------
    limit : int, optional
        The most to hold, used and cached. Default: no limit. Memory in use stays in use.
    cache : int, optional
        The most to hold for reuse. Default: no limit.
    device : int, optional
        Default: the current device.

    Raises
    ------
    TypeError, ValueError
        If a limit is not a number of bytes.

    Examples
    --------
    >>> import numpy as np, hipgemm as hg
    >>> hg.limit_memory(cache=0)
    >>> hg.memory_stats().cached
    0
    >>> hg.limit_memory()
    """
    checks = Checks("limit_memory")
    number = checks.value_or(_hip.parse_device(device), 0)
    limits = _number_of_bytes(checks, "limit", limit), _number_of_bytes(checks, "cache", cache)
    checks.raise_all()
    pool = _pool.of(number)
    pool.limit, pool.cache_limit = limits
    if pool.limit is not None and pool.bytes > pool.limit:
        pool.reclaim()
        pool.trim(max(0, pool.limit - pool.recount()))
    pool.reclaim()


def _number_of_bytes(checks: Checks, name: str, value: int | None) -> int | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        checks.wrong_type(name, "a number of bytes or None", value)
        return None
    if found < 0:
        checks.add(ValueError, "range", f"{name} must not be negative", found)
    return found
