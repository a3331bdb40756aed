"""Programs of hip-python that call what its examples call, in that order, each with a result to compare.

python clients/hip_programs.py CALLS.json

Runs all of them, on two devices or more, prints their names, and writes which functions they called.
"""

from __future__ import annotations

import array
import ctypes
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from hip import hip as hip_module
from hip import hiprtc as hiprtc_module


class Recorded:
    """A module that keeps the names of those of its functions that are called."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self.called = module, set[str]()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, type) or not callable(value):
            return value

        def call(*args: Any, **keywords: Any) -> Any:
            self.called.add(name)
            return value(*args, **keywords)

        return call


hip, hiprtc = Recorded(hip_module), Recorded(hiprtc_module)
TO_DEVICE, TO_HOST = hip.hipMemcpyKind.hipMemcpyHostToDevice, hip.hipMemcpyKind.hipMemcpyDeviceToHost
SCALE = """
extern "C" __global__ void scale(float by, int n, short unused, float* x) {
  int i = threadIdx.x + blockIdx.x * blockDim.x;
  if (i < n) x[i] *= by;
}
"""


def check(result: Any) -> Any:
    """What a call returned; raises where that is an error."""
    code, *values = result
    if int(code):
        raise RuntimeError(str(code))
    return values[0] if len(values) == 1 else tuple(values)


def architecture() -> str:
    return str(check(hip.hipGetDeviceProperties(0)).gcnArchName)


def compiled(source: str, *options: bytes) -> Any:
    """A program, compiled for the first device; an error has the compiler's output."""
    program = check(hiprtc.hiprtcCreateProgram(source.encode(), b"program", 0, [], []))
    options = (f"--offload-arch={architecture()}".encode(), *options)
    (code,) = hiprtc.hiprtcCompileProgram(program, len(options), list(options))
    if int(code):
        log = bytearray(check(hiprtc.hiprtcGetProgramLogSize(program)))
        check(hiprtc.hiprtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    return program


def loaded(source: str, name: bytes) -> tuple[Any, Any]:
    """A module of one source, and its kernel."""
    program = compiled(source)
    code = bytearray(check(hiprtc.hiprtcGetCodeSize(program)))
    check(hiprtc.hiprtcGetCode(program, code))
    check(hiprtc.hiprtcDestroyProgram(program.createRef()))
    module = check(hip.hipModuleLoadData(code))
    return module, check(hip.hipModuleGetFunction(module, name))


def launch(kernel: Any, n: int, *arguments: Any) -> None:
    """One thread for each of n, in blocks of 32; the runtime packs the arguments."""
    block = hip.dim3(x=32)
    grid = hip.dim3(math.ceil(n / block.x))
    launched = hip.hipModuleLaunchKernel(
        kernel, *grid, *block, sharedMemBytes=0, stream=None, kernelParams=None, extra=arguments or None
    )
    check(launched)


# ---- programs ------------------------------------------------------------------------------------


def attributes() -> None:
    """Attributes of a device, and its properties, which say the same."""
    names = {f"maxThreadsDim{axis}": f"MaxBlockDim{axis}" for axis in "XYZ"} | {"warpSize": "WarpSize"}
    properties = check(hip.hipGetDeviceProperties(0))
    found = [
        check(hip.hipDeviceGetAttribute(getattr(hip.hipDeviceAttribute_t, f"hipDeviceAttribute{name}"), 0))
        for name in names.values()
    ]
    assert found == [*properties.maxThreadsDim, properties.warpSize], found


def device_array() -> None:
    """A shaped array on the device, whose rows a kernel gets one by one."""
    module, kernel = loaded(SCALE, b"scale")
    x = np.ones((3, 20), np.float32)
    on_device = check(hip.hipMalloc(x.nbytes)).configure(typestr="float32", shape=x.shape)
    check(hip.hipMemcpy(on_device, x, x.nbytes, TO_DEVICE))
    for i in range(len(x)):
        row = on_device[i, :]
        launch(kernel, row.size, ctypes.c_float(i), ctypes.c_int(row.size), ctypes.c_short(5), row)
        check(hip.hipDeviceSynchronize())
    check(hip.hipMemcpy(x, on_device, x.nbytes, TO_HOST))
    check(hip.hipFree(on_device))
    check(hip.hipModuleUnload(module))
    assert (x == np.arange(3)[:, None]).all(), x


def stream() -> None:
    """Copies and a fill on a stream, of memory that is not pinned."""
    x = array.array("i", range(1, 101))
    size = x.itemsize * len(x)
    memory = check(hip.hipMalloc(size))
    queue = check(hip.hipStreamCreate())
    check(hip.hipMemcpyAsync(memory, x, size, TO_DEVICE, queue))
    check(hip.hipMemsetAsync(memory, 0, size // 2, queue))
    check(hip.hipMemcpyAsync(x, memory, size, TO_HOST, queue))
    check(hip.hipStreamSynchronize(queue))
    check(hip.hipStreamDestroy(queue))
    check(hip.hipFree(memory))
    assert list(x) == [0] * 50 + list(range(51, 101)), x


def without_arguments() -> None:
    """A kernel that takes none; and a source that has an error, with the compiler's words."""
    kernel = 'extern "C" __global__ void say() { printf("%d\\n", (int)threadIdx.x); }'
    module, function = loaded(kernel, b"say")
    launch(function, 32)
    check(hip.hipDeviceSynchronize())
    check(hip.hipModuleUnload(module))
    try:
        compiled("__global__ void wrong() { nothing; }")
        output = ""
    except RuntimeError as error:
        output = str(error)
    assert "use of undeclared identifier 'nothing'" in output, output


JACOBI = """
extern "C" __global__ void step(float* next, const float* x, const float* a, const float* b, int n) {
  int row = threadIdx.x + blockIdx.x * blockDim.x;
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += i == row ? 0 : a[row * n + i] * x[i];
  next[row] = (b[row] - sum) / a[row * n + row];
}
"""


def jacobi() -> None:
    """Jacobi's iteration between two vectors, timed by events."""
    n, steps, rng = 128, 40, np.random.default_rng(0)
    a = rng.random((n, n), np.float32) / n + 2 * np.eye(n, dtype=np.float32)
    b, x = rng.random(n, np.float32), np.zeros(n, np.float32)
    module, kernel = loaded(JACOBI, b"step")
    arrays = [check(hip.hipMalloc(host.nbytes)) for host in (x, x, a, b)]
    for memory, host in zip(arrays, (x, x, a, b), strict=True):
        check(hip.hipMemcpy(memory, host, host.nbytes, TO_DEVICE))
    new, old, on_a, on_b = arrays
    start, stop = (check(hip.hipEventCreate()) for _ in "ab")
    check(hip.hipEventRecord(start, None))
    for _ in range(steps):
        launch(kernel, n, new, old, on_a, on_b, ctypes.c_int(n))
        new, old = old, new
    check(hip.hipEventRecord(stop, None))
    check(hip.hipEventSynchronize(stop))
    assert check(hip.hipEventElapsedTime(start, stop)) > 0
    check(hip.hipMemcpy(x, old, x.nbytes, TO_HOST))
    for event in (start, stop):
        check(hip.hipEventDestroy(event))
    for memory in arrays:
        check(hip.hipFree(memory))
    check(hip.hipModuleUnload(module))
    assert np.abs(a @ x - b).max() < 1e-6


CALLS_HALF = 'extern "C" __device__ float half_of(float);' + SCALE.replace("*= by", "= half_of(x[i]) * by")
HALF = 'extern "C" __device__ float half_of(float x) { return x / 2; }'
HALF_IN_IR = """
target triple = "amdgcn-amd-amdhsa"
define float @half_of(float %x) #0 {
  %half = fmul float %x, 5.000000e-01
  ret float %half
}
attributes #0 = { "target-cpu"="CPU" }
"""


def bitcode_of(source: str) -> bytearray:
    program = compiled(source, b"-fgpu-rdc")
    bitcode = bytearray(check(hiprtc.hiprtcGetBitcodeSize(program)))
    check(hiprtc.hiprtcGetBitcode(program, bitcode))
    check(hiprtc.hiprtcDestroyProgram(program.createRef()))
    return bitcode


def linked(*parts: bytes | bytearray) -> None:
    """Link parts in LLVM's bitcode or as its text, and run the kernel."""
    state = check(hiprtc.hiprtcLinkCreate(0, None, None))
    kind = hiprtc.hiprtcJITInputType.hipJitInputLLVMBitcode
    for part in parts:
        check(hiprtc.hiprtcLinkAddData(state, kind, part, len(part), b"part", 0, None, None))
    code, _ = check(hiprtc.hiprtcLinkComplete(state))
    module = check(hip.hipModuleLoadData(code))
    kernel = check(hip.hipModuleGetFunction(module, b"scale"))
    check(hiprtc.hiprtcLinkDestroy(state))
    x = np.arange(100, dtype=np.float32)
    memory = check(hip.hipMalloc(x.nbytes))
    check(hip.hipMemcpy(memory, x, x.nbytes, TO_DEVICE))
    launch(kernel, x.size, ctypes.c_float(3), ctypes.c_int(x.size), ctypes.c_short(5), memory)
    check(hip.hipMemcpy(x, memory, x.nbytes, TO_HOST))
    check(hip.hipFree(memory))
    check(hip.hipModuleUnload(module))
    assert (x == np.arange(100) / 2 * 3).all(), x


def linking() -> None:
    """A kernel, and a function that it calls, from two sources."""
    linked(bitcode_of(CALLS_HALF), bitcode_of(HALF))


def linking_llvm_ir() -> None:
    """The function as text of LLVM's IR."""
    cpu = architecture().split(":")[0]
    linked(bitcode_of(CALLS_HALF), HALF_IN_IR.replace("CPU", cpu).encode())


def several_devices() -> None:
    """Memory on each device, as the broadcast of a library fills it; here by copies."""
    sent = np.arange(4, dtype=np.uint8)
    memory = []
    for device in range(check(hip.hipGetDeviceCount())):
        check(hip.hipSetDevice(device))
        memory.append(check(hip.hipMalloc(sent.nbytes)))
        check(hip.hipMemcpy(memory[-1], sent, sent.nbytes, TO_DEVICE))
    assert len(memory) > 1
    for device, array_there in enumerate(memory):
        check(hip.hipSetDevice(device))
        found = np.zeros_like(sent)
        check(hip.hipMemcpy(found, array_there, found.nbytes, TO_HOST))
        check(hip.hipFree(array_there))
        assert (found == sent).all()
    check(hip.hipSetDevice(0))


PROGRAMS = (
    *(attributes, device_array, stream, without_arguments, jacobi),
    *(linking, linking_llvm_ir, several_devices),
)


def main(calls: Path) -> None:
    """Run all programs."""
    for program in PROGRAMS:
        program()
        print(program.__name__)
    calls.write_text(json.dumps(sorted(hip.called | hiprtc.called)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
