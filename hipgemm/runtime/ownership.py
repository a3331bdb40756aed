"""Who owns what HIP has allocated: an exception between any two instructions loses nothing.

A signal handler may raise (as for Ctrl-C), or call hipgemm again, wherever Python looks for signals: where a
function begins, `__enter__`, `__exit__` and `__del__` included, at jumps backwards, and after a call, before
its result is stored. A lock can stay locked by it, and what was popped from a list can be lost. So there are
no locks, and whatever moves something is one call of C code:

* HIP writes the handle of an allocation into an `Allocation` that is registered already.
* Users of an allocation hold its `Owner`; so do the lists of free ones. When the last reference is gone,
  the callback of a weak reference, `deque.append`, puts its `Ownership` into `Registry.released`.
* `Registry.reclaim` makes a new owner. Only then the entry in `released` is removed; if threads or signal
  handlers meet at an entry, `dict.setdefault` decides which of them owns it.
* What HIP returns from freeing is stored by the same call of C code, so nothing is freed twice.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, MutableSequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
O = TypeVar("O", bound="Owner")  # noqa: E741

_LONGEST_WAIT = 60.0  # seconds for another thread that makes the same thing; then it is made twice


class Allocation:
    """Something that HIP has allocated: memory, an event, a stream, a module."""

    __slots__ = ("codes", "foreign", "handle", "size", "stream", "users")

    def __init__(self, size: int, stream: int, foreign: object = None) -> None:
        self.handle = ctypes.c_void_p()  # written by HIP
        self.size = size  # bytes; 0 for what is no memory of ours
        self.stream = stream  # the stream that orders the use of memory
        self.users: set[int] = set()  # streams whose work on it that stream does not wait for yet
        self.codes: list[int] = []  # what HIP returned when it was freed
        self.foreign = foreign  # keeps memory of another library alive


class Owner:
    """The right to use an allocation."""

    __slots__ = ("__weakref__", "allocation", "ownership", "ptr")

    ownership: Ownership | None

    def __init__(self, allocation: Allocation) -> None:
        self.allocation = allocation
        self.ptr = allocation.handle.value or 0  # the address or the handle


class Ownership(weakref.ref[Owner]):
    """That an owner has an allocation; it outlives the owner."""

    __slots__ = ("allocation", "next", "previous")

    allocation: Allocation
    next: dict[None, Ownership]  # of the next owner, once there is one
    previous: Ownership | None  # None once this one is known to be the next of the previous one


class Registry(Generic[O]):
    """The allocations of one kind, and their owners."""

    def __init__(self, kind: Callable[[Allocation], O], allocate: str, free: str = "") -> None:
        """`allocate` and `free` are functions of HIP."""
        self._kind, self._allocate, self._free = kind, allocate, free
        self._current: dict[Allocation, Ownership] = {}  # in the order of allocation
        self.released: deque[Ownership] = deque()  # whose owners are gone

    @property
    def bytes(self) -> int:
        """Bytes that are allocated."""
        return sum(map(_SIZE, list(self._current)))

    def allocate(
        self, library: Any, size: int, *arguments: Any, stream: int = 0, limit: int | None = None
    ) -> tuple[int, O | None]:
        """Call HIP: its error code, and the owner. No owner if there would be more than `limit` bytes."""
        allocation = Allocation(size, stream)
        owner = self._kind(allocation)
        self._current[allocation] = self._own(owner, allocation, None)
        if limit is not None and self._up_to(allocation) > limit:
            self._current.pop(allocation, None)
            return 0, None
        error = call_allocator(library, self._allocate, allocation.handle, *arguments)
        if error:
            self._current.pop(allocation, None)
            return error, None
        owner.ptr = allocation.handle.value or 0
        return 0, owner

    def adopt(self, allocation: Allocation) -> O:
        """Own what another library has allocated."""
        owner = self._kind(allocation)
        self._current[allocation] = self._own(owner, allocation, None)
        return owner

    def reclaim(self) -> O | None:
        """A new owner for something whose owner is gone, if there is any."""
        queue = self.released
        while queue:
            try:
                released = queue[0]
            except IndexError:  # another thread or a signal handler took it
                break
            owner = self._succeed(released)
            discard(queue, released)
            if owner is not None:
                return owner
        return None

    def free(self, library: Any, owner: O) -> int:
        """Free what an owner has; return HIP's error code."""
        allocation = owner.allocation
        if not allocation.codes:
            allocation.codes.extend(map(getattr(library, self._free), (allocation.handle,)))
        self.forget(owner)
        return allocation.codes[0]

    def forget(self, owner: O) -> None:
        """Drop what an owner has from the registry."""
        self._current.pop(owner.allocation, None)
        owner.ownership = None

    def _own(self, owner: O, allocation: Allocation, previous: Ownership | None) -> Ownership:
        made = Ownership(owner, self.released.append)
        made.next, made.previous = {}, previous
        made.allocation = allocation  # last: without it there is nothing to reclaim
        owner.ownership = made
        return made

    def _succeed(self, released: Ownership) -> O | None:
        """Make the next owner, unless there is nothing to own, or another one was quicker."""
        try:
            allocation, previous = released.allocation, released.previous
        except AttributeError:  # an exception came before it owned anything
            return None
        if released.next or (previous is not None and previous.next.get(None) is not released):
            return None  # it owns nothing any more, or never did
        owner = self._kind(allocation)
        if allocation.codes or not owner.ptr:
            self._current.pop(allocation, None)
            return None
        made = self._own(owner, allocation, released)
        if released.next.setdefault(None, made) is not made:
            return None
        self._current[allocation] = made
        made.previous = None
        return owner

    def _up_to(self, allocation: Allocation) -> int:
        """Bytes up to this allocation, so that of two threads at the limit the first one has its way."""
        found = list(self._current)
        return sum(map(_SIZE, found[: found.index(allocation) + 1]))


_SIZE = attrgetter("size")


def discard(items: MutableSequence[V], item: V) -> bool:
    """Remove an item, unless another thread or a signal handler has done so; whether it was this call."""
    try:
        items.remove(item)
    except ValueError:
        return False
    return True


def call_allocator(library: Any, name: str, handle: ctypes.c_void_p, *arguments: Any) -> int:
    """Call a function of HIP that writes a handle; hip-python runs code of its own before it returns one."""
    error: int = getattr(library, name)(ctypes.byref(handle), *arguments)
    return error


class _Making:
    """That a thread makes something."""

    def __init__(self) -> None:
        self.thread, self.since = threading.get_ident(), time.monotonic()


_making: dict[tuple[int, Any], _Making] = {}
os.register_at_fork(after_in_child=_making.clear)


def once(made: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return ``made[key]``, which one thread makes while others wait.

    A signal handler cannot wait for the call that it interrupted: it makes its own, and the first one counts.
    """
    mine, place = _Making(), (id(made), key)
    while key not in made:
        try:
            other = _making.setdefault(place, mine)
            if other.thread == mine.thread or mine.since - other.since > _LONGEST_WAIT:
                made.setdefault(key, make())
            else:
                time.sleep(1e-3)
                mine.since = time.monotonic()
        finally:
            if _making.get(place) is mine:
                del _making[place]
    return made[key]
