"""libhiprtc: programs of hip-python that compile at run time, under `python -m hipgemm sanitize`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from asm import ARCH

from hipgemm.__main__ import main

START = f"""
import ctypes
import numpy as np
from hip import hip, hiprtc


def check(result):
    code, *values = result
    assert int(code) == 0, code
    return values[0] if len(values) == 1 else values


def compiled(source, *options):
    program = check(hiprtc.hiprtcCreateProgram(source, b"program", 0, [], []))
    options = [b"--offload-arch={ARCH}:sramecc+:xnack-", *options]
    (code,) = hiprtc.hiprtcCompileProgram(program, len(options), options)
    log = bytearray(check(hiprtc.hiprtcGetProgramLogSize(program)))
    check(hiprtc.hiprtcGetProgramLog(program, log))
    return program, code, log.decode()


def run(code, name, x):
    module = check(hip.hipModuleLoadData(code))
    kernel = check(hip.hipModuleGetFunction(module, name))
    memory = check(hip.hipMalloc(x.nbytes))
    check(hip.hipMemcpy(memory, x, x.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice))
    extra = (memory, ctypes.c_float(2.5), ctypes.c_int(x.size))
    check(hip.hipModuleLaunchKernel(kernel, 2, 1, 1, 64, 1, 1, 0, None, None, extra))
    check(hip.hipMemcpy(x, memory, x.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost))
    return x


x = np.arange(100, dtype=np.float32)
"""
KERNEL = """
extern "C" __global__ void scale(float* x, float by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) printf("%d of %d\\n", i, (int)gridDim.x);
  if (i < n) x[i] = BODY;
}
"""
COMPILE = f"""
source = {KERNEL.replace("BODY", "x[i] * by")!r}.encode()
program, code, log = compiled(source, b"-DUNUSED=1")
assert int(code) == 0, log
binary = bytearray(check(hiprtc.hiprtcGetCodeSize(program)))
check(hiprtc.hiprtcGetCode(program, binary))
assert (run(binary, b"scale", x.copy()) == x * 2.5).all()
program, code, log = compiled(b"__global__ void k() {{ nothing; }}")
assert int(code) == 6 and "use of undeclared identifier 'nothing'" in log, (code, log)
"""
CALLS = 'extern "C" __device__ float half_of(float);' + KERNEL.replace("BODY", "half_of(x[i]) * by")
LINK = f"""
parts = [
    b"extern \\"C\\" __device__ float half_of(float x) {{ return x / 2; }}",
    {CALLS!r}.encode(),
]
library = ctypes.CDLL("libhiprtc.so")
state = ctypes.c_void_p()
assert library.hiprtcLinkCreate(0, None, None, ctypes.byref(state)) == 0
for part in parts:
    program, code, log = compiled(part, b"-fgpu-rdc")
    assert int(code) == 0, log
    bitcode = bytearray(check(hiprtc.hiprtcGetBitcodeSize(program)))
    check(hiprtc.hiprtcGetBitcode(program, bitcode))
    data = bytes(bitcode)
    assert library.hiprtcLinkAddData(state, 100, data, ctypes.c_size_t(len(data)), b"", 0, None, None) == 0
out, size = ctypes.c_void_p(), ctypes.c_size_t()
assert library.hiprtcLinkComplete(state, ctypes.byref(out), ctypes.byref(size)) == 0
binary = ctypes.string_at(out.value, size.value)
assert (run(binary, b"scale", x.copy()) == x / 2 * 2.5).all()
assert library.hiprtcLinkDestroy(state) == 0
"""


@pytest.mark.parametrize("body", [COMPILE, LINK], ids=["compile", "link"])
def test_programs(body: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(START + body)
    code = main(["sanitize", "--", sys.executable, str(script)])
    assert (code, capfd.readouterr().err) == (0, "sanitize: 0 findings in 0 kernels\n")
