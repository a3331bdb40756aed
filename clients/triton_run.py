"""Runs the kernels of a folder that triton_kernels.py has filled, on the emulator, by hip-python.

python clients/triton_run.py FOLDER

Prints a line of JSON for each kernel: its name, the largest error, and the error allowed.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hipgemm.runtime import hip as _hip

hip: Any = _hip.runtime().hip
KIND = hip.hipMemcpyKind
Array = NDArray[Any]
SCALARS = {"i32": ctypes.c_int32, "fp32": ctypes.c_float}
FP8 = {"fp8e4b8": ml_dtypes.float8_e4m3fnuz, "fp8e4nv": ml_dtypes.float8_e4m3fn}
TYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, **FP8}
RNG = np.random.default_rng(0)


def check(result: Any) -> Any:
    """What a call of hip-python returned; raises where that is an error."""
    code, *values = result if isinstance(result, tuple) else (result,)
    if code != hip.hipError_t.hipSuccess:
        library = ctypes.CDLL(str(_hip.EMULATOR))
        library.hipgemm_emulator_last_report.restype = ctypes.c_char_p
        raise RuntimeError(f"{code}: {(library.hipgemm_emulator_last_report() or b'').decode()}")
    return values[0] if values else None


class Kernel:
    """A compiled kernel. A call takes its arguments by name and returns the arrays as they are afterwards."""

    def __init__(self, folder: Path, name: str, about: dict[str, Any]) -> None:
        self.about = about
        self.constants: dict[str, Any] = about["constants"]
        image = (folder / f"{name}.hsaco").read_bytes()
        self.module = check(hip.hipModuleLoadData(image))
        self.function = check(hip.hipModuleGetFunction(self.module, about["function"].encode()))

    def dtype(self, argument: str) -> Any:
        """The NumPy type behind a pointer."""
        return TYPES[self.about["types"][argument].removeprefix("*")]

    def __call__(self, grid: tuple[int, ...], **arguments: Any) -> dict[str, Array]:
        packed, memory = [], {}
        for name, kind in self.about["types"].items():
            if kind[0] == "*":
                array = np.ascontiguousarray(arguments[name])
                memory[name] = (array, check(hip.hipMalloc(array.nbytes)))
                check(
                    hip.hipMemcpy(
                        memory[name][1], array, array.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice
                    )
                )
                packed.append(ctypes.c_void_p(int(memory[name][1])))
            else:
                packed.append(SCALARS[kind](arguments[name]))
        packed += [ctypes.c_void_p(0)] * 2  # Triton's scratch memories, which these kernels do not use
        pointers = (ctypes.c_void_p * len(packed))(*(ctypes.addressof(value) for value in packed))
        x, y, z = (*grid, 1, 1)[:3]
        check(
            hip.hipModuleLaunchKernel(
                self.function,
                x,
                y,
                z,
                self.about["block"],
                1,
                1,
                self.about["lds"],
                None,
                ctypes.addressof(pointers),
                None,
            )
        )
        check(hip.hipDeviceSynchronize())
        results = {}
        for name, (array, address) in memory.items():
            results[name] = np.empty_like(array)
            check(
                hip.hipMemcpy(results[name], address, array.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost)
            )
            check(hip.hipFree(address))
        return results


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def wide(x: Array) -> NDArray[np.float64]:
    return x.astype(np.float64)


def filled(shape: Any, dtype: Any = np.float32) -> Array:
    """NaN, which must be overwritten."""
    return np.full(shape, np.nan, dtype)


def matmul(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    m, n, k = 131, 144, 208
    a, b = (RNG.standard_normal(s).astype(kernel.dtype("a")) for s in ((m, k), (k, n)))
    grid = (cdiv(m, kernel.constants["BM"]), cdiv(n, kernel.constants["BN"]))
    c = kernel(grid, a=a, b=b, c=filled((m, n)), m=m, n=n, k=k)["c"]
    unit = 2.0**-9 if kernel.constants["PRECISION"] == "tf32" else k * 2.0**-24
    bound = np.max(np.abs(wide(a)) @ np.abs(wide(b))) * unit
    yield c, wide(a) @ wide(b), bound


def matmul_mx(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    m, n, k = 64, 128, 256
    grid = (m // kernel.constants["BM"], n // kernel.constants["BN"])
    codes = [RNG.integers(0, 256, (rows, k // 2)).astype(np.uint8) for rows in (m, n)]
    scales = [RNG.integers(120, 134, (rows, k // 32)).astype(np.uint8) for rows in (m, n)]
    values = []
    for code, scale in zip(codes, scales, strict=True):
        pairs = np.stack([code & 15, code >> 4], -1).reshape(len(code), k)
        values.append(
            wide(pairs.view(ml_dtypes.float4_e2m1fn)) * np.repeat(2.0 ** (scale.astype(int) - 127), 32, 1)
        )
    c = kernel(grid, a=codes[0], b=codes[1], sa=scales[0], sb=scales[1], c=filled((m, n)), n=n, k=k)["c"]
    yield c, values[0] @ values[1].T, np.max(np.abs(values[0]) @ np.abs(values[1]).T) * k * 2.0**-24


def softmax(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    x = (RNG.standard_normal((37, 781)) * 4).astype(np.float32)
    y = kernel((len(x),), x=x, y=filled(x.shape), n=x.shape[1])["y"]
    e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    yield y, e / e.sum(1, keepdims=True), 2e-6


def layer_norm(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    x = RNG.standard_normal((29, 500)).astype(ml_dtypes.bfloat16)
    w, b = (RNG.standard_normal(500).astype(np.float32) for _ in range(2))
    out = kernel(
        (29,), x=x, w=w, b=b, y=filled(x.shape, x.dtype), mean=filled(29), rstd=filled(29), n=500, eps=1e-5
    )
    mean, rstd = wide(x).mean(1), 1 / np.sqrt(wide(x).var(1) + 1e-5)
    yield out["mean"], mean, 1e-6
    yield out["rstd"], rstd, 4e-6
    y = (wide(x) - mean[:, None]) * rstd[:, None] * w + b
    yield out["y"], y, np.abs(y).max() * 2.0**-8


def layer_norm_gradient(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    x, dy = (RNG.standard_normal((29, 500)).astype(ml_dtypes.bfloat16) for _ in range(2))
    w = RNG.standard_normal(500).astype(np.float32)
    mean, rstd = wide(x).mean(1), 1 / np.sqrt(wide(x).var(1) + 1e-5)
    out = kernel(
        (29,),
        x=x,
        w=w,
        dy=dy,
        mean=mean.astype(np.float32),
        rstd=rstd.astype(np.float32),
        dx=filled(x.shape, x.dtype),
        dw=np.zeros(500, np.float32),
        n=500,
    )
    h, p = (wide(x) - mean[:, None]) * rstd[:, None], w * wide(dy)
    dx = (p - h * (h * p).mean(1, keepdims=True) - p.mean(1, keepdims=True)) * rstd[:, None]
    yield out["dx"], dx, np.abs(dx).max() * 2.0**-8
    yield out["dw"], (wide(dy) * h).sum(0), 29 * 10 * 2.0**-22


def attention(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    heads, length, d = 3, 150, kernel.constants["D"]
    q, k, v = (RNG.standard_normal((heads, length, d)).astype(ml_dtypes.bfloat16) for _ in range(3))
    grid = (cdiv(length, kernel.constants["BM"]), heads)
    o = kernel(grid, q=q, k=k, v=v, o=filled(q.shape), length=length, scale=d**-0.5)["o"]
    s = wide(q) @ wide(k).transpose(0, 2, 1) * d**-0.5
    s[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    p = np.exp(s - s.max(2, keepdims=True))
    p /= p.sum(2, keepdims=True)
    # The weights are rounded to bf16.
    yield o, p @ wide(v), np.max(p @ np.abs(wide(v))) * 2.0**-8


def histogram(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    x = RNG.integers(0, 50, 5000).astype(np.int32)
    grid = (cdiv(x.size, kernel.constants["BLOCK"]),)
    yield (
        kernel(grid, x=x, counts=np.zeros(50, np.int32), n=x.size)["counts"],
        np.bincount(x, minlength=50),
        0,
    )


def locked_sum(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    block, groups = kernel.constants["BLOCK"], 9
    x = RNG.integers(-1000, 1000, block * groups - 5).astype(np.int32)
    zeros = np.zeros(block, np.int32)
    out = kernel((groups,), x=x, lock=zeros[:1], total=zeros, n=x.size)
    yield out["total"], np.append(x, [0] * 5).reshape(groups, block).sum(0), 0
    yield out["lock"], zeros[:1], 0


def extremes(kernel: Kernel) -> Iterator[tuple[Array, Array, float]]:
    x = RNG.integers(1000, 2**31 - 1000, 3000).astype(np.int32)
    out = np.array([0, 2**31 - 1, 0, -1, 0], np.int32)
    got = kernel((cdiv(x.size, kernel.constants["BLOCK"]),), x=x, out=out, n=x.size)["out"]
    of = (np.bitwise_or, np.bitwise_and, np.bitwise_xor)
    yield got, np.array([x.max(), x.min(), *(f.reduce(x) for f in of)]), 0


CASES = {
    "matmul_mxfp4": matmul_mx,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "layer_norm_gradient": layer_norm_gradient,
    "attention": attention,
    "histogram": histogram,
    "locked_sum": locked_sum,
    "extremes": extremes,
}


def main(folder: Path) -> None:
    """Run them all."""
    for name, about in json.loads((folder / "kernels.json").read_text()).items():
        record: dict[str, Any] = {"kernel": name, "error": 0.0}
        try:
            for got, wanted, bound in CASES.get(name, matmul)(Kernel(folder, name, about)):
                error = np.abs(wide(got) - wide(wanted))
                record["error"] = max(record["error"], float(error.max()))
                if not (error <= bound).all():
                    record["failed"] = f"{(~(error <= bound)).sum()} of {error.size} wrong; {bound=}"
        except RuntimeError as error:
            record["failed"] = str(error)
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
