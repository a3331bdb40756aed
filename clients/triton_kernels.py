"""Triton kernels, and a command that compiles them for an architecture without a GPU.

python clients/triton_kernels.py gfx950 FOLDER

For each kernel FOLDER gets a code object and, in kernels.json, what a launch needs: the order of its
arguments, the workgroup's size and the LDS.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

FP8 = {"gfx942": "fp8e4b8", "gfx950": "fp8e4nv"}


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):
    """C = A B with blocks at the edges that are not full."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        in_k = start + inner < k
        x = tl.load(
            a + rows[:, None] * k + (start + inner)[None, :],
            mask=(rows < m)[:, None] & in_k[None, :],
            other=0.0,
        )
        y = tl.load(
            b + (start + inner)[:, None] * n + columns[None, :],
            mask=in_k[:, None] & (columns < n)[None, :],
            other=0.0,
        )
        total = tl.dot(x, y, total, input_precision=PRECISION)
    tl.store(
        c + rows[:, None] * n + columns[None, :], total, mask=(rows < m)[:, None] & (columns < n)[None, :]
    )


@triton.jit
def matmul_mx(a, b, sa, sb, c, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C = A B of e2m1 elements, two in a byte, with a scale for each 32 along k; full blocks."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, k, BK):
        byte = start // 2 + tl.arange(0, BK // 2)
        block = start // 32 + tl.arange(0, BK // 32)
        x = tl.load(a + rows[:, None] * (k // 2) + byte[None, :])
        y = tl.load(b + columns[None, :] * (k // 2) + byte[:, None])
        x_scale = tl.load(sa + rows[:, None] * (k // 32) + block[None, :])
        y_scale = tl.load(sb + columns[:, None] * (k // 32) + block[None, :])
        total = tl.dot_scaled(x, x_scale, "e2m1", y, y_scale, "e2m1", total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    """A row per program."""
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    v = tl.load(x + at, mask=inside, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=inside)


@triton.jit
def layer_norm(x, w, b, y, mean, rstd, n, eps, BLOCK: tl.constexpr):
    """A row per program."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    v = tl.load(x + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    center = tl.sum(v, 0) / n
    d = tl.where(inside, v - center, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, 0) / n + eps)
    tl.store(mean + row, center)
    tl.store(rstd + row, scale)
    weight = tl.load(w + columns, mask=inside)
    bias = tl.load(b + columns, mask=inside)
    tl.store(y + row * n + columns, (d * scale * weight + bias).to(tl.bfloat16), mask=inside)


@triton.jit
def layer_norm_gradient(x, w, dy, mean, rstd, dx, dw, n, BLOCK: tl.constexpr):
    """dx, a row per program; dw is added up by atomic operations."""
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    v = tl.load(x + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(w + columns, mask=inside, other=0.0)
    scale = tl.load(rstd + row)
    h = tl.where(inside, (v - tl.load(mean + row)) * scale, 0.0)
    p = weight * g
    along, center = tl.sum(h * p, 0) / n, tl.sum(p, 0) / n
    tl.store(dx + row * n + columns, ((p - h * along - center) * scale).to(tl.bfloat16), mask=inside)
    tl.atomic_add(dw + columns, g * h, mask=inside)


@triton.jit
def attention(q, k, v, o, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Causal attention of one head per program of axis 1, by blocks of keys with a running maximum."""
    first = tl.program_id(0) * BM
    head = tl.program_id(1) * length * D
    rows = first + tl.arange(0, BM)
    d = tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + d[None, :], mask=(rows < length)[:, None], other=0.0)
    top = tl.full((BM,), -float("inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, first + BM, BN):
        keys = start + tl.arange(0, BN)
        inside = keys < length
        key = tl.load(k + head + keys[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
        s = tl.dot(query, key) * scale
        s = tl.where((rows[:, None] >= keys[None, :]) & inside[None, :], s, -float("inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        keep = tl.exp(top - now)
        weight = weight * keep + tl.sum(p, 1)
        value = tl.load(v + head + keys[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
        total = tl.dot(p.to(tl.bfloat16), value, total * keep[:, None])
        top = now
    tl.store(
        o + head + rows[:, None] * D + d[None, :], total / weight[:, None], mask=(rows < length)[:, None]
    )


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    """Each value is counted by an atomic addition."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    tl.atomic_add(counts + v, 1, mask=at < n)


@triton.jit
def locked_sum(x, lock, total, n, BLOCK: tl.constexpr):
    """Programs add to the same memory in turn: a lock of compare-and-swap and exchange."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    to = total + tl.arange(0, BLOCK)
    tl.store(to, tl.load(to) + v)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def extremes(x, out, n, BLOCK: tl.constexpr):
    """Maximum, minimum, or, and, xor of integers that are not negative, all programs in one word each.

    For negative ones Triton 3.8 gives wrong values: lanes with one address are combined as unsigned
    integers (v_max_u32) before a signed atomic operation.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, mask=inside, other=0)
    zeros = tl.zeros((BLOCK,), tl.int32)
    tl.atomic_max(out + zeros, v, mask=inside)
    tl.atomic_min(out + 1 + zeros, v, mask=inside)
    tl.atomic_or(out + 2 + zeros, v, mask=inside)
    tl.atomic_and(out + 3 + zeros, v, mask=inside)
    tl.atomic_xor(out + 4 + zeros, v, mask=inside)


def sources(arch: str) -> dict[str, tuple[Any, dict[str, str], dict[str, Any], int]]:
    """Function, types of its arguments, constants and number of waves."""
    found: dict[str, tuple[Any, dict[str, str], dict[str, Any], int]] = {}
    sizes = {"m": "i32", "n": "i32", "k": "i32"}
    kinds = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "fp8": FP8[arch]}
    if arch == "gfx942":
        kinds["tf32"] = "fp32"  # by its xf32 instructions
    for name, kind in kinds.items():
        types = {"a": f"*{kind}", "b": f"*{kind}", "c": "*fp32", **sizes}
        constants = {"BM": 64, "BN": 64, "BK": 64, "PRECISION": "tf32" if name == "tf32" else "ieee"}
        found[f"matmul_{name}"] = (matmul, types, constants, 4)
    if arch == "gfx950":
        types = dict.fromkeys(("a", "b", "sa", "sb"), "*u8") | {"c": "*fp32", "n": "i32", "k": "i32"}
        found["matmul_mxfp4"] = (matmul_mx, types, {"BM": 64, "BN": 64, "BK": 128}, 4)
    found["softmax"] = (softmax, {"x": "*fp32", "y": "*fp32", "n": "i32"}, {"BLOCK": 1024}, 4)
    floats = dict.fromkeys(("w", "b"), "*fp32")
    found["layer_norm"] = (
        layer_norm,
        {"x": "*bf16", **floats, "y": "*bf16", "mean": "*fp32", "rstd": "*fp32", "n": "i32", "eps": "fp32"},
        {"BLOCK": 512},
        4,
    )
    found["layer_norm_gradient"] = (
        layer_norm_gradient,
        {"x": "*bf16", "w": "*fp32", "dy": "*bf16", "mean": "*fp32", "rstd": "*fp32"}
        | {"dx": "*bf16", "dw": "*fp32", "n": "i32"},
        {"BLOCK": 512},
        4,
    )
    found["attention"] = (
        attention,
        dict.fromkeys("qkv", "*bf16") | {"o": "*fp32", "length": "i32", "scale": "fp32"},
        {"BM": 64, "BN": 64, "D": 64},
        4,
    )
    found["histogram"] = (histogram, {"x": "*i32", "counts": "*i32", "n": "i32"}, {"BLOCK": 256}, 2)
    found["locked_sum"] = (
        locked_sum,
        {"x": "*i32", "lock": "*i32", "total": "*i32", "n": "i32"},
        {"BLOCK": 256},
        4,
    )
    found["extremes"] = (extremes, {"x": "*i32", "out": "*i32", "n": "i32"}, {"BLOCK": 256}, 2)
    return found


def main(arch: str, folder: Path) -> None:
    """Compile all kernels."""
    kernels = {}
    for name, (function, types, constants, waves) in sources(arch).items():
        signature = types | dict.fromkeys(constants, "constexpr")
        # What Triton's launcher finds out about the arguments: addresses and rows are multiples of 16.
        attributes = {
            (i,): [["tt.divisibility", 16]]
            for i, (argument, kind) in enumerate(types.items())
            if kind[0] == "*" or (name.startswith("matmul") and argument != "m")
        }
        built = triton.compile(
            ASTSource(function, signature, constants, attributes),
            target=GPUTarget("hip", arch, 64),
            options={"num_warps": waves},
        )
        (folder / f"{name}.hsaco").write_bytes(built.asm["hsaco"])
        kernels[name] = {
            "function": built.metadata.name,
            "types": types,
            "constants": constants,
            "block": 64 * waves,
            "lds": built.metadata.shared,
        }
    (folder / "kernels.json").write_text(json.dumps(kernels, indent=1))
    print(f"{len(kernels)} kernels for {arch} by Triton {triton.__version__}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
