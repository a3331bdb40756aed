"""Devices, memory, errors and launches of the emulated HIP runtime."""

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
    FILE_NOT_FOUND,
    H2D,
    ILLEGAL_ADDRESS,
    INVALID_CONFIGURATION,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_PITCH,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    NOT_FOUND,
    OUT_OF_MEMORY,
    OUT_OF_RESOURCES,
    Memory,
    address,
    check,
    compile_hip,
    fails,
    hip,
    kind,
    launch,
    lib,
    report,
)

Kernel = Callable[[str], Any]
i32, f32, size_t, void_p = ctypes.c_int32, ctypes.c_float, ctypes.c_size_t, ctypes.c_void_p


def free_bytes() -> int:
    return int(check(hip.hipMemGetInfo())[0])


# ---- devices ---------------------------------------------------------------------------------------


def properties(device: int) -> Any:
    if hip.__name__.startswith("rocm."):
        return check(hip.hipGetDeviceProperties(device))
    result = hip.hipDeviceProp_t()
    check(hip.hipGetDeviceProperties(result, device))
    return result


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_properties() -> None:
    p = properties(0)
    assert text(p.name).startswith("AMD Instinct MI355X")
    assert text(p.gcnArchName) == "gfx950:sramecc+:xnack-"
    assert (p.multiProcessorCount, p.warpSize, p.maxThreadsPerBlock) == (256, 64, 1024)
    assert p.totalGlobalMem == 288 << 30
    assert p.sharedMemPerBlock == p.maxSharedMemoryPerMultiProcessor == 160 << 10
    assert (p.major, p.minor, p.isLargeBar, p.asicRevision) == (9, 5, 1, 0)
    with fails(INVALID_DEVICE, "got 1"):
        properties(1)


def test_attributes_agree_with_properties() -> None:
    p = properties(0)
    names = {
        "MultiprocessorCount": p.multiProcessorCount,
        "MaxSharedMemoryPerBlock": p.sharedMemPerBlock,
        "WarpSize": p.warpSize,
        "MaxGridDimY": p.maxGridSize[1],
        "ComputeCapabilityMinor": p.minor,
        "NumberOfXccs": 8,
    }
    for name, value in names.items():
        attribute = getattr(hip.hipDeviceAttribute_t, "hipDeviceAttribute" + name)
        assert check(hip.hipDeviceGetAttribute(attribute, 0)) == value, name
    value = i32()
    assert lib.hipDeviceGetAttribute(ctypes.byref(value), 12345, 0) == INVALID_VALUE
    assert "12345" in report()


def test_every_error_has_name_and_text() -> None:
    for name, error in hip.hipError_t.__members__.items():
        got = lib.hipGetErrorName(int(error)).decode()
        same = {n for n, e in hip.hipError_t.__members__.items() if int(e) == int(error)}
        assert got in same or name in ("hipErrorTbd", "hipErrorInvalidClusterSize"), (name, got)
        assert lib.hipGetErrorString(int(error))
    assert lib.hipGetErrorName(-5) == b"hipErrorUnknown"
    result = ctypes.c_char_p()
    assert lib.hipDrvGetErrorName(-5, ctypes.byref(result)) == INVALID_VALUE
    assert not result.value


def test_last_error_is_kept_until_read() -> None:
    check(hip.hipDeviceSynchronize())
    hip.hipGetLastError()
    assert lib.hipSetDevice(99) == INVALID_DEVICE
    check(hip.hipSetDevice(0))  # a success does not clear it
    assert int(hip.hipPeekAtLastError()[0]) == INVALID_DEVICE
    assert int(hip.hipGetLastError()[0]) == INVALID_DEVICE
    assert int(hip.hipGetLastError()[0]) == 0


def test_unknown_function_fails_in_hip_python_not_in_a_crash() -> None:
    with pytest.raises(RuntimeError, match="hipMemAddressFree"):
        hip.hipMemAddressFree(None, 0)


def test_looking_up_functions_by_name() -> None:
    function, status = void_p(), i32(-1)
    arguments = ctypes.byref(function), 0, ctypes.c_uint64(0), ctypes.byref(status)
    assert lib.hipGetProcAddress(b"hipMalloc", *arguments) == 0
    assert status.value == 0
    assert function.value == ctypes.cast(lib.hipMalloc, void_p).value
    assert lib.hipGetProcAddress(b"hipNope", *arguments) == NOT_FOUND
    assert status.value == 1


