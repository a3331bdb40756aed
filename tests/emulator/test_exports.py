"""The library exports only functions that have a user; each one's user is listed here."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hipgemm.runtime import loader, rocm

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))

import code_object  # noqa: E402

# Compilers' runtimes that load the library by themselves.
IREE = """hipCtxGetCurrent hipCtxPopCurrent hipCtxPushCurrent hipCtxSetCurrent hipDeviceCanAccessPeer
hipDeviceEnablePeerAccess hipDeviceGet hipDeviceGetAttribute hipDeviceGetName hipDeviceGetUuid
hipDevicePrimaryCtxRelease hipDevicePrimaryCtxRetain hipEventCreate hipEventCreateWithFlags
hipEventDestroy hipEventElapsedTime hipEventQuery hipEventRecord hipEventSynchronize hipFree hipFreeAsync
hipFuncGetAttribute hipFuncSetAttribute hipGetDeviceCount hipGetErrorName hipGetErrorString
hipGetLastError hipHostFree hipHostGetDevicePointer hipHostMalloc hipHostRegister hipHostUnregister
hipInit hipLaunchHostFunc hipLaunchKernel hipMalloc hipMallocAsync hipMallocFromPoolAsync hipMallocManaged
hipMemPoolCreate hipMemPoolDestroy hipMemPoolGetAttribute hipMemPoolSetAttribute hipMemPoolTrimTo
hipMemPrefetchAsync hipMemcpy hipMemcpyAsync hipMemcpyHtoDAsync hipMemset hipMemsetAsync hipMemsetD16Async
hipMemsetD32Async hipMemsetD8Async hipModuleGetFunction hipModuleGetGlobal hipModuleLaunchKernel
hipModuleLoadData hipModuleLoadDataEx hipModuleUnload hipSetDevice hipStreamCreateWithFlags
hipStreamDestroy hipStreamSynchronize hipStreamWaitEvent hipDrvGraphAddMemcpyNode hipGraphAddEmptyNode
hipGraphAddEventRecordNode hipGraphAddKernelNode hipGraphAddMemsetNode hipGraphCreate hipGraphDestroy
hipGraphExecDestroy hipGraphInstantiate hipGraphLaunch"""
TRITON = """hipDriverGetVersion hipDrvLaunchKernelEx hipFuncGetAttribute hipGetErrorString hipGetLastError
hipGetProcAddress hipModuleGetFunction hipModuleLaunchCooperativeKernel hipModuleLaunchKernel
hipModuleLoadDataEx hipModuleUnload hipPointerGetAttribute"""
# hip-python's own examples, and what it calls without checking that it exists.
HIP_PYTHON = """hipGetDevicePropertiesR0600 hipStreamCreate hipApiName hipCreateChannelDesc"""
# What HIP programs begin and end with.
PROGRAMS = """hipDeviceReset hipPeekAtLastError __hipRegisterFatBinary __hipRegisterFunction __hipRegisterVar
__hipUnregisterFatBinary"""


def test_every_function_has_a_user() -> None:
    used = set(rocm.FUNCTIONS) | set(" ".join((IREE, TRITON, HIP_PYTHON, PROGRAMS)).split())
    folders = [HERE, HERE.parent / "bridge"]  # the machine of the bridge's tests calls it too
    for file in {file for folder in folders for file in folder.glob("*.*")} - {Path(__file__)}:
        if file.suffix in (".py", ".c", ".cpp", ".hip"):
            used |= set(re.findall(r"\b(?:__)?hip[A-Z]\w+", file.read_text()))
    symbols = code_object.read(loader.EMULATOR.read_bytes()).symbols.values()
    names = {symbol.name for symbol in symbols if symbol.section}
    assert {"hipMalloc", "hipgemm_emulator_counters"} <= names
    assert not {name for name in names if not name.startswith("hipgemm_emulator_")} - used
    assert not {*rocm.FUNCTIONS, *IREE.split(), *TRITON.split()} - names
