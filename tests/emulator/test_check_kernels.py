"""Our own kernels under the sanitizers: no findings, except with a wait or a gap removed."""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import asm
import numpy as np
import pytest
from checked import checks, programs

FOLDER = Path(__file__).parents[2] / "hipgemm" / "kernels"
ENTRY = json.loads((FOLDER / "manifest.json").read_text())["archs"]["gfx950"]
PRODUCT_KERNELS = [k for k in ENTRY["kernels"] if k["op"].endswith("gemm")]
GEMMS = {
    k["name"]: k for k in ENTRY["kernels"] if k["op"] == "gemm" and k["a"] == "bf16" and k["layout"] == "nt"
}
DEVICE_TESTS, TOOLS = Path(__file__).parents[1] / "device", Path(__file__).parents[2] / "tools"

S_NOP, S_NOP_MASK = np.uint32(0xBF800000), np.uint32(0xFFFFFFF0)
WAIT, WAIT_MASK = np.uint32(0xBF8C0000), np.uint32(0xFFFF0000)

PRODUCTS = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from gemm_launch import GEMMS, Memory, Product
for name in {names}:
    kernel = GEMMS[name]
    drawn = Product.draw(kernel, 37, 70, 3 * kernel.tile[2] - 24)
    expected = drawn.expected()[0].astype(np.float32)
    for split_tiles in (0, 2):
        memory = Memory()
        assert np.array_equal(drawn.run(memory, split_tiles=split_tiles), expected), kernel.name
        memory.free()
    print("clean", kernel.name)
"""


@pytest.mark.parametrize("memory", ["late", "early", "random:3"])
def test_products(memory: str, run_python: Callable[..., CompletedProcess[str]]) -> None:
    """Every product kernel, without and with split K; in other orders one of those with the same code."""
    names = [k["name"] for k in PRODUCT_KERNELS] if memory == "late" else programs(PRODUCT_KERNELS)
    done = run_python(
        PRODUCTS.format(folder=str(DEVICE_TESTS), names=names),
        HIPGEMM_RUNTIME="emulator",
        HIPGEMM_EMULATOR_CHECK="all",
        HIPGEMM_EMULATOR_MEMORY=memory,
        HIPGEMM_EMULATOR_WAVES="random:3" if memory.startswith("random") else "reverse",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("clean") == len(names) > 80


EVERYTHING = """
import sys
sys.path.insert(0, {tools!r})
import bridge_small
bridge_small.main()  # every portable kernel
import hipgemm as hg, ml_dtypes, numpy as np
from hipgemm.kernels import launch as _launch
rng = np.random.default_rng(5)
x = hg.asarray(rng.standard_normal((70, 96)).astype(ml_dtypes.bfloat16))
odd = hg.asarray(rng.standard_normal((33, 45)).astype(np.float32))
for source in (x, odd, odd.T):
    hg.quantize_fp8(source).get()
    hg.quantize_fp8(source, axis=-1).get()
    hg.quantize_fp8(source, amax=hg.AmaxState()).get()
    for scaling in ("unit", "floor", "rceil", "even"):
        hg.quantize_mxfp8(source, scaling=scaling).get()
    for part in hg.quantize_both(source, "mxfp8_e4m3"):
        hg.dequantize(part).get()
    hg.transpose_quantize_mxfp8(source).get()
    hg.quantize_mxfp6(source).get()
    for part in hg.quantize_both(source, "mxfp6_e3m2"):
        hg.dequantize(part).get()
    hg.quantize_mxfp4(source, hadamard=False).get()
    source.T[::2].get()