@pytest.mark.parametrize(
    ("arch", "count", "ok"),
    [("gfx942:sramecc+:xnack-", "1", True), ("gfx950", "0", False), ("gfx950", "x", True)],
)
def test_environment(run_python: Any, arch: str, count: str, ok: bool) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
print(text(properties(0).gcnArchName))
"""
    child = run_python(code, HIPGEMM_EMULATOR_ARCH=arch, HIPGEMM_EMULATOR_DEVICES=count)
    if ok:
        assert child.stdout.strip() == (arch if ":" in arch else arch + ":sramecc+:xnack-"), child.stderr
        assert ("HIPGEMM_EMULATOR_DEVICES must be" in child.stderr) == (count == "x")
    else:
        assert "hipErrorNoDevice" in child.stderr


# ---- memory ----------------------------------------------------------------------------------------


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


def test_huge_allocations_are_lazy() -> None:
    size = 100 << 30
    with Memory(size) as memory:
        last = np.array([7], np.uint8)
        check(hip.hipMemcpy(memory.address + size - 1, last, 1, kind(H2D)))
        assert memory.get(np.uint8, size - 2).tolist() == [0, 7]


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
        check(hip.hipMemsetD32(memory.pointer, 0x01020304, 16))
        assert (memory.get() == 0x01020304).all()
        check(hip.hipMemsetD16(memory.address + 2, 0x0506, 1))
        assert memory.get(np.uint16)[:4].tolist() == [0x0304, 0x0506, 0x0304, 0x0102]
        check(hip.hipMemset2D(memory.pointer, 16, 0xAA, 4, 4))
        assert (memory.get(np.uint8).reshape(4, 16)[:, :4] == 0xAA).all()
        assert (memory.get()[1::4] == 0x01020304).all()
        with fails(INVALID_VALUE, "aligned to 4"):
            check(hip.hipMemsetD32(memory.address + 2, 1, 1))
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
    assert free_bytes() == before - 4  # the stream has not come to the free
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


# ---- modules and launches --------------------------------------------------------------------------


def test_launch_by_extra_and_by_params(kernel: Kernel) -> None:
    with Memory(8, np.zeros(2, np.int32)) as memory:
        launch(kernel("store"), memory.address, i32(41))
        launch(kernel("add_one"), memory.address)
        assert memory.get()[0] == 42
        to, value = void_p(memory.address), i32(7)
        params = (void_p * 2)(ctypes.addressof(to), ctypes.addressof(value))
        function = void_p(address(kernel("store")))
        assert lib.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, params, None) == 0
        value.value = 8  # arguments are copied at the call
        assert memory.get()[0] == 7


def test_arguments_of_every_alignment(kernel: Kernel) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("tag", ctypes.c_char), ("value", ctypes.c_uint64))

    class Wide(ctypes.Structure):
        _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))

    with Memory(48) as memory:
        values = [ctypes.c_int8(-1), ctypes.c_int16(300), void_p(memory.address)]
        values += [Pair(b"\x05", 1 << 63), ctypes.c_uint32(1000), Wide(7, 1 << 62)]
        params = (void_p * 6)(*(ctypes.addressof(value) for value in values))
        function = void_p(address(kernel("mixed")))
        check(lib.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, params, None))
        assert memory.get(np.uint64).tolist() == [2**64 - 1, 300, 5, 1 << 63, 1000, 1 << 62]


def test_hidden_arguments(kernel: Kernel) -> None:
    with Memory(44, np.zeros(11, np.uint32)) as memory:
        launch(kernel("shape"), memory.address, grid=(3, 2, 5), block=(64, 2, 3), lds=1024)
        expected = [3, 2, 5, 64, 2, 3, 0, 0, 0, 3, 1024]
        assert memory.get(np.uint32).tolist() == expected
        launch(kernel("shape"), memory.address, grid=(3, 1, 1), block=(64, 1, 1))
        assert memory.get(np.uint32).tolist() == [3, 1, 1, 64, 1, 1, 0, 0, 0, 1, 0]


def test_launch_errors_leave_no_trace(kernel: Kernel) -> None:
    store, small = kernel("store"), kernel("up_to_128")
    with Memory(512, np.zeros(128, np.int32)) as memory:
        args = memory.address, i32(1)
        for code, function, given, shape, parts in [
            (INVALID_VALUE, store, args[:1], {}, ["kernel store", "must have 12 bytes", "got 8"]),
            (INVALID_VALUE, store, (*args, f32(0), f32(0)), {}, ["got 20"]),
            (INVALID_VALUE, store, (), {}, ["neither kernelParams nor extra"]),
            (INVALID_CONFIGURATION, store, args, {"grid": (1, 0, 1)}, ["grid (1, 0, 1)"]),
            (INVALID_CONFIGURATION, store, args, {"block": (1, 1, 0)}, ["block (1, 1, 0)"]),
            (INVALID_CONFIGURATION, store, args, {"block": (1025, 1, 1)}, ["1024 lanes"]),
            (INVALID_CONFIGURATION, store, args, {"block": (65536, 65536, 1)}, ["1024 lanes"]),
            (INVALID_CONFIGURATION, store, args, {"grid": (1, 65537, 1)}, ["grid limits"]),
            (INVALID_CONFIGURATION, store, args, {"grid": (2**26, 1, 1), "block": (64, 1, 1)}, ["2^32"]),
            (LAUNCH_FAILURE, small, args[:1], {"block": (129, 1, 1)}, ["at most 128 lanes"]),
            (INVALID_VALUE, store, args, {"lds": 163841}, ["at most 163840", "163841"]),
        ]:
            with fails(code, *parts):
                launch(function, *given, **shape)
        check(hip.hipDeviceSynchronize())
        assert not memory.get().any()
        launch(store, *args)
        assert memory.get()[0] == 1


def test_bad_argument_pointers(kernel: Kernel) -> None:
    function = void_p(address(kernel("store")))
    params = (void_p * 2)(64, 64)
    for given in (params, ctypes.cast(void_p(64), ctypes.POINTER(void_p))):
        with fails(INVALID_VALUE, "cannot be read"):
            check(lib.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, given, None))
    size = size_t(12)
    for extra in (
        [1, 64, 2, ctypes.addressof(size), 3],
        [1, 64, 9, 9, 3],
        [3],
        [1, 64, 3],
        [2, 64, 2, 64, 2],
    ):
        with fails(INVALID_VALUE):
            check(
                lib.hipModuleLaunchKernel(
                    function, 1, 1, 1, 1, 1, 1, 0, None, None, (void_p * (len(extra) + 1))(*extra)
                )
            )
    with fails(INVALID_VALUE, "exclude each other"):
        check(lib.hipModuleLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, params, params))


def test_unknown_handles() -> None:
    host = np.zeros(4, np.uint8)
    for call in (
        lambda: lib.hipModuleLaunchKernel(void_p(8), 1, 1, 1, 1, 1, 1, 0, None, None, None),
        lambda: lib.hipModuleUnload(void_p(8)),
        lambda: lib.hipModuleGetFunction(ctypes.byref(void_p()), void_p(8), b"x"),
        lambda: lib.hipStreamSynchronize(void_p(8)),
        lambda: lib.hipStreamDestroy(void_p(8)),
        lambda: lib.hipStreamDestroy(None),
        lambda: lib.hipEventRecord(void_p(8), None),
        lambda: lib.hipEventDestroy(void_p(8)),
        lambda: lib.hipMemcpyAsync(
            void_p(host.ctypes.data), void_p(host.ctypes.data), size_t(4), 0, void_p(8)
        ),
    ):
        assert call() == INVALID_HANDLE
        assert "does not exist" in report()


def test_stale_handles(code_object: Path) -> None:
    module = check(hip.hipModuleLoad(str(code_object).encode()))
    function = check(hip.hipModuleGetFunction(module, b"nothing"))
    launch(function)
    check(hip.hipModuleUnload(module))
    with fails(INVALID_HANDLE, "function"):
        launch(function)
    with fails(INVALID_HANDLE, "module"):
        check(hip.hipModuleUnload(module))


def test_module_lookups(code_object: Path) -> None:
    module = check(hip.hipModuleLoad(str(code_object).encode()))
    with fails(NOT_FOUND, "no kernel 'stor'"):
        check(hip.hipModuleGetFunction(module, b"stor"))
    with fails(NOT_FOUND, "no variable 'nope'"):
        check(hip.hipModuleGetGlobal(module, b"nope"))
    pointer, size = check(hip.hipModuleGetGlobal(module, b"table"))
    assert size == 16
    check(hip.hipMemcpy(pointer, np.array([1, 2, 3, 4], np.int32), 16, kind(H2D)))
    globals_ = check(hip.hipModuleGetFunction(module, b"globals"))
    with Memory(8) as memory:
        launch(globals_, memory.address, i32(3))
        assert memory.get().tolist() == [3 + 4, 0]
    with fails(FILE_NOT_FOUND, "/nowhere.co"):
        check(hip.hipModuleLoad(b"/nowhere.co"))
    check(hip.hipModuleUnload(module))


def test_function_attributes_and_occupancy(tmp_path: Path) -> None:
    source = """
    #define KERNEL extern "C" __attribute__((global, used, amdgpu_flat_work_group_size(256, 256)))
    KERNEL void big(float* x) {
      static __attribute__((shared)) float tile[10240];
      tile[__builtin_amdgcn_workitem_id_x()] = *x;
      __builtin_amdgcn_s_barrier();
      *x = tile[__builtin_amdgcn_workitem_id_x() ^ 1];
    }"""
    module = check(hip.hipModuleLoad(str(compile_hip(source, tmp_path / "big.co")).encode()))
    function = check(hip.hipModuleGetFunction(module, b"big"))

    def attribute(name: str) -> int:
        return int(check(hip.hipFuncGetAttribute(getattr(hip.hipFunction_attribute, name), function)))

    assert attribute("HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES") == 40960
    assert attribute("HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK") == 256
    assert 0 < attribute("HIP_FUNC_ATTRIBUTE_NUM_REGS") < 64
    occupancy = hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor
    assert check(occupancy(function, 256, 0)) == 4  # by LDS
    assert check(occupancy(function, 256, 40960)) == 2
    assert check(occupancy(function, 512, 0)) == 0  # compiled for 256
    with Memory(4) as memory, fails(OUT_OF_RESOURCES, "40960", "122881"):
        launch(function, memory.address, block=(256, 1, 1), lds=122881)
    check(hip.hipModuleUnload(module))


# ---- device faults ---------------------------------------------------------------------------------


def test_fault_is_reported_once_with_all_about_it(kernel: Kernel) -> None:
    with Memory(16, np.zeros(4, np.int32)) as memory:
        launch(kernel("store"), memory.address + 16, i32(1))
        launch(kernel("store"), memory.address, i32(1))  # is lost with the device
        with fails(
            ILLEGAL_ADDRESS,
            "hipDeviceSynchronize",
            "kernel store",
            "global_store_dword",
            "workgroup (0,0,0) wave 0 lane 0",
            "0 bytes past the end of allocation #",
        ):
            check(hip.hipDeviceSynchronize())
        check(hip.hipDeviceSynchronize())
        assert not memory.get().any()
        launch(kernel("store"), memory.address, i32(2))  # the device works again
        assert memory.get()[0] == 2


def test_fault_reaches_a_blocking_copy(kernel: Kernel) -> None:
    with Memory(16, np.zeros(4, np.int32)) as memory:
        launch(kernel("copy_one"), memory.address, memory.address - 8)
        with fails(ILLEGAL_ADDRESS, "hipMemcpy", "kernel copy_one", "load"):
            memory.get()
        assert not memory.get().any()


def test_cleaning_up_after_a_fault_works(kernel: Kernel) -> None:
    memory = Memory(16)
    launch(kernel("store"), memory.address + 16, i32(1))
    check(hip.hipFree(memory.pointer))  # waits, frees, and leaves the report to the next call
    with fails(ILLEGAL_ADDRESS):
        check(hip.hipDeviceSynchronize())


def test_fault_on_a_destroyed_stream_is_not_lost(kernel: Kernel) -> None:
    stream = check(hip.hipStreamCreate())
    with Memory(16) as memory:
        launch(kernel("store"), memory.address + 16, i32(1), stream=stream)
        check(hip.hipStreamDestroy(stream))
        with fails(ILLEGAL_ADDRESS):
            check(hip.hipDeviceSynchronize())


def test_verbose_prints_reports(run_python: Any) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
lib.hipSetDevice(5)
"""
    child = run_python(code, HIPGEMM_EMULATOR_VERBOSE="1")
    assert "hipgemm emulator: hipSetDevice: device must be in 0..0; got 5" in child.stderr


def test_counters(kernel: Kernel) -> None:
    totals = (ctypes.c_uint64 * 4)()
    lib.hipgemm_emulator_reset_counters()
    with Memory(4) as memory:
        launch(kernel("store"), memory.address, i32(1), grid=(5, 1, 1), block=(128, 1, 1))
        check(hip.hipDeviceSynchronize())
    assert lib.hipgemm_emulator_counters(totals, 4) == 4
    waves, instructions, mfma, nanoseconds = totals
    assert waves == 10
    assert mfma == 0
    assert instructions % 10 == 0
    assert instructions > 30
    assert nanoseconds > 0


def test_use_after_fork_is_an_error(run_python: Any) -> None:
    code = f"""
import os, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
check(hip.hipDeviceSynchronize())
pid = os.fork()
if pid == 0:
    code = lib.hipDeviceSynchronize()
    os._exit(10 if code == 3 and "fork" in report() else 11)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
check(hip.hipDeviceSynchronize())
"""
    child = run_python(code)
    assert child.stdout.strip() == "10", child.stderr


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
