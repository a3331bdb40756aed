"""Memory of the emulated HIP runtime: allocation, copies, fills, and what a pointer is."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hipapi import (
    D2D,
    D2H,
    DEFAULT,
    DIRECTION,
    H2D,
    ILLEGAL_ADDRESS,
    INVALID_PITCH,
    INVALID_VALUE,
    NOT_FOUND,
    OUT_OF_MEMORY,
    Memory,
    address,
    check,
    fails,
    hip,
    kind,
    launch,
    lib,
    report,
)

Kernel = Callable[[str], Any]
i32, size_t, void_p = ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p


def free_bytes() -> int:
    return int(check(hip.hipMemGetInfo())[0])


@pytest.mark.parametrize("size", [1, 255, 4096, 40000, 5 << 20])
def test_fresh_memory_is_nan_and_accounted_exactly(size: int) -> None:
    before = free_bytes()
    with Memory(size) as memory:
        assert memory.address % 256 == 0
        assert free_bytes() == before - size
        assert (memory.get(np.uint8) == 255).all()
        memory.put(np.arange(size, dtype=np.uint32).astype(np.uint8))
        assert (memory.get(np.uint8) == np.arange(size, dtype=np.uint32).astype(np.uint8)).all()
    assert free_bytes() == before


def test_many_blocks_never_overlap(rng: np.random.Generator) -> None:
    blocks: list[tuple[Memory, int]] = []
    for i in range(600):
        if blocks and rng.random() < 0.5:
            memory, tag = blocks.pop(int(rng.integers(len(blocks))))
            assert (memory.get(np.uint8) == tag).all()
            check(hip.hipFree(memory.pointer))
        memory = Memory(int(rng.integers(1, 3000)))
        check(hip.hipMemset(memory.pointer, i % 251, memory.size))
        blocks.append((memory, i % 251))
    ranges = sorted((m.address, m.address + m.size) for m, _ in blocks)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    for memory, tag in blocks:
        assert (memory.get(np.uint8) == tag).all()
        check(hip.hipFree(memory.pointer))


def test_out_of_memory_leaves_all_as_it_was() -> None:
    before = free_bytes()
    pointer = void_p(1)
    assert lib.hipMalloc(ctypes.byref(pointer), size_t(1 << 60)) == OUT_OF_MEMORY
    assert str(1 << 60) in report()
    assert not pointer.value
    assert free_bytes() == before
    assert lib.hipMalloc(ctypes.byref(pointer), size_t(0)) == 0
    assert not pointer.value
    assert lib.hipFree(None) == 0


def test_a_device_has_the_memory_that_it_is_given(run_python: Callable[..., Any]) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api_memory import *
assert check(hip.hipMemGetInfo()) == (1 << 20, 1 << 20)
assert check(hip.hipDeviceTotalMem(0)) == 1 << 20
first = check(hip.hipMalloc((1 << 20) - 1000))
assert free_bytes() == 1000
pointer = void_p()
assert lib.hipMalloc(ctypes.byref(pointer), size_t(1001)) == OUT_OF_MEMORY
assert "1001 bytes asked of device 0, which has 1000 of 1048576 free" in report()
assert lib.hipHostMalloc(ctypes.byref(pointer), size_t(1 << 21), 0) == 0  # the host's is another
check(hip.hipHostFree(pointer))
check(hip.hipFree(check(hip.hipMalloc(1000))))
check(hip.hipFree(first))
assert free_bytes() == 1 << 20
"""
    done = run_python(code, HIPGEMM_EMULATOR_DEVICE_BYTES=str(1 << 20), HIPGEMM_RUNTIME="emulator")
    assert done.returncode == 0, done.stderr