offsets = hg.asarray(np.array([0, 33, 33, 70], np.int32))
hg.quantize_mxfp8(x, axis=0, group_offsets=offsets, rounding="stochastic", seed=3).get()
narrow = hg.quantize_mxfp4(x, hadamard=False)
hg.dequantize(hg.quantize_mxfp4(x)).get()
hg.matmul(hg.quantize_mxfp8(x), narrow.T).get()
hg.matmul(hg.quantize_mxfp6(x), narrow.T).get()
hg.matmul(x.T, x).get()
hg.matmul(x.T, x[:, :70], out=hg.zeros((96, 140), np.float32)[:, ::2])
hg.matmul(x[:, ::-1], x.T).get()
codes = hg.quantize_fp8(x)
hg.matmul(codes.T, codes).get()
transposed = hg.zeros((70, 96), np.float32)
_launch.copy_strided(0, 0, 1, (codes.data.ptr, *codes.data.strides), (transposed.ptr, 1, 70), 70, 96)
transposed.get()
scale = hg.quantize_mxfp8(x).scale
hg.pack_mx_scales(scale).get()
hg.matmul(hg.asarray(hg.ScaledArray(hg.quantize_mxfp8(x).get().data, scale.get(), "mxfp8_e4m3")),
          hg.quantize_mxfp8(x).T).get()
factors = np.linspace(1, 2, 45, dtype=np.float32)
_, saved = hg.linear(odd, hg.zeros((45, 45), np.float32), bias=factors, w_post_scale=factors)
hg.linear_backward(odd, saved)
hg.grouped_wgrad(x, x, np.array([0, 33, 33, 69]), recipe="mxfp8").get()
experts, biases = hg.zeros((3, 45, 96), np.float32), np.zeros((3, 45), np.float32)
y, saved = hg.grouped_linear(x, experts, offsets, bias=biases, activation="gelu")
hg.grouped_linear_backward(y, saved)
small = {{"bias": biases[:, :32], "activation": "gelu", "recipe": "mxfp8"}}
_, saved = hg.grouped_linear(x, experts[:, :32], offsets, **small)
hg.grouped_linear_backward(x[:, :32], saved)
square = hg.zeros((96, 96), x.dtype)
for recipe in ("fp8", "fp8_block", "mxfp8", "mxfp4"):
    _, saved = hg.linear(x, square, activation="gelu", recipe=recipe)
    hg.linear_backward(x, saved, rounding="stochastic", seed=1)
_, saved = hg.grouped_linear(x, hg.zeros((3, 96, 96), x.dtype), offsets, activation="gelu", recipe="mxfp8")
hg.grouped_linear_backward(x, saved, rounding="stochastic", seed=1)
rows = hg.quantize_mxfp8(x, axis=0)
hg.grouped_wgrad(rows, rows, np.array([0, 32, 64])).get()
with hg.config(kernel="plain_gemm"):
    hg.matmul(x.T, x).get()
