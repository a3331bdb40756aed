"""Modules, launches, and faults of kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hipapi import (
    FILE_NOT_FOUND,
    H2D,
    ILLEGAL_ADDRESS,
    INVALID_CONFIGURATION,
    INVALID_HANDLE,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    NOT_FOUND,
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


class Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint32), ("y", ctypes.c_uint32), ("z", ctypes.c_uint32))


def test_other_ways_to_launch(kernel: Kernel) -> None:
    class Config(ctypes.Structure):
        _fields_ = (
            *(("grid", Dim3), ("block", Dim3), ("lds", ctypes.c_uint32), ("stream", void_p)),
            *(("attributes", void_p), ("count", ctypes.c_uint32)),
        )

    function = void_p(address(kernel("add_one")))
    one, two = Dim3(1, 1, 1), Dim3(2, 1, 1)
    with Memory(4, np.zeros(1, np.int32)) as memory:
        to = void_p(memory.address)
        params = (void_p * 1)(ctypes.addressof(to))
        check(lib.hipLaunchKernel(function, one, one, params, size_t(0), None))
        check(lib.hipDrvLaunchKernelEx(ctypes.byref(Config(one, one)), function, params, None))
        check(hip.hipDeviceSynchronize())
        assert memory.get()[0] == 2
        assert lib.hipLaunchKernel(void_p(8), one, two, params, size_t(0), None) == 98


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
    with fails(FILE_NOT_FOUND, "no file '/nowhere.co'"):
        check(hip.hipModuleLoad(b"/nowhere.co"))
    with fails(FILE_NOT_FOUND, "not a regular file"):
        check(hip.hipModuleLoad(str(code_object.parent).encode()))
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


def test_counters(kernel: Kernel) -> None:
    totals = (ctypes.c_uint64 * 4)()
    lib.hipgemm_emulator_reset_counters()
    with Memory(4) as memory:
        launch(kernel("store"), memory.address, i32(1), grid=(5, 1, 1), block=(128, 1, 1))
        check(hip.hipDeviceSynchronize())
    assert lib.hipgemm_emulator_counters(totals, 4) >= 4
    waves, instructions, mfma, nanoseconds = totals
    assert waves == 10
    assert mfma == 0
    assert instructions % 10 == 0
    assert instructions > 30
    assert nanoseconds > 0