def test_devices_have_what_the_host_can_give(run_python: Callable[..., Any]) -> None:
    """All devices share it, and the error says so."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api_memory import *
free, total = check(hip.hipMemGetInfo())
host = {{line.split(":")[0]: int(line.split()[1]) << 10 for line in open("/proc/meminfo") if "kB" in line}}
assert free == total == check(hip.hipDeviceTotalMem(1))
assert total <= min(288 << 30, host["MemTotal"])
if total < 288 << 30:
    quarter = check(hip.hipMalloc(total // 4))
    check(hip.hipSetDevice(1))
    assert free_bytes() == total - total // 4
    pointer = void_p()
    assert lib.hipMalloc(ctypes.byref(pointer), size_t(total)) == OUT_OF_MEMORY
    assert f"which has {{total - total // 4}} of {{total}} free (the host's memory" in report(), report()
    assert "HIPGEMM_EMULATOR_DEVICE_BYTES" in report()
    check(hip.hipFree(quarter))
    assert free_bytes() == total
"""
    options = {
        "HIPGEMM_EMULATOR_DEVICES": "2",
        "HIPGEMM_EMULATOR_DEVICE_BYTES": "",
        "HIPGEMM_RUNTIME": "emulator",
    }
    done = run_python(code, **options)
    assert done.returncode == 0, done.stderr


def test_huge_allocations_are_lazy(run_python: Callable[..., Any]) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api_memory import *
size = 100 << 30
with Memory(size) as memory:
    last = np.array([7], np.uint8)
    check(hip.hipMemcpy(memory.address + size - 1, last, 1, kind(H2D)))
    assert memory.get(np.uint8, size - 2).tolist() == [0, 7]