print("served:", *hg.usage().kernels)
"""


def test_every_other_kernel_is_clean(run_python: Callable[..., CompletedProcess[str]]) -> None:
    script = EVERYTHING.format(tools=str(TOOLS))
    done = run_python(script, HIPGEMM_RUNTIME="emulator", HIPGEMM_EMULATOR_CHECK="all")
    assert done.returncode == 0, done.stdout + done.stderr
    served = set(done.stdout.splitlines()[-1].split()[1:])
    in_parts = "split_reduce"  # test_products
    products = ("gemm", "grouped_matmul", "grouped_wgrad")  # those in groups: test_check_grouped.py
    others = (*products, "primitive")  # tests/device/test_primitives.py
    assert served >= {k["name"] for k in ENTRY["kernels"] if not k["op"].endswith(others)} - {in_parts}


Words = np.ndarray[Any, np.dtype[np.uint32]]


def patched(change: Callable[[Words], Words]) -> tuple[bytes, int]:
    """The code object with some instruction words changed, and how many were."""
    image = bytearray((FOLDER / ENTRY["file"]).read_bytes())
    table, size, count = (int.from_bytes(image[a : a + n], "little") for a, n in ((40, 8), (58, 2), (60, 2)))
    changed = 0
    for i in range(count):
        _, kind, flags, _, offset, length = struct.unpack_from("<IIQQQQ", image, table + i * size)
        if kind != 1 or not flags & 4:  # code only
            continue
        words = np.frombuffer(image, np.uint32, length // 4, offset)
        now = change(words)
        changed += int((now != words).sum())
        words[:] = now
    return bytes(image), changed


def run(image: bytes, kernel: dict[str, Any], check: str) -> str:
    """Multiply 70x200 by 200x65, or by 200x72 stored in rows; the report, "" if there is none."""
    rows = kernel["layout"] == "nn"
    m, n, k = 70, 72 if rows else 65, 200
    values = {
        "alpha": 1.0,
        "lda": k,
        "ldb": n if rows else k,
        "ldc": n,
        "m": m,
        "n": n,
        "k": k,
        "batch_inner": 1,
        "splits": 1,
        "out_type": 0,
        "bias_type": 0,
    }
    formats = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64, "u32": ctypes.c_uint32, "f32": ctypes.c_float}
    lib, module, function = asm.library(), ctypes.c_void_p(), ctypes.c_void_p()
    with checks(check):
        asm._call("hipModuleLoadData", ctypes.byref(module), image)
        asm._call("hipModuleGetFunction", ctypes.byref(function), module, kernel["name"].encode())
        memory = {}
        for name, size in (("a", m * k * 2), ("b", n * k * 2), ("c", m * n * 2)):
            memory[name] = p = ctypes.c_void_p()
            asm._call("hipMalloc", ctypes.byref(p), ctypes.c_size_t(size))
            data = np.full(size, 0x3F, np.uint8).ctypes.data_as(ctypes.c_void_p)
            if name != "c":
                asm._call("hipMemcpy", p, data, ctypes.c_size_t(size), 1)
        arguments = [
            formats[a["type"]](memory[a["name"]].value if a["name"] in memory else values.get(a["name"], 0))
            for a in ENTRY["args"][kernel["args"]]
        ]
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        tiles = -(-m // kernel["tile"][0]) * -(-n // kernel["tile"][1])
        try:
            asm._call(
                "hipModuleLaunchKernel",
                *(function, tiles, 1, 1, kernel["threads"], 1, 1, 0, ctypes.c_void_p()),
                *(pointers, ctypes.c_void_p()),
            )
            asm._call("hipDeviceSynchronize")
        except asm.LaunchError as error:
            return error.report
        finally:
            for p in memory.values():
                lib.hipFree(p)
            lib.hipModuleUnload(module)
    return ""


@pytest.mark.parametrize("name", GEMMS)
def test_unpatched(name: str) -> None:
    image, changed = patched(lambda words: words)
    assert changed == 0
    assert run(image, GEMMS[name], "all") == ""


def test_shorter_gaps() -> None:
    """Every s_nop cut to one wait state. A kernel whose gaps other instructions fill stays clean."""
    image, changed = patched(lambda words: np.where(words & S_NOP_MASK == S_NOP, S_NOP, words))
    assert changed
    other_layout = [k for k in ENTRY["kernels"] if k["name"].startswith("gemm_bf16_nn")]
    found = [report for k in (*GEMMS.values(), *other_layout) if (report := run(image, k, "hazard"))]
    assert found
    assert all("hazard: " in report and "needed; the other is 0x" in report for report in found), found


@pytest.mark.parametrize("name", GEMMS)
def test_no_waits_for_lds_and_scalars(name: str) -> None:
    image, changed = patched(lambda words: np.where(words & WAIT_MASK == WAIT, words | 0xF00, words))
    assert changed
    assert "while a load into it is in flight: an s_waitcnt for lgkmcnt" in run(image, GEMMS[name], "hazard")


@pytest.mark.parametrize("name", GEMMS)
def test_no_waits_for_vector_memory(name: str) -> None:
    """Without waits the DMA is late, and LDS is read before it is written."""
    image, changed = patched(lambda words: np.where(words & WAIT_MASK == WAIT, words | 0xC00F, words))
    assert changed
    report = run(image, GEMMS[name], "uninit")
    assert "uninit: lane " in report, report
    assert "LDS at 0x" in report, report