"""
    done = run_python(code, HIPGEMM_EMULATOR_DEVICE_BYTES=str(288 << 30), HIPGEMM_RUNTIME="emulator")
    assert done.returncode == 0, done.stderr


def test_frees_of_what_is_not_allocated() -> None:
    memory = Memory(1000)
    with fails(INVALID_VALUE, "8 bytes into allocation #"):
        check(hip.hipFree(memory.address + 8))
    check(hip.hipFree(memory.pointer))
    with fails(INVALID_VALUE, "freed allocation #"):
        check(hip.hipFree(memory.pointer))
    with fails(INVALID_VALUE, "no allocation near"):
        check(hip.hipFree(0x1234))
    pinned = check(hip.hipHostMalloc(64, 0))
    with fails(INVALID_VALUE, "matching call"):
        check(hip.hipFree(pinned))
    check(hip.hipHostFree(pinned))


@pytest.mark.parametrize("size", [1000, 100000])
def test_copies_are_checked_as_a_whole(size: int) -> None:
    host = np.zeros(size + 8, np.uint8)
    with Memory(size) as memory:
        check(hip.hipMemset(memory.pointer, 5, size))
        with fails(INVALID_VALUE, "dst", "8 bytes past the end", f"({size} bytes of device memory"):
            check(hip.hipMemcpy(memory.pointer, host, size + 8, kind(H2D)))
        assert (memory.get(np.uint8) == 5).all()
        with fails(INVALID_VALUE, "src", "past the end"):
            check(hip.hipMemcpy(host, memory.address + size - 4, 8, kind(D2H)))
        assert not host.any()
        with fails(INVALID_VALUE, "begin before"):
            check(hip.hipMemcpy(memory.address - 4, host, 8, kind(DEFAULT)))
        with fails(INVALID_VALUE, "host memory that HIP does not know"):
            check(hip.hipMemcpy(memory.pointer, host, 8, kind(D2D)))
        assert lib.hipMemcpy(void_p(memory.address), void_p(host.ctypes.data), size_t(8), 77) == DIRECTION
        with fails(INVALID_VALUE, "dst must not be null"):
            check(hip.hipMemcpy(None, host, 8, kind(H2D)))
        with fails(INVALID_VALUE, "exceeds the address space"):
            check(lib.hipMemset(void_p(memory.address), 0, size_t(2**64 - 1)))
        check(hip.hipMemcpy(None, host, 0, kind(H2D)))
    with fails(INVALID_VALUE, "freed allocation #"):
        check(hip.hipMemcpy(host, memory.address, 8, kind(D2H)))


def test_unmapped_host_memory_is_an_error() -> None:
    with Memory(4096) as memory:
        for host in (64, 0x7FFFFFFFF000 - 4096 * 5):
            with fails(INVALID_VALUE, "not accessible"):
                check(hip.hipMemcpy(memory.pointer, host, 4096, kind(H2D)))
            with fails(INVALID_VALUE, "not accessible"):
                check(hip.hipMemcpy(host, memory.pointer, 4096, kind(D2H)))


@pytest.mark.parametrize(
    ("width", "height", "gap"), [(5, 3, 3), (768, 700, 32), (20000, 9, 16), (64, 300, 0)]
)
def test_copy_2d(width: int, height: int, gap: int, rng: np.random.Generator) -> None:
    pitch, host_pitch = width + 13, width + gap
    source = rng.integers(0, 255, (height, host_pitch), np.uint8)
    back = np.zeros((height, host_pitch), np.uint8)
    with Memory(pitch * height) as memory:
        check(hip.hipMemset(memory.pointer, 9, memory.size))
        check(hip.hipMemcpy2D(memory.pointer, pitch, source, host_pitch, width, height, kind(H2D)))
        there = memory.get(np.uint8).reshape(height, pitch)
        assert (there[:, :width] == source[:, :width]).all()
        assert (there[:, width:] == 9).all()
        check(hip.hipMemcpy2D(back, host_pitch, memory.pointer, pitch, width, height, kind(D2H)))
        assert (back[:, :width] == source[:, :width]).all()
        assert not back[:, width:].any()
        with fails(INVALID_PITCH, f"width {width}"):
            check(hip.hipMemcpy2D(memory.pointer, width - 1, source, host_pitch, width, height, kind(H2D)))
        with fails(INVALID_VALUE, "past the end"):
            check(
                hip.hipMemcpy2D(memory.pointer, pitch + 1, source, host_pitch, width, height + 1, kind(H2D))
            )
        with fails(INVALID_VALUE, "exceeds the address space"):
            check(hip.hipMemcpy2D(memory.pointer, 2**62, source, host_pitch, width, 9, kind(H2D)))


def test_fills() -> None:
    with Memory(64) as memory:
        check(hip.hipMemsetD32Async(memory.pointer, 0x01020304, 16, None))
        assert (memory.get() == 0x01020304).all()
        check(hip.hipMemsetD16Async(memory.address + 2, 0x0506, 1, None))
        assert memory.get(np.uint16)[:4].tolist() == [0x0304, 0x0506, 0x0304, 0x0102]
        check(hip.hipMemset2D(memory.pointer, 16, 0xAA, 4, 4))
        assert (memory.get(np.uint8).reshape(4, 16)[:, :4] == 0xAA).all()
        assert (memory.get()[1::4] == 0x01020304).all()
        with fails(INVALID_VALUE, "aligned to 4"):
            check(hip.hipMemsetD32Async(memory.address + 2, 1, 1, None))
        with fails(INVALID_VALUE, "past the end"):
            check(hip.hipMemset(memory.address + 60, 1, 8))


def test_what_a_pointer_is() -> None:
    pinned = check(hip.hipHostMalloc(1000, 0))
    attributes = (ctypes.c_byte * 32)()

    def type_of(pointer: int) -> int:
        assert lib.hipPointerGetAttributes(attributes, void_p(pointer)) == 0
        return ctypes.cast(attributes, ctypes.POINTER(i32))[0]

    base, size = void_p(), size_t()
    with Memory(1000) as memory:
        assert type_of(memory.address + 999) == 2
        assert type_of(address(pinned)) == 1
        assert type_of(np.zeros(4).ctypes.data) == 0
        arguments = ctypes.byref(base), ctypes.byref(size)
        assert lib.hipMemGetAddressRange(*arguments, void_p(memory.address + 500)) == 0
        assert (base.value, size.value) == (memory.address, 1000)
        assert lib.hipMemGetAddressRange(*arguments, void_p(memory.address + 1000)) == NOT_FOUND
    check(hip.hipHostFree(pinned))


def test_registered_host_memory(kernel: Kernel) -> None:
    host = np.array([5], np.int32)
    with fails(ILLEGAL_ADDRESS, "no allocation near"):
        launch(kernel("add_one"), host.ctypes.data)
        check(hip.hipDeviceSynchronize())
    check(lib.hipHostRegister(void_p(host.ctypes.data), size_t(4), 0))
    with fails(712, "overlap"):
        check(lib.hipHostRegister(void_p(host.ctypes.data), size_t(4), 0))
    launch(kernel("add_one"), host.ctypes.data)
    check(hip.hipDeviceSynchronize())
    assert host[0] == 6
    check(lib.hipHostUnregister(void_p(host.ctypes.data)))
    with fails(713, "registered"):
        check(lib.hipHostUnregister(void_p(host.ctypes.data)))
    with fails(INVALID_VALUE, "not all mapped"):
        check(lib.hipHostRegister(void_p(4096), size_t(4), 0))


def test_stream_ordered_allocation(kernel: Kernel) -> None:
    before = free_bytes()
    stream = check(hip.hipStreamCreate())
    pointer = check(hip.hipMallocAsync(4, stream))
    launch(kernel("store"), address(pointer), i32(3), stream=stream)
    check(hip.hipFreeAsync(pointer, stream))
    assert free_bytes() == before - 4  # the stream has not reached the free
    check(hip.hipStreamSynchronize(stream))
    assert free_bytes() == before
    launch(kernel("store"), address(pointer), i32(3), stream=stream)
    with fails(ILLEGAL_ADDRESS, "freed allocation #"):
        check(hip.hipStreamSynchronize(stream))
    check(hip.hipStreamDestroy(stream))


def test_memory_of_a_freed_block_is_not_soon_used_again() -> None:
    for size in (100, 100000):
        seen = set()
        for _ in range(50):
            memory = Memory(size)
            assert memory.address not in seen
            seen.add(memory.address)
            check(hip.hipFree(memory.pointer))


def test_managed_memory(kernel: Kernel) -> None:
    pointer = void_p()
    check(lib.hipMallocManaged(ctypes.byref(pointer), size_t(4), 1))
    value = i32.from_address(pointer.value or 0)
    value.value = 8
    check(lib.hipMemPrefetchAsync(pointer, size_t(4), 0, None))
    launch(kernel("add_one"), pointer.value)
    check(hip.hipDeviceSynchronize())
    assert value.value == 9
    check(lib.hipFree(pointer))
    with Memory(4) as memory, fails(INVALID_VALUE, "not managed"):
        check(lib.hipMemPrefetchAsync(void_p(memory.address), size_t(4), 0, None))


def test_pools() -> None:
    class Properties(ctypes.Structure):
        _fields_ = (
            *(("type", i32), ("handle", i32), ("where", i32), ("device", i32)),
            *(("security", void_p), ("size", size_t), ("reserved", ctypes.c_byte * 56)),
        )

    pool, pointer, value = void_p(), void_p(), ctypes.c_uint64()

    def attribute(number: int) -> int:
        check(lib.hipMemPoolGetAttribute(pool, number, ctypes.byref(value)))
        return value.value

    check(lib.hipMemPoolCreate(ctypes.byref(pool), ctypes.byref(Properties(1, 0, 1, 0))))
    check(lib.hipMallocFromPoolAsync(ctypes.byref(pointer), size_t(1000), pool, None))
    assert (attribute(7), attribute(8)) == (1000, 1000)  # used, and its high-water mark
    check(lib.hipFreeAsync(pointer, None))
    check(hip.hipDeviceSynchronize())
    assert (attribute(7), attribute(8)) == (0, 1000)
    check(lib.hipMallocAsync(ctypes.byref(pointer), size_t(24), None))  # of no pool
    assert attribute(7) == 0
    check(lib.hipFreeAsync(pointer, None))
    value.value = 0
    check(lib.hipMemPoolSetAttribute(pool, 8, ctypes.byref(value)))
    assert attribute(8) == 0
    check(lib.hipMemPoolTrimTo(pool, size_t(0)))
    check(lib.hipMemPoolDestroy(pool))
    with fails(INVALID_VALUE, "does not exist"):
        check(lib.hipMemPoolTrimTo(pool, size_t(0)))
    check(hip.hipDeviceSynchronize())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_the_process_does_not_grow(kernel: Kernel) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    def work() -> None:
        for size in (100, 100000, 3 << 20):
            with Memory(size, np.zeros(1, np.int32)) as memory:
                launch(kernel("add_one"), memory.address)
                assert memory.get()[0] == 1

    for _ in range(30):
        work()
    before = resident()
    for _ in range(200):
        work()
    assert resident() - before < 8 << 20
